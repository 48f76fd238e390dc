"""Rises of the step time over GPUs, and who is to blame for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.search.growth import gpus_of, model, rises
from planner.study import SetupResult
from planner.study.figures import Figures
from planner.study.space import Setup


def _results(*points: tuple[float, float] | None) -> list[SetupResult]:
    """Setups of (step, bound) on 8, 16, ... GPUs; None for one without a plan."""
    lost = [
        SetupResult(setup=Setup((("gpus", 8 * 2**i),)), status="failed") for i in range(len(points))
    ]
    return [
        r
        if p is None
        else replace(
            r,
            status="done",
            figures=Figures(time_s=p[0], samples_per_s=1.0, free_bytes=0.0),
            bound_s=p[1],
        )
        for r, p in zip(lost, points, strict=True)
    ]


def test_a_rise_is_against_the_shortest_step_on_fewer_gpus() -> None:
    """Not against the point before, and points without a plan are left out."""
    steps = ((4.0, 3.0), (2.0, 1.9), None, (2.2, 1.9), (2.2, 2.1), (2.2, 2.15))
    found = list(rises(_results(*steps)[::-1]))
    assert [gpus_of(r.result) for r in found] == [8, 16, 64, 128, 256]
    assert [r.rise_ratio for r in found] == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.1])
    assert [r.proven_ratio for r in found] == pytest.approx([0.0, 0.0, 0.0, 0.05, 0.075])
    avoidable = [0.0, 0.0, 0.1, 2.2 / 2.1 - 1, 2.2 / 2.15 - 1]
    assert [r.avoidable_ratio for r in found] == pytest.approx(avoidable)
    assert [r.verdict for r in found] == ["", "", "open", "open", "physics"]


def test_models_are_the_same_every_time() -> None:
    """And unlike each other."""
    assert model(3) == model(3)
    assert len({(len(model(i).workload.tables), model(i).system) for i in range(10)}) > 5
