"""The question to the planner: a workload on a topology, under constraints."""

from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Self

import numpy as np

from costmodels.errors import require
from costmodels.fields import Amount, Range, settle
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.support.kinds import require_settled

CHOICES: Final[dict[str, Any]] = {"sharding_types": ShardingType, "kernels": ComputeKernel}
"""Fields of constraints that limit what a table may have, each with all that there is."""
PLAN_HINT: Final = "planner.load_plan(...).plan reads one, and the plan of a result is result.plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConstraint:
    """Limits on the options of the tables whose names match a pattern; empty tuples mean no limit.

    Attributes:
        pattern: shell-style wildcards, such as ``user_*``.
        sharding_types: the allowed ones.
        kernels: the allowed ones.
        ranks: the only ranks on which shards of the table may be.
        hosts: the only hosts on which shards of the table may be.
        min_column_width: fewest columns of a column piece.
        cache_load_factors: shares (0..1) of the rows that a cache on the device may hold.
        pairs: the allowed combinations of a sharding type and a kernel, where not every allowed
            type goes with every allowed kernel.

    Raises:
        InvalidValueError: a field is of another kind, or ``min_column_width`` is below 1.

    Example:
        >>> TableConstraint(pattern="user_*", sharding_types=("row_wise",)).matches("user_id")
        True
    """

    pattern: str
    sharding_types: tuple[ShardingType, ...] = ()
    kernels: tuple[ComputeKernel, ...] = ()
    ranks: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    min_column_width: Annotated[int, Range(1)] = 4
    cache_load_factors: tuple[float, ...] = ()
    pairs: tuple[tuple[ShardingType, ComputeKernel], ...] = ()

    def __post_init__(self) -> None:
        """Convert the fields to their types."""
        settle(self, f"constraint {self.pattern!r}: ")

    def allows_pair(self, sharding_type: ShardingType, kernel: ComputeKernel) -> bool:
        """Whether ``pairs`` allows this combination."""
        return not self.pairs or (sharding_type, kernel) in self.pairs

    def matches(self, table: str) -> bool:
        """Whether the pattern covers ``table``."""
        return fnmatchcase(table, self.pattern)


