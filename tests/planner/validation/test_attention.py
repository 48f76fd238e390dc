"""Kernels of pointwise attention that others measured, and what is fitted to them."""

from __future__ import annotations

import json
from dataclasses import astuple
from statistics import fmean

import pytest

from benchmarks.fit_published import LEFT_OUT, fit_attention, lines_of
from costmodels.sustained import POINTWISE, pointwise_works
from planner.validation.cases import AS_SHIPPED, UNSEEN, left_out_groups
from planner.validation.kernels import KernelCase, attention_cases
from tests.planner.cli.command_line import Run
from tests.planner.cli.conftest import run  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def cases() -> tuple[KernelCase, ...]:
    return attention_cases()


def test_rows_are_times_that_a_device_can_reach(cases: tuple[KernelCase, ...]) -> None:
    """Below the peak, and at least 0.85 times as fast with twice as long sequences."""
    assert len({c.key(("device", "head")) for c in cases}) == 5
    rates = {}
    for c in cases:
        operator, gpu = c.seconds.args  # type: ignore[attr-defined]
        is_backward = c.groups["pass"] == "backward"
        flop = operator.gradient_flop if is_backward else operator.forward_flop
        rate = flop / 2 / c.measured_s
        assert rate < gpu.device.matrix_rate(operator.dtype)
        groups, _, positions, *_ = operator.shape
        rates[c.key(("device", "head", "pass")), groups, positions] = rate
    for (*case, positions), rate in rates.items():
        assert rates.get((*case, 2 * positions), rate) >= 0.85 * rate


def test_the_shipped_work_is_what_the_rows_give(cases: tuple[KernelCase, ...]) -> None:
    found = fit_attention(cases)
    assert set(found) == set(POINTWISE)
    for name, works in found.items():
        for ours, theirs in zip(POINTWISE[name], works, strict=True):
            given = astuple(theirs)
            least = (0, 1.1, 5e-9, 5e-9, 0, 0)
            for value, fitted, at_least in zip(astuple(ours), given, least, strict=True):
                assert value == pytest.approx(fitted, rel=5e-3, abs=at_least)


def test_tritons_kernels_are_as_long_as_published() -> None:
    """Also the rows of the H100, whose rate follows from that of CUTLASS's kernels."""
    off: dict[tuple[str, bool], list[float]] = {}
    for case in attention_cases("hstu_attention_triton.csv"):
        device = case.topology.device
        time_s = case.seconds(pointwise_works(1, device))
        off.setdefault((device.name[:4], case.groups["pass"] == "backward"), []).append(
            abs(time_s / case.measured_s - 1.0)
        )
    assert {k: len(x) for k, x in off.items()} == {
        ("H100", False): 10, ("MI35", False): 11, ("MI35", True): 10
    }  # fmt: skip
    assert all(fmean(errors) < 0.12 for errors in off.values())
    assert fmean(off["MI35", False]) < 0.05
    assert fmean(off["MI35", True]) < 0.08


def test_who_is_left_out(cases: tuple[KernelCase, ...]) -> None:
    case = next(c for c in cases if c.groups["head"] == "64")
    width, device = (
        [c for c in cases if is_kept(case, c)] for is_kept in LEFT_OUT["attention"].values()
    )
    assert width
    assert all(c.groups["head"] != "64" for c in width)
    assert device
    assert all(c.topology != case.topology for c in device)


def test_the_command_prints_errors_and_work(run: Run) -> None:  # noqa: F811
    printed = json.loads(run("validate", "published", "--what", "attention", "--json").out)
    layers, printed = printed["layers"], printed["kernels"]
    assert len(printed["cases"]) == printed["errors"][AS_SHIPPED]["count"] == 470
    assert printed["errors"][AS_SHIPPED]["mean_error_ratio"] < 0.1
    left = [printed["errors"][name]["mean_error_ratio"] for name in left_out_groups("attention")]
    assert printed["errors"][AS_SHIPPED]["mean_error_ratio"] < left[0] < 0.1
    assert left[0] < left[1] < 0.135
    errors = [x["predicted_s"] / x["measured_s"] - 1 for x in layers["cases"]]
    assert sum(map(abs, errors)) <= 0.1 * len(errors)
    shown = run("validate", "published", "--what", "attention").out
    assert "GB200" in shown
    assert layers["errors"][UNSEEN]["coverage_ratio"] == 1.0
    assert any(line.startswith("H100 backward") for line in lines_of("attention"))
