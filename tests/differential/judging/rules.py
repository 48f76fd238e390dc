"""Whether plans keep the constraints: once for one plan in plain words, once for many as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Plan, TablePlacement
from planner.problem import CountLimit, Level, TableGroup
from tests.differential.case import Case, leave_of, received_bytes

_ROUNDING = 1.0 + 1e-9
MOVED_BYTES = 0.5
"""A table moves if ranks receive more than this of it; less is rounding."""


# ------------------------------------------------------------------ one plan


def broken_rules(case: Case, plan: Plan) -> list[str]:
    """The constraints, other than those on memory, that a plan breaks; one line each."""
    broken = [line for p in plan.placements for line in _broken_by_table(case, p)]
    places = {level: {p.table: _places(case, p, level) for p in plan.placements} for level in Level}
    for group in case.constraints.together:
        used = {x for table in _members(case, group) for x in places[group.level][table]}
        if len(used) > 1:
            broken.append(f"together {group.patterns}: on {group.level}s {sorted(used)}")
    for group in case.constraints.apart:
        for place in _all_places(case, group.level):
            met = [t for t in _members(case, group) if place in places[group.level][t]]
            if len(met) > 1:
                broken.append(f"apart {group.patterns}: {met} meet on {group.level} {place}")
    for limit in case.constraints.counts:
        for place in _all_places(case, limit.level):
            held = [places[limit.level][t].count(place) for t in _members(case, limit)]
            count = sum(held) if limit.counts_shards else sum(n > 0 for n in held)
            if count > limit.most:
                broken.append(f"{limit}: {count} on {limit.level} {place}")
    return broken + _broken_moves(case, plan)


def _broken_by_table(case: Case, placement: TablePlacement) -> list[str]:
    table = case.workload.table(placement.table)
    leave = leave_of(case, table)
    broken = []
    if placement.sharding_type not in leave.types:
        broken.append(f"{table.name}: type {placement.sharding_type} is not left to it")
    if placement.kernel not in leave.kernels:
        broken.append(f"{table.name}: kernel {placement.kernel} is not left to it")
    if (placement.sharding_type, placement.kernel) not in leave.pairs:
        broken.append(f"{table.name}: {placement.sharding_type} with {placement.kernel} is barred")
    outside = sorted(set(placement.ranks) - set(leave.ranks))
    if outside:
        broken.append(f"{table.name}: ranks {outside} are not left to it")
    factor = placement.cache_load_factor_ratio
    if factor is not None and leave.names_factors and factor not in leave.factors:
        broken.append(f"{table.name}: load factor {factor} is none of {leave.factors}")
    widths = {s.num_cols for s in placement.shards if s.num_cols < table.embedding_dim}
    if widths and min(widths) < leave.min_width:
        broken.append(f"{table.name}: a piece of {min(widths)} columns, least {leave.min_width}")
    return broken


def _broken_moves(case: Case, plan: Plan) -> list[str]:
    if case.moves is None:
        return []
    received = [received_bytes(case, p) for p in plan.placements]
    moved = sum(size > MOVED_BYTES for size in received)
    broken = []
    if case.moves.max_bytes is not None and sum(received) > case.moves.max_bytes * _ROUNDING:
        broken.append(f"moves {sum(received):.6g} bytes, at most {case.moves.max_bytes:.6g}")
    if case.moves.max_tables is not None and moved > case.moves.max_tables:
        broken.append(f"moves {moved} tables, at most {case.moves.max_tables}")
    return broken


def _members(case: Case, rule: TableGroup | CountLimit) -> list[str]:
    return [t.name for t in case.workload.tables if rule.matches(t.name)]


def _places(case: Case, placement: TablePlacement, level: Level) -> list[int]:
    """Rank or host of each shard; empty row blocks count."""
    if level is Level.RANK:
        return list(placement.ranks)
    return [rank // case.topology.local_world_size for rank in placement.ranks]


def _all_places(case: Case, level: Level) -> range:
    rank = level is Level.RANK
    return range(case.topology.world_size if rank else case.topology.num_hosts)


# ------------------------------------------------------------------ many plans


def shard_counts(case: Case, placed: Sequence[TablePlacement]) -> IntArray:
    """Shards of each placement on each rank, ``[n, W]``."""
    world = case.topology.world_size
    return np.array([np.bincount(p.ranks, minlength=world) for p in placed], dtype=np.int64)


def kept(case: Case, counts: Sequence[IntArray], received: Sequence[FloatArray]) -> BoolArray:
    """Which of N plans keep the rules between tables and the limit on moves.

    Args:
        case: the question.
        counts: for each table ``[N, W]`` shards on each rank.
        received: for each table ``[N]`` bytes that ranks have to receive.
    """
    good = np.ones(len(counts[0]), dtype=bool)
    names = [t.name for t in case.workload.tables]
    hosts = case.topology.num_hosts

    def at(level: Level, rule: TableGroup | CountLimit) -> IntArray:
        chosen = [c for name, c in zip(names, counts, strict=True) if rule.matches(name)]
        if level is Level.HOST:
            chosen = [c.reshape(len(c), hosts, -1).sum(axis=-1) for c in chosen]
        return np.stack(chosen, axis=1)

    for group in case.constraints.together:
        good &= (at(group.level, group) > 0).any(axis=1).sum(axis=-1) <= 1
    for group in case.constraints.apart:
        good &= ((at(group.level, group) > 0).sum(axis=1) <= 1).all(axis=-1)
    for limit in case.constraints.counts:
        held = at(limit.level, limit)
        number = held if limit.counts_shards else held > 0
        good &= (number.sum(axis=1) <= limit.most).all(axis=-1)
    if case.moves is not None and case.moves.max_bytes is not None:
        good &= np.sum(received, axis=0) <= case.moves.max_bytes * _ROUNDING
    if case.moves is not None and case.moves.max_tables is not None:
        good &= sum((r > MOVED_BYTES).astype(int) for r in received) <= case.moves.max_tables
    return good