class Level(StrEnum):
    """Whether a rule holds for each rank or for each host."""

    RANK = "rank"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TablesRule:
    """A rule that couples the tables of some patterns, on each rank or on each host."""

    patterns: tuple[str, ...]
    level: Level = Level.RANK

    def __post_init__(self) -> None:
        """Convert the fields to their types."""
        settle(self, "constraint on tables: ")

    def matches(self, table: str) -> bool:
        """Whether a pattern covers ``table``."""
        return any(fnmatchcase(table, pattern) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroup(_TablesRule):
    """Tables that must share one rank or host, or of which no two may share one.

    Attributes:
        patterns: shell-style wildcards; a table whose name one of them matches is in the group.
        level: whether the rule holds for ranks or for hosts.

    Raises:
        InvalidValueError: a field is of another kind.

    Example:
        >>> group = TableGroup(patterns=("user_*",), level="host")
        >>> rules = Constraints(together=(group,))
        >>> group.matches("user_id"), group.level.value
        (True, 'host')
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimit(_TablesRule):
    """A limit on the number of tables, or of shards, on each rank or host.

    The row blocks and the copies of a table count on every rank that has one.

    Attributes:
        most: the largest number that is allowed.
        level: whether the limit holds for each rank or for each host.
        counts_shards: whether shards are counted; otherwise the tables that have one there.
        patterns: shell-style wildcards of the tables that count.

    Raises:
        InvalidValueError: a field is of another kind.

    Example:
        >>> rules = Constraints(counts=(CountLimit(most=3, counts_shards=True),))
        >>> rules.counts[0].matches("any_table")
        True
    """

    most: Annotated[int, Range(1)]
    counts_shards: bool = False
    patterns: tuple[str, ...] = ("*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A limit on what a device or a host may hold.

    Attributes:
        most_bytes: the largest number of bytes that is allowed.
        level: ``rank`` for the memory of devices, ``host`` for that of hosts.
        places: the ranks or hosts that the limit is about; empty for all.

    Raises:
        InvalidValueError: a field is of another kind, or the bytes are below 0, or 0 on a device.

    Example:
        >>> first = MemoryLimit(most_bytes=60 * 2**30, level="rank", places=(0,))
        >>> rules = Constraints(memory=(first,))
        >>> first.level.value
        'rank'
    """

    most_bytes: float
    level: Level
    places: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Convert the fields to their types, and refuse bytes that no device or host can have."""
        settle(self, "constraint on memory: ")
        rule = "device_memory: the bytes must be above 0"
        is_possible = self.most_bytes > 0
        if self.level is Level.HOST:
            rule, is_possible = "host_memory: the bytes must be 0 or more", self.most_bytes >= 0
        require(is_possible, f"constraint {rule}, got {self.most_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """All rules that a plan must keep. Where several match one table, all of them hold.

    Attributes:
        tables: limits on the options of single tables.
        sharding_types: the types that any table may have.
        kernels: the kernels that any table may have.
        together: groups of tables that must share one rank or host.
        apart: groups of tables of which no two may share a rank or host.
        counts: limits on the number of tables or shards per rank or host.
        memory: limits on the bytes that a device or a host may hold.

    Raises:
        InvalidValueError: a field is of another kind.

    Example:
        >>> rules = Constraints(tables=(TableConstraint(pattern="user_*", min_column_width=32),))
        >>> len(rules.for_table("user_id"))
        1
    """

    tables: tuple[TableConstraint, ...] = ()
    sharding_types: tuple[ShardingType, ...] = tuple(ShardingType)
    kernels: tuple[ComputeKernel, ...] = tuple(ComputeKernel)
    together: tuple[TableGroup, ...] = ()
    apart: tuple[TableGroup, ...] = ()
    counts: tuple[CountLimit, ...] = ()
    memory: tuple[MemoryLimit, ...] = ()

    def __post_init__(self) -> None:
        """Convert the fields to their types."""
        settle(self, "constraints: ")

    def for_table(self, table: str) -> tuple[TableConstraint, ...]:
        """The constraints that cover ``table``."""
        return tuple(c for c in self.tables if c.matches(table))

    def limited(self, topology: Topology) -> Topology:
        """The topology with memories cut down to what the memory rules allow."""
        if not self.memory:
            return topology
        device, host = topology.hbm_capacities(), topology.ddr_capacities()
        for rule in self.memory:
            sizes = device if rule.level is Level.RANK else host
            at = [p for p in rule.places or range(len(sizes)) if p < len(sizes)]
            sizes[at] = np.minimum(sizes[at], rule.most_bytes)
        return replace(
            topology,
            hbm_capacity_by_rank_bytes=tuple(device.tolist()),
            ddr_capacity_by_host_bytes=tuple(host.tolist()),
        )


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLimit:
    """The plan in use, and how much may move to get from it to a new plan.

    What moves are the cells (weights with optimizer state) that a rank holds in the new plan and
    does not hold now. A table moves if any rank has to receive a cell of it.

    Attributes:
        start: the plan in use.
        max_bytes: most bytes that all ranks together may receive; None for no limit.
        max_tables: most tables that may move; None for no limit.

    Raises:
        InvalidInputError: a plan is something else, or a limit is no number of 0 or more.

    Example:
        >>> from planner import load_system, load_workload, plan
        >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=2)
        >>> before = plan(workload, system, max_evaluations=20, with_baselines=False)
        >>> moves = MoveLimit(start=before.plan, max_tables=0)
        >>> after = plan(workload, system, moves=moves, max_evaluations=20, with_baselines=False)
        >>> after.reshard.moved_tables
        0
    """

    start: Plan
    max_bytes: Amount | None = None
    max_tables: Annotated[int, Range(0)] | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are not numbers, and a plan that is something else.

        Raises:
            InvalidInputError: names the first wrong field.
        """
        require_settled(self, start=PLAN_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """One question to the planner: which plan is best for this workload on this topology?

    Attributes:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        constraints: rules that the plan must keep.
        move_limit: the plan in use, and how much may move from it; None for a new job.
        scenarios: the same tables with other index distributions or batch sizes. A search then
            prices each plan on the workload and on all scenarios.
        models: the cost models that price plans; None for those that the system names.

    Raises:
        InvalidInputError: a field is of another class; the message says what makes one.

    Example:
        >>> from planner import load_problem
        >>> load_problem("small_demo", "h100_sxm", gpus=8).topology.world_size
        8
    """

    workload: Workload
    topology: Topology
    constraints: Constraints = NO_CONSTRAINTS
    move_limit: MoveLimit | None = None
    scenarios: tuple[Workload, ...] = ()
    models: CostModels | None = None

    def __post_init__(self) -> None:
        """Refuse fields of another class, such as the name of a workload in place of one.

        Raises:
            InvalidInputError: an argument of another class; the message says what makes one.
        """
        reads = "planner.{}(...) reads one from a file or by the name of a shipped one".format
        require_settled(
            self,
            workload=reads("load_workload"),
            topology=reads("load_system"),
            constraints=reads("load_constraints"),
            scenarios=f"give a list; {reads('load_workload')}",
            move_limit="MoveLimit(start=plan) is one",
            models="planner.models makes them",
        )

    @property
    def limited(self) -> Self:
        """The same on the memory that the constraints leave."""
        return replace(self, topology=self.constraints.limited(self.topology))

    @property
    def has_rules(self) -> bool:
        """Whether rules make tables depend on each other, which not every strategy can keep."""
        rules = self.constraints
        return bool(rules.together or rules.apart or rules.counts or self.move_limit)
