"""What is asked: a workload on a topology under constraints."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConstraint:
    """Limits on the options of the tables whose name matches ``pattern`` (shell-style wildcards).

    Empty tuples mean no limit. ``min_column_width`` forbids narrower column pieces.
    """

    pattern: str
    sharding_types: tuple[ShardingType, ...] = ()
    kernels: tuple[ComputeKernel, ...] = ()
    ranks: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    min_column_width: int = 4
    cache_load_factors: tuple[float, ...] = ()

    def matches(self, table: str) -> bool:
        """Whether the pattern covers ``table``."""
        return fnmatchcase(table, self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """All limits of a search; several that match one table hold together."""

    tables: tuple[TableConstraint, ...] = ()
    sharding_types: tuple[ShardingType, ...] = tuple(ShardingType)
    kernels: tuple[ComputeKernel, ...] = tuple(ComputeKernel)

    def for_table(self, table: str) -> tuple[TableConstraint, ...]:
        """The constraints that cover ``table``."""
        return tuple(c for c in self.tables if c.matches(table))


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """One question to the planner."""

    workload: Workload
    topology: Topology
    constraints: Constraints = NO_CONSTRAINTS
