"""What constraints leave to each table: its options, and the ranks that its shards may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import numpy as np

from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Table
from planner.errors import InvalidInputError
from planner.options.contradictions import constraint_problems, contradictions
from planner.options.torchrec_rules import (
    COLUMN_MULTIPLE,
    column_multiple,
    legal_types_and_kernels,
    unsummed_words,
)
from planner.problem import PlanningProblem, TableConstraint
from planner.rules.placement_rules import PlacementRules

CACHE_LOAD_FACTORS: Final = (0.05, 0.1, 0.2, 0.4)
"""Shares of a table that a cache may keep on the device, if no constraint names others."""

HOST_KERNELS: Final = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """All constraints on one table put together.

    Attributes:
        table: the table.
        kernels: the sharding types that are left, each with its kernels.
        min_column_width: the least width of column pieces.
        ranks, hosts: the places that shards may use.
        cache_load_factors: the cache load factors to list.
        names_load_factors: whether constraints name these, so that no others are allowed.
        obstacle: says which rule an option breaks on all places; None if it breaks none.
    """

    table: Table
    kernels: dict[ShardingType, tuple[ComputeKernel, ...]]
    min_column_width: int
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    cache_load_factors: tuple[float, ...]
    names_load_factors: bool
    obstacle: Callable[[ShardingOption], str | None]

    def allows(self, sharding_type: ShardingType) -> bool:
        """Whether constraints leave the sharding type."""
        return bool(self.kernels.get(sharding_type))

    def needs_host(self, sharding_type: ShardingType) -> bool:
        """Whether the sharding type is left only with kernels that keep weights in host memory."""
        return all(kernel in HOST_KERNELS for kernel in self.kernels.get(sharding_type, ()))


def table_limits(problem: PlanningProblem) -> tuple[TableLimits, ...]:
    """The limits of every table, in the workload's order.

    Raises:
        InvalidInputError: constraints match no table, name ranks that do not exist, leave a table
            without any option, or contradict each other.
    """
    names = [t.name for t in problem.workload.tables]
    problems = _unmatched(problem)
    problems += constraint_problems(problem.constraints, names, problem.topology)
    rules = PlacementRules.of(problem)
    limits = []
    for index, table in enumerate(problem.workload.tables):
        limit, wrong = _limit(problem, table, partial(rules.obstacle, index))
        limits.append(limit)
        problems += wrong
    if rules and not problems:
        allowed = np.zeros((len(names), problem.topology.world_size), dtype=bool)
        for row, limit in zip(allowed, limits, strict=True):
            row[list(limit.ranks)] = True
        problems = contradictions(rules, names, allowed)
    if problems:
        raise InvalidInputError(problems)
    return tuple(limits)


def have_host_kernels(tables: Iterable[Table], topology: Topology) -> bool:
    """Whether TorchRec has kernels in host memory for any of the tables on these ranks."""
    menus = (legal_types_and_kernels(table, topology.compute_device) for table in tables)
    return any(k in HOST_KERNELS for menu in menus for kernels in menu.values() for k in kernels)


def _unmatched(problem: PlanningProblem) -> list[str]:
    names = [t.name for t in problem.workload.tables]
    lines = [
        f"constraint {c.pattern!r} matches no table; tables are {', '.join(names[:5])}"
        + (", ..." if len(names) > 5 else "")
        for c in problem.constraints.tables
        if not any(c.matches(n) for n in names)
    ]
    for c in problem.constraints.tables:
        for kind, values, count in (
            ("ranks", c.ranks, problem.topology.world_size),
            ("hosts", c.hosts, problem.topology.num_hosts),
        ):
            bad = [v for v in values if not 0 <= v < count]
            if bad:
                lines.append(
                    f"constraint {c.pattern!r}: {kind} {bad[:5]} are outside 0..{count - 1}"
                )
    return lines


def _limit(
    problem: PlanningProblem,
    table: Table,
    obstacle: Callable[[ShardingOption], str | None],
) -> tuple[TableLimits, list[str]]:
    topology, constraints = problem.topology, problem.constraints
    rules = constraints.for_table(table.name)
    multiple = column_multiple(problem.workload)
    legal = legal_types_and_kernels(table, topology.compute_device, multiple=multiple)
    factors = _load_factors([r.cache_load_factors for r in rules])
    kernels_left = set(constraints.kernels).intersection(*(r.kernels for r in rules if r.kernels))
    kernels: dict[ShardingType, tuple[ComputeKernel, ...]] = {}
    for sharding_type, choices in legal.items():
        if sharding_type not in constraints.sharding_types:
            continue
        if any(r.sharding_types and sharding_type not in r.sharding_types for r in rules):
            continue
        left = tuple(
            k
            for k in choices
            if k in kernels_left
            and all(r.allows_pair(sharding_type, k) for r in rules)
            and (factors or k is not ComputeKernel.FUSED_UVM_CACHING)
        )
        if left:
            kernels[sharding_type] = left
    ranks, hosts = _places(
        topology.num_hosts,
        topology.local_world_size,
        tuple(r.ranks for r in rules if r.ranks),
        tuple(r.hosts for r in rules if r.hosts),
    )
    if len(ranks) < topology.world_size:
        kernels.pop(ShardingType.DATA_PARALLEL, None)
        kernels.pop(ShardingType.ROW_WISE, None)
    if not hosts:
        kernels.pop(ShardingType.TABLE_ROW_WISE, None)
        kernels.pop(ShardingType.GRID_SHARD, None)
    limit = TableLimits(
        table=table,
        kernels=kernels,
        min_column_width=max([COLUMN_MULTIPLE, *(r.min_column_width for r in rules)]),
        ranks=ranks,
        hosts=hosts,
        cache_load_factors=factors,
        names_load_factors=any(r.cache_load_factors for r in rules),
        obstacle=obstacle,
    )
    if not factors and ComputeKernel.FUSED_UVM_CACHING in kernels_left:
        named = ", ".join(repr(r.pattern) for r in rules if r.cache_load_factors)
        return limit, [
            f"table {table.name!r}: {named} name cache_load_factors that have none in common; name "
            "one in all of them"
        ]
    if kernels and ranks:
        return limit, []
    return limit, [_no_option(table, rules, tuple(legal), len(ranks))]


def _no_option(
    table: Table,
    rules: tuple[TableConstraint, ...],
    legal: tuple[ShardingType, ...],
    num_ranks: int,
) -> str:
    """Why a table has no option: its constraints, or TorchRec alone where it knows no type."""
    if not legal:
        return (
            f"table {table.name!r}: TorchRec cannot train unpooled tables of {table.embedding_dim} "
            f"columns on CPU cores, where they need a multiple of {COLUMN_MULTIPLE}; change "
            "embedding_dim"
        )
    named = ", ".join(repr(r.pattern) for r in rules) or "the general constraints"
    types, unsummed = ", ".join(legal), unsummed_words(table)
    return (
        f"table {table.name!r}: {named} leave it no option; TorchRec knows {types} for it, "
        f"ranks left: {num_ranks}; allow more sharding types, kernels or ranks"
        + f"; {unsummed}"
        * bool(unsummed)
    )


@lru_cache(maxsize=256)
def _places(
    num_hosts: int,
    local_world_size: int,
    rank_limits: tuple[tuple[int, ...], ...],
    host_limits: tuple[tuple[int, ...], ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that all limits leave, and the hosts of which they leave every rank."""
    hosts = set(range(num_hosts)).intersection(*host_limits)
    ranks = set(range(num_hosts * local_world_size)).intersection(*rank_limits)
    left = sorted(r for r in ranks if r // local_world_size in hosts)
    counts = Counter(r // local_world_size for r in left)
    return tuple(left), tuple(sorted(h for h in hosts if counts[h] == local_world_size))


def _load_factors(limits: list[tuple[float, ...]]) -> tuple[float, ...]:
    named = [set(factors) for factors in limits if factors]
    return tuple(sorted(set.intersection(*named))) if named else CACHE_LOAD_FACTORS
