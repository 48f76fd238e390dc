"""The tasks of :mod:`benchmarks.search.peers`, their two spaces, and the one price of a plan.

Tables are those of :mod:`benchmarks.search.instances`, on one or two hosts of H100. A task is drawn
again until its weights fill at most 60 % of the devices and no table fills more than half of one,
because DreamShard cannot cut tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from benchmarks.search.instances import drawn
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, check_plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner import load_system
from planner.options.enumeration import enumerate_options
from planner.options.table_limits import TableOptions
from planner.problem import NO_CONSTRAINTS, Constraints, PlanningProblem
from planner.space.evaluation import FITTING, SearchSpace

RANKS: Final = (4, 8, 16)
_TABLES: Final = (50, 200)
_FULL_RATIO, _LARGEST_RATIO = 0.6, 0.5
_DRAWS: Final = 1000


class SpaceName(StrEnum):
    """Which plans a search may make."""

    HALVING = "halving"
    """Whole tables and columns halved again and again, with the fused kernel: NeuroShard's."""
    ALL = "all"
    """Every sharding type, cut and kernel of this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model and the system that trains it."""

    workload: Workload
    topology: Topology


class TimeIsUp(Exception):  # noqa: N818 - it is no error
    """Raised inside a peer's code when its seconds are over."""


class Best:
    """The best plan that a search has priced, and the CPU seconds that it still has."""

    def __init__(self, seconds: float) -> None:
        """Start the clock."""
        self._end = time.process_time() + seconds
        self._make: Callable[[], Plan] | None = None
        self.value = np.inf
        self.num_priced = 0

    @property
    def left_s(self) -> float:
        """CPU seconds of this process left, negative when they are over."""
        return self._end - time.process_time()

    def check(self) -> None:
        """Stop the peer if its time is up.

        Raises:
            TimeIsUp: it is.
        """
        if self.left_s <= 0:
            raise TimeIsUp

    def offer(self, value: float, make: Callable[[], Plan]) -> None:
        """Keep a plan of that price if it is the best, and count it."""
        self.num_priced += 1
        if value < self.value:
            self.value, self._make = value, make

    @property
    def plan(self) -> Plan | None:
        """The best plan; None if none fitted."""
        return None if self._make is None else self._make()


def task(number: int, seed: int, *, ranks: int | None = None, most: int = _TABLES[1]) -> Task:
    """Task ``number`` of a seed: 50 to ``most`` tables on 4, 8 or 16 ranks, always the same.

    Raises:
        ValueError: no draw fits the memory.
    """
    rng = np.random.default_rng([19, 6, seed, number])
    count = int(rng.integers(_TABLES[0], most + 1))
    drawn_ranks = int(rng.choice(RANKS))
    topology = load_system("h100_sxm", gpus=ranks or drawn_ranks)
    device_bytes = topology.device.hbm_capacity_bytes
    for _ in range(_DRAWS):
        workload = drawn(count, seed=int(rng.integers(2**31)))
        sizes = [table.weight_bytes for table in workload.tables]
        fits = sum(sizes) <= _FULL_RATIO * device_bytes * topology.world_size
        if fits and max(sizes) <= _LARGEST_RATIO * device_bytes:
            return Task(workload=workload, topology=topology)
    msg = f"task {number}: no draw of {count} tables fits {topology.world_size} ranks"
    raise ValueError(msg)


def space_of(given: Task, name: SpaceName) -> SearchSpace:
    """All plans of a task that a search may make there."""
    halving = name is SpaceName.HALVING
    kinds = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    narrow = Constraints(sharding_types=kinds, kernels=(ComputeKernel.FUSED,))
    topology = given.topology
    problem = PlanningProblem(
        workload=given.workload,
        topology=topology,
        constraints=narrow if halving else NO_CONSTRAINTS,
    )
    pipeline = CostPipeline(given.workload, topology)
    listing = enumerate_options(problem, pipeline)
    if halving:
        listing = replace(listing, tables=tuple(_halved(table) for table in listing.tables))
    return SearchSpace(problem, pipeline, listing)


def is_halved(option: ShardingOption) -> bool:
    """Whether columns are whole or in 2, 4, 8, ... equal pieces."""
    widths = option.column_widths
    return len(set(widths)) == 1 and len(widths).bit_count() == 1


def _halved(table: TableOptions) -> TableOptions:
    kept = [i for i, option in enumerate(table.options) if is_halved(option)]
    return replace(
        table,
        options=tuple(table.options[i] for i in kept),
        works=tuple(table.works[i] for i in kept),
    )


def price(space: SearchSpace, plan: Plan) -> tuple[float, bool]:
    """Seconds per iteration of a plan, whoever made it, and whether it fits the memory.

    Every search of the benchmark is judged by this function alone.

    Raises:
        InvalidValueError: the plan is not one of the task.
    """
    pipeline = space.pipeline
    check_plan(plan, pipeline.workload, space.world_size)
    over = float(pipeline.overflow_bytes(pipeline.plan_work(plan), FITTING))
    return pipeline.estimate(plan).time.time_s, over <= 0
