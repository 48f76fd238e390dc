"""Times the stages of training steps of small random models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodels.calibration.designs import Effort
from costmodels.calibration.points import StepPoint
from planner.integrations.measure.gloo_ranks import NETWORK_QUANTILE
from planner.integrations.measure.pace import Pace
from planner.integrations.measure.runs import RunCase, RunSettings, TimedIteration, train_in_turns
from planner.integrations.measure.stage_clock import stage_clock

TAKING_TURNS = 6
"""This many models are in memory and take turns, so that each finds the others' data in caches."""


def measure_steps(
    points: Sequence[StepPoint],
    rank: int,
    world_size: int,
    effort: Effort,
    pace: Pace,
    seed: int,
) -> list[StepPoint]:
    """Seconds of every stage on this rank, of models in turn; ``stages_s`` has one entry."""
    settings = RunSettings(
        num_blocks=effort.num_blocks,
        iterations=effort.iterations,
        warm_up=effort.warm_up,
        seed=seed,
    )
    cases = [RunCase(workload=p.workload, plan=p.plan) for p in points]
    log = train_in_turns(cases, rank, world_size, settings, stage_clock(), pace.read)
    return [
        replace(point, stages_s=(_quiet([i for i in log if i.plan == k]),))
        for k, point in enumerate(points)
    ]


def _quiet(iterations: Sequence[TimedIteration]) -> tuple[float, ...]:
    """Median seconds of each stage, plus those of network threads in quiet moments."""
    own = np.median([i.stages_s for i in iterations], axis=0)
    network = np.array([i.network_s for i in iterations])
    quiet = float(np.quantile(network.sum(axis=1), NETWORK_QUANTILE))
    share = np.median(network, axis=0)
    share = share / max(float(share.sum()), 1e-12)
    return tuple(float(x) for x in own + quiet * share)
