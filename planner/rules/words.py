"""Constraints in words, close enough to the constraint file that people find them there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from costmodels import units
from costmodels.sharding import ComputeKernel, ShardingType
from planner.problem import Constraints, CountLimit, Level, MemoryLimit, TableConstraint, TableGroup

T = TypeVar("T", bound=StrEnum)

_USUAL_COLUMNS = 4
"""The least width of column pieces if no rule gives one."""


def general_words(constraints: Constraints) -> dict[str, str]:
    """Rules on all tables, by the name of their field, such as ``all tables: not grid_shard``."""
    found = {}
    if set(constraints.sharding_types) != set(ShardingType):
        found["sharding_types"] = f"all tables: {_of(constraints.sharding_types, ShardingType)}"
    if set(constraints.kernels) != set(ComputeKernel):
        found["kernels"] = f"all tables: {_of(constraints.kernels, ComputeKernel)}"
    return found


def table_words(rule: TableConstraint) -> str:
    """A rule on tables, such as ``user: row_wise, table_wise; fused; ranks 0, 1``."""
    parts = []
    if rule.sharding_types:
        parts.append(_of(rule.sharding_types, ShardingType))
    if rule.kernels:
        parts.append(_of(rule.kernels, ComputeKernel))
    if rule.pairs:
        parts.append(", ".join(f"{kind.value} with {kernel.value}" for kind, kernel in rule.pairs))
    if rule.ranks:
        parts.append(f"ranks {_listed(rule.ranks)}")
    if rule.hosts:
        parts.append(f"hosts {_listed(rule.hosts)}")
    if rule.cache_load_factors:
        parts.append(f"cached {', '.join(f'{ratio:.4g}' for ratio in rule.cache_load_factors)}")
    if rule.min_column_width != _USUAL_COLUMNS or not parts:
        parts.append(f"columns >= {rule.min_column_width}")
    return f"{rule.pattern}: {'; '.join(parts)}"


def together_words(group: TableGroup) -> str:
    """A rule that keeps tables together, such as ``together [user, item] on one rank``."""
    return f"together {_patterns(group.patterns)} on one {group.level.value}"


def apart_words(group: TableGroup) -> str:
    """A rule that keeps tables apart, such as ``apart [user, item] on different hosts``."""
    return f"apart {_patterns(group.patterns)} on different {group.level.value}s"


def count_words(limit: CountLimit) -> str:
    """A limit such as ``max_tables_per_rank 2 of [user, item]``; no names if all tables count."""
    what = "shards" if limit.counts_shards else "tables"
    whose = "" if limit.patterns == ("*",) else f" of {_patterns(limit.patterns)}"
    return f"max_{what}_per_{limit.level.value} {limit.most}{whose}"


def memory_words(limit: MemoryLimit) -> str:
    """A limit such as ``device_memory 12 GiB on ranks 0, 1``; no places if it holds for all."""
    what = "device" if limit.level is Level.RANK else "host"
    where = f" on {limit.level.value}s {_listed(limit.places)}" if limit.places else ""
    return f"{what}_memory {units.format_bytes(limit.most_bytes)}{where}"


def rules_on(table: str, constraints: Constraints) -> tuple[str, ...]:
    """Every rule that holds for a table, in words: its own, those of all tables, and memory."""
    return (
        *map(table_words, constraints.for_table(table)),
        *general_words(constraints).values(),
        *(together_words(g) for g in constraints.together if g.matches(table)),
        *(apart_words(g) for g in constraints.apart if g.matches(table)),
        *(count_words(c) for c in constraints.counts if c.matches(table)),
        *map(memory_words, constraints.memory),
    )


def _of(chosen: Sequence[T], kinds: type[T]) -> str:
    """The chosen members of an enumeration; the missing ones after "not" if they are fewer."""
    missing = [kind.value for kind in kinds if kind not in chosen]
    if 0 < len(missing) < len(set(chosen)):
        return f"not {', '.join(missing)}"
    return ", ".join(kind.value for kind in chosen)


def _patterns(patterns: Sequence[str]) -> str:
    return f"[{', '.join(patterns)}]"


def _listed(places: Sequence[int]) -> str:
    return ", ".join(map(str, places))
