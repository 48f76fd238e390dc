"""All microbenchmarks of this machine, on several gloo ranks at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from costmodels.calibration.designs import (
    Effort,
    collective_points,
    lookup_points,
    step_points,
)
from costmodels.calibration.points import CalibrationPoints, CollectivePoint, LookupPoint, StepPoint
from costmodels.cpu.features import CpuKernel
from planner.integrations.measure.gloo_ranks import run_on_ranks
from planner.integrations.measure.microbench_collective import measure_collectives
from planner.integrations.measure.microbench_lookup import measure_lookups
from planner.integrations.measure.microbench_operators import measure_operators
from planner.integrations.measure.microbench_step import measure_steps

_GROUP = 6
_MANY_PASSES = 5
_COLLECTIVE_REPEATS = 7


def measure_machine(effort: Effort, *, world_size: int, seed: int) -> CalibrationPoints:
    """Run everything; lookups differ from rank to rank, for more points."""
    per_rank = run_on_ranks(_measure_rank, world_size, effort, seed)
    return CalibrationPoints(
        lookups=tuple(p for points in per_rank for p in points.lookups),
        steps=tuple(_joined(p) for p in zip(*(r.steps for r in per_rank), strict=True)),
        collectives=tuple(
            _slowest(p) for p in zip(*(r.collectives for r in per_rank), strict=True)
        ),
        operators=tuple(p for points in per_rank for p in points.operators),
    )


def _measure_rank(rank: int, world_size: int, effort: Effort, seed: int) -> CalibrationPoints:
    own, shared = np.random.default_rng([seed, rank + 1]), np.random.default_rng(seed)
    device, repeats = torch.device("cpu"), effort.repeats
    tables = [
        *lookup_points(effort.num_lookups, CpuKernel.FUSED, own),
        *lookup_points(effort.num_dense_lookups, CpuKernel.DENSE, own),
        *lookup_points(effort.num_sequence_lookups, CpuKernel.SEQUENCE, own),
    ]
    steps = step_points(effort.num_steps, world_size, shared)
    raw = collective_points(world_size)
    collectives: list[list[Any]] = []
    lookups: list[list[Any]] = [[] for _ in tables]
    timed: list[StepPoint] = []
    for turn, part in enumerate(np.array_split(np.arange(len(steps)), effort.num_passes)):
        # Taking turns over the whole time: a slow minute of the machine spoils no kind of point.
        collectives.extend(
            measure_collectives(raw, rank, repeats=_COLLECTIVE_REPEATS)
            for _ in range(math.ceil(_MANY_PASSES / effort.num_passes))
        )
        timed += measure_steps([steps[i] for i in part], rank, world_size, effort, seed=seed + turn)
        order = np.random.default_rng([seed, rank, turn]).permutation(len(tables))
        for start in range(0, len(tables), _GROUP):
            group = order[start : start + _GROUP]
            own_seed = seed + turn * len(tables) + start
            measured = measure_lookups(
                [tables[i] for i in group], repeats=repeats, seed=own_seed, device=device
            )
            for i, point in zip(group, measured, strict=True):
                lookups[i].append(point)
    return CalibrationPoints(
        lookups=tuple(_typical(same) for same in lookups),
        steps=tuple(timed),
        collectives=tuple(_quietest(same) for same in zip(*collectives, strict=True)),
        operators=measure_operators(effort, own),
    )


def _quietest(points: Sequence[CollectivePoint]) -> CollectivePoint:
    """Few points that a single disturbed moment would spoil: the least of several passes."""
    return min(points, key=lambda p: p.time_s)


def _typical(points: Sequence[LookupPoint]) -> LookupPoint:
    """One point with the geometric means over all places.

    Where pages lie makes some tables twice as slow or as fast, at random: a median of two such
    heaps falls into either.
    """
    forward, backward = np.log([(p.forward_s, p.backward_s) for p in points]).mean(axis=0)
    return replace(points[0], forward_s=float(np.exp(forward)), backward_s=float(np.exp(backward)))


def _slowest(points: Sequence[Any]) -> Any:
    return max(points, key=lambda p: p.time_s)


def _joined(points: Sequence[StepPoint]) -> StepPoint:
    """One step as every rank saw it."""
    return replace(points[0], stages_s=tuple(s for p in points for s in p.stages_s))
