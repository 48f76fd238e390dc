"""Trains a model under several plans that take turns, on gloo ranks of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from costmodels.sharding import Plan
from costmodels.validation.virtual_clock import Trace, virtual_time
from costmodels.workload import Workload
from planner.integrations.measure.gloo_ranks import (
    NETWORK_QUANTILE,
    calm_network_threads,
    run_on_ranks,
)
from planner.integrations.measure.model import NUM_BATCHES, Training, make_batches
from planner.integrations.measure.pace import Pace
from planner.integrations.measure.stage_clock import StageClock, stage_clock
from planner.validation.tasks import Blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How often each plan runs: ``num_blocks`` blocks of ``iterations`` in random order.

    The first ``warm_up`` iterations of a block are dropped.
    """

    num_blocks: int = 4
    iterations: int = 11
    warm_up: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCase:
    """A model to be trained under a plan; ``blocks`` are transformer blocks above its tables."""

    workload: Workload
    plan: Plan
    blocks: Blocks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """The measured times of one plan: medians over its iterations.

    Attributes:
        iteration_s: seconds per iteration.
        spread_ratio: how far the medians of blocks are from it, as a share (median).
        wall_s: seconds per iteration by the clock.
        stages_s: the iteration divided into :data:`costmodels.cpu.run_stages.STAGES` (medians of
            the slowest rank's seconds).
        network_s: seconds of network threads in quiet moments; part of every time in ``virtual_s``.
        virtual_s: seconds of each iteration.
        foreign_ratio: load of other jobs on this machine, in cores.
        pace_s: seconds of fixed work meanwhile (:class:`planner.integrations.measure.pace.Pace`).
    """

    iteration_s: float
    spread_ratio: float
    wall_s: float
    stages_s: tuple[float, ...]
    network_s: float
    virtual_s: tuple[float, ...]
    foreign_ratio: float
    pace_s: float

    def share_between(self, low_s: float, high_s: float) -> float:
        """Share (0..1) of all measured iterations that took ``low_s`` to ``high_s``."""
        inside = [low_s <= x <= high_s for x in self.virtual_s]
        return sum(inside) / len(inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedIteration:
    """One iteration of one rank, with the seconds of stages, and of network threads in stages."""

    plan: int
    block: int
    trace: Trace
    wall_s: float
    stages_s: tuple[float, ...]
    network_s: tuple[float, ...]


def run_plans(cases: Sequence[RunCase], *, world_size: int, settings: RunSettings) -> list[PlanRun]:
    """Measure every workload under its plan; all are in memory together and take turns."""
    started = _busy_seconds()
    per_rank = run_on_ranks(_measure, world_size, tuple(cases), settings)
    busy, wall = (b - a for a, b in zip(started, _busy_seconds(), strict=True))
    logs, used, paces = zip(*per_rank, strict=True)
    foreign = max(0.0, busy - sum(used)) / wall if wall > 0 else 0.0
    pace_s = geometric_mean(paces)
    return [_summary(logs, k, settings, foreign, pace_s) for k in range(len(cases))]


def _summary(
    logs: Sequence[list[TimedIteration]],
    plan: int,
    settings: RunSettings,
    foreign: float,
    pace_s: float,
) -> PlanRun:
    rows = [group for group in zip(*logs, strict=True) if group[0].plan == plan]
    virtual = np.array([virtual_time([i.trace for i in group]) for group in rows])
    # Each rank counts by itself, because threads of one rank may spin while others do not.
    moved = np.array([[i.trace.network_s for i in group] for group in rows])
    network_s = float(np.quantile(moved, NETWORK_QUANTILE, axis=0).max())
    virtual += network_s
    block = np.array([group[0].block for group in rows])
    typical = float(np.median(virtual))
    quiet = np.array([np.median(virtual[block == b]) for b in range(settings.num_blocks)])

    stages = np.array([[i.stages_s for i in group] for group in rows])
    return PlanRun(
        iteration_s=typical,
        spread_ratio=float(np.median(np.abs(quiet - typical)) / typical),
        wall_s=float(np.median([max(i.wall_s for i in group) for group in rows])),
        stages_s=tuple(float(x) for x in np.median(stages.max(axis=1), axis=0)),
        network_s=network_s,
        virtual_s=tuple(float(x) for x in virtual),
        foreign_ratio=foreign,
        pace_s=pace_s,
    )


def _measure(
    rank: int,
    world_size: int,
    cases: tuple[RunCase, ...],
    settings: RunSettings,
) -> tuple[list[TimedIteration], float, float]:
    """The iterations of this rank, its total processor seconds, and its pace."""
    pace = Pace()
    log = train_in_turns(cases, rank, world_size, settings, stage_clock(), pace.read)
    return log, time.process_time(), pace.typical_s()


def train_in_turns(
    cases: Sequence[RunCase],
    rank: int,
    world_size: int,
    settings: RunSettings,
    clock: StageClock,
    between: Callable[[], None],
) -> list[TimedIteration]:
    """Run all iterations of this rank; returns those after the warm-up of their block.

    All models are in memory together. ``between`` is called before each block.
    """
    log, seed = clock.log, settings.seed
    workloads = {c.workload.name: c.workload for c in cases}
    batches = {name: make_batches(w, rank, seed) for name, w in workloads.items()}
    models = [Training(c.workload, c.plan, world_size, seed, clock, c.blocks) for c in cases]
    for training in models:
        log.follow_gradients(training.model)
    calm_network_threads()
    order_rng = np.random.default_rng(seed)
    iterations = []
    for block in range(settings.num_blocks):
        for k in order_rng.permutation(len(cases)):
            between()
            own = batches[cases[k].workload.name]
            for i in range(settings.iterations):
                started = time.perf_counter()
                log.begin()
                clock.reset()
                models[k].step(own[i % NUM_BATCHES])
                trace = log.end()
                if i >= settings.warm_up:
                    iterations.append(
                        TimedIteration(
                            plan=int(k),
                            block=block,
                            trace=trace,
                            wall_s=time.perf_counter() - started,
                            stages_s=clock.seconds(),
                            network_s=clock.network_seconds(),
                        )
                    )
    return iterations


def _busy_seconds() -> tuple[float, float]:
    """(processor seconds of all jobs on this machine, time by the clock); zeros if unknown."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0, time.monotonic()
    fields: list[Any] = stat.read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, irq, soft, steal = (int(f) for f in fields)
    return (user + nice + system + irq + soft + steal) / 100.0, time.monotonic()
