"""Runs all microbenchmarks of one rank, while the other ranks run theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from costmodels.calibration import points as designs
from costmodels.measured.cpu_constants import CpuKernel
from planner.integrations.measure import gloo_ranks
from planner.integrations.measure.device_rows import collective_call
from planner.integrations.measure.microbench_lookup import measure_lookups
from planner.integrations.measure.microbench_operators import measure_operators, operator_groups
from planner.integrations.measure.pace import Pace
from planner.integrations.measure.runs import RunCase, RunSettings, TimedIteration, train_in_turns

_TAKING_TURNS = 6
"""So many models or tables are in memory and take turns: each finds the others' data in caches."""
_COLLECTIVE_PASSES = 4
_COLLECTIVE_REPEATS = 5
_COLLECTIVE_WARM_UP = 3
_ITERATIONS, _WARM_UP = 7, 3
"""Iterations of a block of a training step, and how many of them are not counted."""
_KINDS = _COLLECTIVES, _STEPS, _LOOKUPS, _OPERATORS = "collectives", "steps", "lookups", "operators"


def measure_rank(
    rank: int, world_size: int, effort: designs.MeasuringEffort, seed: int
) -> designs.CalibrationPoints:
    """Run all microbenchmarks as one of the ranks; each draws its own lookups and operators."""
    own, shared = np.random.default_rng([seed, rank + 1]), np.random.default_rng(seed)
    counts = zip(CpuKernel, effort.num_lookups, strict=True)
    tables = [p for kernel, n in counts for p in designs.lookup_points(n, kernel, own)]
    steps = designs.step_points(effort.num_steps, world_size, shared)
    raw = designs.collective_points(world_size)
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    groups = operator_groups(effort)
    torch.manual_seed(int(own.integers(2**31)))
    pace = Pace()
    for turn, part in enumerate(np.array_split(np.arange(len(steps)), effort.num_passes)):
        # All kinds of points take turns, so that a slow minute of the machine spoils none of them.
        if turn % max(1, effort.num_passes // _COLLECTIVE_PASSES) == 0:
            passed = pace.timed(_COLLECTIVES, _measure_collectives, raw, rank, pace)
            found[_COLLECTIVES].append(passed)
        settings = RunSettings(effort.num_blocks, _ITERATIONS, _WARM_UP, seed + turn)
        for start in range(0, len(part), _TAKING_TURNS):
            some = [steps[i] for i in part[start : start + _TAKING_TURNS]]
            found[_STEPS] += pace.timed(
                _STEPS, _measure_steps, some, rank, world_size, settings, pace
            )
        order = np.random.default_rng([seed, rank, turn]).permutation(len(tables))
        for start in range(0, len(tables), _TAKING_TURNS):
            group = order[start : start + _TAKING_TURNS]
            cases, own_seed = [tables[i] for i in group], seed + turn * len(tables) + start
            looked_up = pace.timed(_LOOKUPS, measure_lookups, cases, pace, own_seed)
            found[_LOOKUPS] += zip(group, looked_up, strict=True)
        for names in groups[turn :: effort.num_passes]:
            found[_OPERATORS] += pace.timed(_OPERATORS, measure_operators, names, own, pace)
    steady: Callable[[Any], Any] = pace.at_typical
    lookups = ([steady(p) for k, p in found[_LOOKUPS] if k == i] for i in range(len(tables)))
    # The fastest of several passes, because one disturbed moment would spoil the few points.
    same = zip(*found[_COLLECTIVES], strict=True)
    return designs.CalibrationPoints(
        lookups=tuple(map(_typical, lookups)),
        steps=tuple(map(steady, found[_STEPS])),
        collectives=tuple(min(map(steady, points), key=lambda p: p.time_s) for points in same),
        operators=tuple(map(steady, found[_OPERATORS])),
        pace_s=pace.typical_s(_STEPS),
        pace_sigma_ratio=pace.sigma_ratio(),
    )


def _measure_collectives(
    cases: Sequence[designs.CollectivePoint], rank: int, pace: Pace
) -> list[designs.CollectivePoint]:
    """Measure collectives: medians of this rank's processor time over some rounds."""
    calls = [collective_call(case, rank) for case in cases]
    times = np.zeros((len(cases), _COLLECTIVE_REPEATS + _COLLECTIVE_WARM_UP, 2))
    for i in range(_COLLECTIVE_REPEATS + _COLLECTIVE_WARM_UP):
        pace.read()
        gloo_ranks.rendezvous()
        calls[0]()  # a small collective takes longer directly after a large one
        for k, call in enumerate(calls):
            gloo_ranks.rendezvous()
            own, network = gloo_ranks.own_seconds(), gloo_ranks.network_seconds()
            call()
            times[k, i] = gloo_ranks.own_seconds() - own, gloo_ranks.network_seconds() - network
    # Medians of own seconds count, and low quantiles of those of network threads.
    own_s, network_s = np.moveaxis(times[:, _COLLECTIVE_WARM_UP:], -1, 0)
    quiet = np.median(own_s, axis=1) + np.quantile(network_s, gloo_ranks.NETWORK_QUANTILE, axis=1)
    return [replace(case, time_s=float(m)) for case, m in zip(cases, quiet, strict=True)]


def _typical(points: Sequence[designs.LookupPoint]) -> designs.LookupPoint:
    """One point with the geometric means over all places in memory.

    Depending on the place of its pages, a table can be twice as slow or as fast, at random. A
    median would fall into one of these two groups.
    """
    forward, backward = np.log([(p.forward_s, p.backward_s) for p in points]).mean(axis=0)
    return replace(points[0], forward_s=float(np.exp(forward)), backward_s=float(np.exp(backward)))


def _measure_steps(
    points: Sequence[designs.StepPoint],
    rank: int,
    world_size: int,
    settings: RunSettings,
    pace: Pace,
) -> list[designs.StepPoint]:
    """Seconds of every stage on this rank, of models in turn; ``stages_s`` has one entry."""
    cases = [RunCase(workload=p.workload, plan=p.plan) for p in points]
    log = train_in_turns(cases, rank, world_size, settings, pace)
    return [
        replace(point, stages_s=(_quiet([i for i in log if i.plan == k]),))
        for k, point in enumerate(points)
    ]


def _quiet(iterations: Sequence[TimedIteration]) -> tuple[float, ...]:
    """Median seconds of each stage, plus those of network threads in quiet moments."""
    own = np.median([i.stages_s for i in iterations], axis=0)
    network = np.array([i.network_s for i in iterations])
    quiet = float(np.quantile(network.sum(axis=1), gloo_ranks.NETWORK_QUANTILE))
    share = np.median(network, axis=0)
    share = share / max(float(share.sum()), 1e-12)
    return tuple(float(x) for x in own + quiet * share)
