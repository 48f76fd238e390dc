"""Larger clusters that are slower: every one is told, none is made up."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner.sweep import Point
from planner.sweep.growth import slowdowns
from planner.sweep.outcome import PointResult, PointStatus
from planner.sweep.page import sweep_page
from planner.sweep.runner import failed
from tests.planner.sweep.grids import grid_tasks


def _point(system: str, gpus: int, speed: float, bound: float | None = None) -> PointResult:
    """A point of 1,000 samples per step; ``bound`` is the speed that no plan exceeds."""
    result = failed(grid_tasks()[0], "")
    return replace(
        result,
        point=Point(system=system, gpus=gpus, global_batch_size=1000),
        status=PointStatus.DONE,
        iteration_time_s=1000 / speed,
        samples_per_s=speed,
        bound_s=None if bound is None else 1000 / bound,
    )


def _told(results: Sequence[PointResult]) -> dict[str, tuple[int, int]]:
    return {s.slow.point.system: (s.slow.point.gpus, s.fast.point.gpus) for s in slowdowns(results)}


@pytest.mark.parametrize("seed", range(200))
def test_the_largest_slower_point_of_each_system_is_told(seed: int) -> None:
    """Compared with every pair of points, in any order, some of them without a plan."""
    rng = np.random.default_rng([191, seed])
    names = ["a", "b", "c"][: rng.integers(1, 4)]
    speeds = {
        (name, int(gpus)): float(np.exp(rng.normal(0.0, 0.1)))
        for name in names
        for gpus in rng.choice([8, 16, 32, 64], rng.integers(1, 5), replace=False)
    }
    points = [_point(*key, speed) for key, speed in speeds.items()]
    points += [replace(failed(grid_tasks()[0], "no"), point=p.point) for p in points[:1]]
    expected = {}
    for name in names:
        pairs = [
            (large, small)
            for (a, large), speed in speeds.items()
            for (b, small), other in speeds.items()
            if a == b == name and small < large and speed < 0.97 * other
        ]
        if pairs:
            large = max(pair[0] for pair in pairs)
            fewer = [g for n, g in speeds if n == name and g < large]
            expected[name] = (large, max(fewer, key=lambda g: speeds[name, g]))
    assert _told([points[i] for i in rng.permutation(len(points))]) == expected


def test_other_batches_and_pipelines_are_other_lines() -> None:
    few, many = _point("a", 8, 9e6), _point("a", 16, 6e6)
    other = replace(many, point=replace(many.point, global_batch_size=2000))
    assert not _told([few, other])
    assert _told([few, other, many]) == {"a": (16, 8)}


def test_what_no_plan_reaches_is_told_apart_from_a_search_that_fell_short() -> None:
    """Copies of tables are named only where it is proven that no plan with one copy is as fast."""
    few = _point("a", 8, 9e6, 9.5e6)
    (proven,) = slowdowns([few, _point("a", 16, 6e6, 6.25e6)])
    assert proven.most_samples_per_s == pytest.approx(6.25e6)
    assert "a x 16, 1,000 per step trains 6 M samples/s, and 8 GPUs train 9 M" in proven.text
    assert "no plan for 16 GPUs reaches more than 6.25 M" in proven.text
    assert "tune --groups" in proven.text
    for bound in (9.1e6, None):
        (open_,) = slowdowns([few, _point("a", 16, 6e6, bound)])
        assert "more --evaluations may find a better plan for 16 GPUs" in open_.text
        assert "--groups" not in open_.text


def test_failures_are_left_out_and_this_is_said() -> None:
    """A larger cluster that is only slower because it fails more often is not told."""
    few, many = _point("a", 8, 9e6, 9e6), _point("a", 16, 10e6, 10e6)
    assert not _told([few, replace(many, availability_ratio=0.5)])
    (slower,) = slowdowns([few, replace(_point("a", 16, 6e6, 6e6), availability_ratio=0.5)])
    assert "6 M samples/s, failures aside" in slower.text
    assert math.isclose(slower.most_samples_per_s or 0.0, 6e6)


def test_the_page_tells_it_below_the_chart() -> None:
    page = sweep_page("model", [_point("<a>", 8, 9e6, 9e6), _point("<a>", 16, 6e6, 6e6)])
    assert "&lt;a&gt; x 16, 1,000 per step trains 6 M samples/s" in page
    assert "trains" not in sweep_page("model", [_point("a", 8, 9e6), _point("a", 16, 10e6)])


def test_a_gap_of_rounding_is_no_gap_on_the_page() -> None:
    closed = replace(_point("a", 8, 9e6), bound_s=1000 / 9e6 * (1 - 1e-9))
    assert re.search('data-l="Gap \\(%\\)"[^>]*>0<', sweep_page("model", [closed]))
