"""Random constraints of every kind, well formed but not always possible to keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodels.sharding import ComputeKernel, ShardingType
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    TableConstraint,
    TableGroup,
)
from tests.differential.case import Case

_KINDS = ("types", "kernels", "table", "table", "table", "together", "apart", "count", "memory")
COUPLING = ("together", "apart", "count", "pin")
"""Kinds of rules that couple tables or tie them to ranks."""
_WIDTHS = (4, 8, 10, 16, 32, 64, 128)
_FACTORS = (0.01, 0.05, 0.2, 0.5, 0.9)


def draw_constraints(rng: np.random.Generator, case: Case) -> Constraints:
    """None for half of the problems, else up to three rules."""
    rules = Constraints()
    for _ in range(int(rng.choice([0, 1, 2, 3], p=[0.5, 0.28, 0.14, 0.08]))):
        rules = one_more_rule(rng, case, rules)
    return rules


def one_more_rule(
    rng: np.random.Generator,
    case: Case,
    rules: Constraints,
    kinds: tuple[str, ...] = _KINDS,
) -> Constraints:
    """The rules and one more of one of the kinds; as they are where a kind needs more tables."""
    topology, kind = case.topology, str(rng.choice(kinds))
    if kind == "types":
        return replace(rules, sharding_types=_types(rng))
    if kind == "kernels":
        return replace(rules, kernels=_kernels(rng))
    if kind == "pin":
        rule = TableConstraint(pattern=_one_name(rng, case), ranks=_some(rng, topology.world_size))
        return replace(rules, tables=(*rules.tables, rule))
    if kind == "table":
        return replace(rules, tables=(*rules.tables, _table_rule(rng, case)))
    if kind == "count":
        limit = CountLimit(
            most=int(rng.integers(1, 5)),
            level=_level(rng),
            counts_shards=bool(rng.random() < 0.5),
            patterns=("*",) if rng.random() < 0.6 else (_one_name(rng, case),),
        )
        return replace(rules, counts=(*rules.counts, limit))
    if kind == "memory":
        level = _level(rng)
        on_device = level is Level.RANK
        sizes = topology.hbm_capacities() if on_device else topology.ddr_capacities()
        few = rng.choice(len(sizes), size=int(rng.integers(1, len(sizes) + 1)), replace=False)
        memory = MemoryLimit(
            most_bytes=float(sizes.max() * rng.choice([0.05, 0.4, 0.8])),
            level=level,
            places=() if rng.random() < 0.5 else tuple(sorted(int(i) for i in few)),
        )
        return replace(rules, memory=(*rules.memory, memory))
    names = [t.name for t in case.workload.tables]
    if len(names) < 2:
        return rules
    some = sorted(rng.choice(names, size=int(rng.integers(2, len(names) + 1)), replace=False))
    every = kind == "together" and rng.random() < 0.4
    group = TableGroup(patterns=("*",) if every else tuple(str(n) for n in some), level=_level(rng))
    if kind == "together":
        return replace(rules, together=(*rules.together, group))
    return replace(rules, apart=(*rules.apart, group))


def _table_rule(rng: np.random.Generator, case: Case) -> TableConstraint:
    pattern = "*" if rng.random() < 0.3 else _one_name(rng, case)
    rule = TableConstraint(pattern=pattern)
    kind = int(rng.integers(6))
    if kind == 0:
        return replace(rule, sharding_types=_types(rng))
    if kind == 1:
        return replace(rule, kernels=_kernels(rng))
    if kind == 2:
        return replace(rule, ranks=_some(rng, case.topology.world_size))
    if kind == 3:
        return replace(rule, hosts=_some(rng, case.topology.num_hosts))
    if kind == 4:
        return replace(rule, min_column_width=int(rng.choice(_WIDTHS)))
    few = rng.choice(_FACTORS, size=int(rng.integers(1, 3)), replace=False)
    caching = (ComputeKernel.FUSED_UVM_CACHING,) if rng.random() < 0.3 else ()
    return replace(rule, cache_load_factors=tuple(sorted(few.tolist())), kernels=caching)


def _types(rng: np.random.Generator) -> tuple[ShardingType, ...]:
    every = list(ShardingType)
    size = int(rng.integers(1, len(every)))
    chosen = set(rng.choice([t.value for t in every], size=size, replace=False).tolist())
    return tuple(t for t in every if t.value in chosen)


def _kernels(rng: np.random.Generator) -> tuple[ComputeKernel, ...]:
    every = list(ComputeKernel)
    size = int(rng.integers(1, len(every)))
    chosen = set(rng.choice([k.value for k in every], size=size, replace=False).tolist())
    return tuple(k for k in every if k.value in chosen)


def _some(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    few = rng.choice(count, size=int(rng.integers(1, count + 1)), replace=False)
    return tuple(sorted(int(i) for i in few))


def _level(rng: np.random.Generator) -> Level:
    return Level.RANK if rng.random() < 0.6 else Level.HOST


def _one_name(rng: np.random.Generator, case: Case) -> str:
    tables = case.workload.tables
    return tables[int(rng.integers(len(tables)))].name
