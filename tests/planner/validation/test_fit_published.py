"""Fits to published rows: they find what was put in, and the stored constants are theirs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from benchmarks.fit_published import FIXED, _improved, fit_kernels, left_out
from benchmarks.fit_published import KERNELS_PRIOR as PRIOR
from costmodels.dense.kernels import KernelConstants
from costmodels.errors import InvalidValueError
from planner import load_system
from planner.validation.cases import json_file
from planner.validation.kernels import KernelCase, dense_cases


def test_the_fit_finds_constants_that_points_depend_on() -> None:
    truth = replace(PRIOR, kernel_s=2.0e-6, wave_s=0.6e-6)
    counts = [(1, 40), (10, 10), (40, 1), (100, 3)]

    def seconds(constants: KernelConstants, kernels: int, waves: int) -> float:
        return kernels * constants.kernel_s + waves * constants.wave_s

    points = [
        KernelCase(
            name=f"{k} {w}",
            topology=load_system("h100_sxm", gpus=1),
            groups={"family": "made"},
            measured_s=seconds(truth, k, w),
            seconds=lambda c, k=k, w=w: seconds(c, k, w),  # type: ignore[misc]
        )
        for k, w in counts
    ]
    found = fit_kernels(points)
    assert found.kernel_s == pytest.approx(truth.kernel_s, rel=0.03)
    assert found.wave_s == pytest.approx(truth.wave_s, rel=0.03)
    assert replace(found, kernel_s=PRIOR.kernel_s, wave_s=PRIOR.wave_s) == PRIOR


def test_a_fit_without_points_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="needs measured points"):
        fit_kernels(())


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("attention", ""),
        ("single-gpu", ""),
        pytest.param("dense", "", marks=pytest.mark.slow),
    ],
)
def test_stored_constants_are_those_fitted_without_each_group(kind: str, family: str) -> None:
    """``python -m benchmarks.fit_published KIND --left-out`` writes them."""
    found = left_out(kind, asked=lambda c: family in ("", c.groups.get("family")))
    for way, stored in json_file("left_out.json")[kind].items():
        assert found[way]
        assert family or set(found[way]) == set(stored)
        for key, constants in found[way].items():
            assert flat(constants) == pytest.approx(flat(stored[key]), rel=0.02, abs=1e-8)


def test_the_fit_of_kernels_without_a_family_ends_at_the_stored_constants() -> None:
    """A further round of the fit moves none of them."""
    points = [c for c in dense_cases() if c.groups["family"] != "mlp"]
    (stored,) = (found["mlp"] for found in json_file("left_out.json")["dense"].values())
    names = [f.name for f in fields(PRIOR) if f.name not in FIXED]
    moved = np.log([stored[name] / getattr(PRIOR, name) for name in names])
    again = _improved(points, PRIOR, names, moved)
    assert np.exp(again) == pytest.approx(np.exp(moved), rel=0.02)


def flat(constants: Any) -> list[float]:
    """All numbers of constants."""
    if isinstance(constants, dict):
        constants = list(constants.values())
    if isinstance(constants, list | tuple):
        return [number for part in constants for number in flat(part)]
    return [float(constants)]
