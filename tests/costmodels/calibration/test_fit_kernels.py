"""The fit of kernels finds constants that were put in, and leaves the others alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.dense.kernels import PRIOR, KernelConstants
from costmodels.errors import InvalidValueError
from planner import load_system
from planner.validation.dense_kernels import KernelPoint, fit_kernels


def test_the_fit_finds_constants_that_points_depend_on() -> None:
    truth = replace(PRIOR, kernel_s=2.0e-6, wave_s=0.6e-6)
    counts = [(1, 40), (10, 10), (40, 1), (100, 3)]

    def seconds(constants: KernelConstants, kernels: int, waves: int) -> float:
        return kernels * constants.kernel_s + waves * constants.wave_s

    points = [
        KernelPoint(
            name=f"{k} {w}",
            topology=load_system("h100_sxm", gpus=1),
            family="made",
            measured_s=seconds(truth, k, w),
            predicted_s=lambda c, k=k, w=w: seconds(c, k, w),  # type: ignore[misc]
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
