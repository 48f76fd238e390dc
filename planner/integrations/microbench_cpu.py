"""All microbenchmarks of this machine, on several gloo ranks at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from costmodels.calibration.designs import (
    Effort,
    collective_points,
    dense_points,
    exchange_points,
    gradient_points,
    group_points,
    lookup_points,
)
from costmodels.calibration.points import CalibrationPoints
from planner.integrations.gloo_ranks import run_on_ranks
from planner.integrations.microbench_collective import measure_collectives
from planner.integrations.microbench_dense import measure_dense, measure_gradients
from planner.integrations.microbench_exchange import measure_exchanges
from planner.integrations.microbench_lookup import measure_calls, measure_groups, measure_lookups

Point = TypeVar("Point")

_GROUP = 6
_MANY_PASSES = 5
_CALLS = (1, 2, 4, 8, 16)


def measure_machine(effort: Effort, *, world_size: int, seed: int) -> CalibrationPoints:
    """Run everything; lookups and dense parts differ from rank to rank, for more points."""
    per_rank = run_on_ranks(_measure_rank, world_size, effort, seed)
    first = per_rank[0]
    return replace(
        first,
        lookups=tuple(p for points in per_rank for p in points.lookups),
        calls=tuple(p for points in per_rank for p in points.calls),
        groups=tuple(p for points in per_rank for p in points.groups),
        dense=tuple(p for points in per_rank for p in points.dense),
        collectives=tuple(
            _slowest(p) for p in zip(*(r.collectives for r in per_rank), strict=True)
        ),
        gradients=tuple(_slowest(p) for p in zip(*(r.gradients for r in per_rank), strict=True)),
        exchanges=tuple(
            _rank_times(points) for points in zip(*(r.exchanges for r in per_rank), strict=True)
        ),
    )


def _measure_rank(rank: int, world_size: int, effort: Effort, seed: int) -> CalibrationPoints:
    own, shared = np.random.default_rng([seed, rank + 1]), np.random.default_rng(seed)
    device = torch.device("cpu")
    fused = lookup_points(effort.num_lookups, "fused", own)
    dense_tables = lookup_points(effort.num_dense_lookups, "dense", own)
    repeats = effort.repeats
    exchanges = exchange_points(effort.num_exchanges, world_size, shared)

    def exchange(points: Sequence[Any], number: int) -> list[Any]:
        return measure_exchanges(points, rank, repeats=repeats, seed=seed + number)

    def lookup(points: Sequence[Any], number: int) -> list[Any]:
        return measure_lookups(points, repeats=repeats, seed=seed + number, device=device)

    def group(points: Sequence[Any], number: int) -> list[Any]:
        return measure_groups(points, repeats=repeats, seed=seed + number, device=device)

    def dense(points: Sequence[Any], _: int) -> list[Any]:
        return measure_dense(points, repeats=repeats, device=device)

    raw, reduced = collective_points(world_size), gradient_points(world_size)
    passes = effort.num_passes
    collectives = _quietest(lambda: measure_collectives(raw, rank, repeats=repeats))
    gradients = _quietest(lambda: measure_gradients(reduced, repeats=repeats))
    return CalibrationPoints(
        lookups=tuple(_in_passes(fused, lookup, passes) + _in_passes(dense_tables, lookup, passes)),
        calls=tuple(measure_calls(_CALLS, repeats=5 * repeats)),
        groups=tuple(_in_passes(group_points(effort.num_groups, own), group, passes)),
        exchanges=tuple((p,) for p in _in_passes(exchanges, exchange, passes)),
        dense=tuple(_in_passes(dense_points(effort.num_dense, own), dense, passes)),
        collectives=tuple(collectives),
        gradients=tuple(gradients),
    )


def _in_passes(
    points: Sequence[Point],
    measure: Callable[[Sequence[Point], int], list[Point]],
    num_passes: int,
) -> list[Point]:
    """Measure groups in turn, all of them several times; the quiet passes count."""
    found: list[list[Point]] = [[] for _ in points]
    for turn in range(num_passes):
        for start in range(0, len(points), _GROUP):
            group = points[start : start + _GROUP]
            for k, point in enumerate(measure(group, turn * len(points) + start)):
                found[start + k].append(point)
    return [_quiet(same) for same in found]


def _quietest(measure: Callable[[], list[Any]]) -> list[Any]:
    """Few points that a single disturbed moment would spoil: the least of several passes."""
    passes = [measure() for _ in range(_MANY_PASSES)]
    return [min(same, key=lambda p: p.time_s) for same in zip(*passes, strict=True)]


def _quiet(points: Sequence[Any]) -> Any:
    """One point with the medians of all measured seconds."""
    times = [f for f in points[0].__dataclass_fields__ if f.endswith("_s")]
    quiet = {f: float(np.median([getattr(p, f) for p in points])) for f in times}
    return replace(points[0], **quiet)


def _slowest(points: Sequence[Any]) -> Any:
    return max(points, key=lambda p: p.time_s)


def _rank_times(points: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """One exchange as every rank saw it."""
    return tuple(point for (point,) in points)
