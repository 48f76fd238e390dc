"""Rises of the step time over GPUs, and who is to blame for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.search.growth import model, rises, tasks
from planner.sweep import PointResult
from planner.sweep.outcome import PointStatus
from planner.sweep.runner import failed


def _results(*points: tuple[float, float] | None) -> list[PointResult]:
    """Points of (step, bound) on 8, 16, ... GPUs; None for one without a plan."""
    asked = tasks(model(9), [8 * 2**i for i in range(len(points))], None)
    lost = [failed(task, "") for task in asked]
    return [
        r if p is None else replace(r, status=PointStatus.DONE, iteration_time_s=p[0], bound_s=p[1])
        for r, p in zip(lost, points, strict=True)
    ]


def test_a_rise_is_against_the_shortest_step_on_fewer_gpus() -> None:
    """Not against the point before, and points without a plan are left out."""
    steps = ((4.0, 3.0), (2.0, 1.9), None, (2.2, 1.9), (2.2, 2.1), (2.2, 2.15))
    found = list(rises(_results(*steps)[::-1]))
    assert [r.result.point.gpus for r in found] == [8, 16, 64, 128, 256]
    assert [r.rise_ratio for r in found] == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.1])
    assert [r.proven_ratio for r in found] == pytest.approx([0.0, 0.0, 0.0, 0.05, 0.075])
    avoidable = [0.0, 0.0, 0.1, 2.2 / 2.1 - 1, 2.2 / 2.15 - 1]
    assert [r.avoidable_ratio for r in found] == pytest.approx(avoidable)
    assert [r.verdict for r in found] == ["", "", "open", "open", "physics"]


def test_models_are_the_same_every_time() -> None:
    """And unlike each other."""
    assert model(3) == model(3)
    assert len({(len(model(i).workload.tables), model(i).system) for i in range(10)}) > 5
