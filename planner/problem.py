"""What is asked: a workload on a topology under constraints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from costmodels.errors import require
from costmodels.fields import settle
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.support.kinds import require_amount, require_kind

PLAN_HINT: Final = "planner.load_plan(...).plan reads one, and the plan of a result is result.plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConstraint:
    """Limits on the options of the tables whose name matches ``pattern`` (shell-style wildcards).

    Empty tuples mean no limit. ``pairs`` lists the allowed combinations of a sharding type and a
    kernel, where not every allowed type goes with every allowed kernel. ``min_column_width``
    forbids narrower column pieces.
    """

    pattern: str
    sharding_types: tuple[ShardingType, ...] = ()
    kernels: tuple[ComputeKernel, ...] = ()
    ranks: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    min_column_width: int = 4
    cache_load_factors: tuple[float, ...] = ()
    pairs: tuple[tuple[ShardingType, ComputeKernel], ...] = ()

    def __post_init__(self) -> None:
        """Bring the fields to their kinds, and refuse a width that no piece has."""
        settle(self, f"constraint {self.pattern!r}: ")
        require(
            self.min_column_width >= 1,
            f"constraint {self.pattern!r}: min_column_width must be at least 1, got "
            f"{self.min_column_width}",
        )

    def allows_pair(self, sharding_type: ShardingType, kernel: ComputeKernel) -> bool:
        """Whether the rule on combinations leaves this one."""
        return not self.pairs or (sharding_type, kernel) in self.pairs

    def matches(self, table: str) -> bool:
        """Whether the pattern covers ``table``."""
        return fnmatchcase(table, self.pattern)


class Level(StrEnum):
    """Where a rule counts: on each rank, or on each host."""

    RANK = "rank"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroup:
    """Tables, by shell-style patterns, that share one rank or host, or of which no two do."""

    patterns: tuple[str, ...]
    level: Level = Level.RANK

    def __post_init__(self) -> None:
        """Bring the fields to their kinds."""
        settle(self, "constraint together or apart: ")

    def matches(self, table: str) -> bool:
        """Whether a pattern covers ``table``."""
        return any(fnmatchcase(table, pattern) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimit:
    """At most ``most`` tables, or shards, on each rank or host.

    Row blocks and copies on all ranks count wherever they are. ``patterns`` choose whose are
    counted.
    """

    most: int
    level: Level = Level.RANK
    counts_shards: bool = False
    patterns: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        """Bring the fields to their kinds."""
        settle(self, "constraint on counts: ")

    def matches(self, table: str) -> bool:
        """Whether shards of ``table`` count."""
        return any(fnmatchcase(table, pattern) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """At most so many bytes of a device (level rank) or of a host's DDR; no places mean all."""

    most_bytes: float
    level: Level
    places: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Bring the fields to their kinds."""
        settle(self, "constraint on memory: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """All limits of a search; several that match one table hold together.

    ``together`` keeps the tables of a group on one place, ``apart`` keeps any two of them off the
    same one; ``counts`` limits tables or shards per place; ``memory`` what a place may hold.
    """

    tables: tuple[TableConstraint, ...] = ()
    sharding_types: tuple[ShardingType, ...] = tuple(ShardingType)
    kernels: tuple[ComputeKernel, ...] = tuple(ComputeKernel)
    together: tuple[TableGroup, ...] = ()
    apart: tuple[TableGroup, ...] = ()
    counts: tuple[CountLimit, ...] = ()
    memory: tuple[MemoryLimit, ...] = ()

    def __post_init__(self) -> None:
        """Bring the fields to their kinds."""
        settle(self, "constraints: ")

    def for_table(self, table: str) -> tuple[TableConstraint, ...]:
        """The constraints that cover ``table``."""
        return tuple(c for c in self.tables if c.matches(table))

    def limited(self, topology: Topology) -> Topology:
        """The topology with the memory that the rules leave of it."""
        if not self.memory:
            return topology
        device, host = topology.hbm_capacities(), topology.ddr_capacities()
        for rule in self.memory:
            sizes = device if rule.level is Level.RANK else host
            there = [p for p in rule.places if p < len(sizes)]
            at = there if rule.places else slice(None)
            sizes[at] = np.minimum(sizes[at], rule.most_bytes)
        return replace(
            topology,
            hbm_capacity_by_rank_bytes=tuple(device.tolist()),
            ddr_capacity_by_host_bytes=tuple(host.tolist()),
        )


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimit:
    """How far a plan may lie from the one in use. None means no limit.

    Bytes are weights and optimizer state of cells that a rank holds in the new plan and not in
    ``start``; a table moves if any rank has to receive some. Where ranks hold less than ``start``
    says, because a host was lost, ``held`` has the shards that are there, and the others are
    received wherever they go.
    """

    start: Plan
    max_bytes: float | None = None
    max_tables: int | None = None
    held: Plan | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are no numbers, and what is no plan.

        Raises:
            InvalidInputError: names the first one.
        """
        require_kind("start", self.start, Plan, PLAN_HINT)
        require_kind("held", self.held, Plan, PLAN_HINT, optional=True)
        require_amount("max_bytes", self.max_bytes)
        require_amount("max_tables", self.max_tables, whole=True)

    @property
    def present(self) -> Plan:
        """The shards that ranks have now: ``held``, or all of ``start`` where none is lost."""
        return self.held or self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """One question to the planner.

    ``scenarios`` are the same tables under other index distributions or batch sizes; a robust
    search prices plans on the workload and on each of them.
    """

    workload: Workload
    topology: Topology
    constraints: Constraints = NO_CONSTRAINTS
    move_limit: MoveLimit | None = None
    scenarios: tuple[Workload, ...] = ()
    models: CostModels | None = None
    """What prices plans; None for the models that the system names."""

    def __post_init__(self) -> None:
        """Name what stands in the place of something else, such as the name of a workload.

        Raises:
            InvalidInputError: an argument of another class; the message says what makes one.
        """
        given = (
            ("workload", self.workload, Workload, "load_workload"),
            ("topology", self.topology, Topology, "load_system"),
            ("constraints", self.constraints, Constraints, "load_constraints"),
            *(("scenario", scenario, Workload, "load_workload") for scenario in self.scenarios),
        )
        for name, value, kind, loader in given:
            hint = f"planner.{loader}(...) reads one from a file or by the name of a shipped one"
            require_kind(name, value, kind, hint)
        moves, models = "MoveLimit(start=plan) is one", "planner.models makes them"
        require_kind("move_limit", self.move_limit, MoveLimit, moves, optional=True)
        require_kind("models", self.models, CostModels, models, optional=True)

    @property
    def has_rules(self) -> bool:
        """Whether tables depend on each other, so that not every strategy can keep to it."""
        rules = self.constraints
        return bool(rules.together or rules.apart or rules.counts or self.move_limit)
