"""Contradictions among constraints, named before any search, and constraints that a plan breaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, IntArray
from costmodels.memory import ledger
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, TablePlacement
from costmodels.topology import Topology
from costmodels.units import format_bytes
from planner.problem import Constraints, Level, PlanningProblem, TableGroup
from planner.rules.placement_rules import PlacementRules, count_words, memory_words


def constraint_problems(
    constraints: Constraints, names: Sequence[str], topology: Topology
) -> list[str]:
    """One line for each rule that matches no table, too few tables, or names a missing place."""
    places = {Level.RANK: topology.world_size, Level.HOST: topology.num_hosts}
    problems = []
    for word, groups in (("together", constraints.together), ("apart", constraints.apart)):
        for group in groups:
            problems += _group_problems(word, group, names)
    for c in constraints.counts:
        if c.most < 1:
            problems.append(f"constraint {count_words(c)}: must be at least 1")
        if not any(c.matches(n) for n in names):
            problems.append(f"constraint {count_words(c)}: {_show(c.patterns)} matches no table")
    for m in constraints.memory:
        bad = [p for p in m.places if not 0 <= p < places[m.level]]
        if bad:
            problems.append(
                f"constraint {'device' if m.level is Level.RANK else 'host'}_memory: {m.level}s "
                f"{bad[:5]} are outside 0..{places[m.level] - 1}"
            )
    return problems


def contradictions(rules: PlacementRules, names: Sequence[str], allowed: BoolArray) -> list[str]:
    """One line for each set of rules that cannot hold at the same time.

    Every table needs at least one place. Tables that are kept apart (or limited in number) need
    enough different places between them; tables that are kept together need a place that all of
    them may use.

    Args:
        rules: the rules.
        names: the names of the tables.
        allowed: ``[T, W]`` ranks that each table may use under its own limits.
    """
    per_host = allowed.reshape(len(names), rules.num_hosts, -1).any(axis=-1)
    reach = {Level.RANK: allowed, Level.HOST: np.asarray(per_host, dtype=bool)}
    problems = [
        f"constraint {union.text}: no {union.level} is allowed for all of "
        f"{_named(np.flatnonzero(union.members), names)} by their own ranks and hosts; widen those "
        "limits"
        for union in rules.unions
        if not reach[union.level][union.members].all(axis=0).any()
    ]
    for union, cap in itertools.product(rules.unions, rules.caps):
        both = np.flatnonzero(union.members & cap.members)
        nested = union.level is Level.RANK or cap.level is Level.HOST
        if len(both) > cap.most and (nested or rules.local_world_size == 1):
            problems.append(
                f"constraints {union.text} and {cap.text} both name {_named(both, names)}: "
                f"{len(both)} tables have to share one {cap.level}; raise the limit, or drop "
                "tables from one of the two"
            )
    for cap in rules.caps:
        members = np.flatnonzero(cap.members)
        stuck = _unmatched(reach[cap.level][members], cap.most)
        if stuck:
            places = np.flatnonzero(reach[cap.level][members[stuck]].any(axis=0))
            problems.append(
                f"constraint {cap.text}: {_named(members[stuck], names)} need more than the "
                f"{len(places)} {cap.level}s {places[:8].tolist()} that they may use; allow more "
                f"{cap.level}s, or drop tables from the rule"
            )
    return problems


def _group_problems(word: str, group: TableGroup, names: Sequence[str]) -> list[str]:
    unknown = [p for p in group.patterns if not any(_only(p).matches(n) for n in names)]
    if unknown:
        return [f"constraint {word}: {unknown[0]!r} matches no table; check its spelling"]
    found = [n for n in names if group.matches(n)]
    if len(found) < 2:
        return [
            f"constraint {word} {_show(group.patterns)}: matches {found} alone; name two tables or "
            "more"
        ]
    return []


def _only(pattern: str) -> TableGroup:
    return TableGroup(patterns=(pattern,))


def _unmatched(reach: BoolArray, most: int) -> list[int]:
    """Rows of ``reach [m, places]`` that do not all find a place with ``most`` rows in each.

    The list is empty if they do. Where a largest matching leaves a row without a place, these are
    that row, and the rows that hold the places which it could reach if others changed theirs: they
    have too few places between them (Hall's theorem).
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    seats = csr_matrix(np.repeat(reach, most, axis=1))
    place_of = maximum_bipartite_matching(seats, perm_type="column") // most
    alone = np.flatnonzero(place_of < 0)
    stuck = np.isin(np.arange(len(reach)), alone[:1])
    while True:
        more = stuck | np.isin(place_of, np.flatnonzero(reach[stuck].any(axis=0)))
        if (more == stuck).all():
            return [int(row) for row in np.flatnonzero(stuck)]
        stuck = more


def _named(members: IntArray, names: Sequence[str]) -> str:
    shown = ", ".join(repr(names[i]) for i in members[:4])
    return shown if len(members) <= 4 else f"{shown} and {len(members) - 4} more"


def _show(patterns: tuple[str, ...]) -> str:
    return f"[{', '.join(patterns)}]"


_SHOWN: Final = 3
_ROUNDING: Final = 1e-9
"""Share of a limit on memory by which a sum of bytes may exceed it because of rounding."""


def broken_constraints(problem: PlanningProblem, plan: Plan) -> tuple[str, ...]:
    """One line for each table that breaks its constraints, and for each broken rule.

    A search never returns such a plan, but a plan that somebody else made is priced as it is. The
    first three tables are named; a last line counts the others.
    """
    constraints, topology = problem.constraints, problem.topology
    lines = []
    for placement in plan.placements:
        reasons = list(_reasons(placement, constraints, topology.local_world_size))
        if reasons:
            lines.append(f"table {placement.table!r} {' and '.join(reasons)}")
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more tables are not as asked"]
    rules = PlacementRules(constraints, [t.name for t in problem.workload.tables], topology)
    if rules and plan.placements:
        ranks = [plan.placement(t.name).ranks for t in problem.workload.tables]
        counts = np.array([np.bincount(r, minlength=topology.world_size) for r in ranks])
        lines += [f"tables do not lie as {text} asks" for text in rules.broken(counts)]
    if constraints.memory:
        lines += _overfull(problem, plan)
    return tuple(lines)


def _overfull(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """For each limit on memory that a plan breaks, a line with the first place that holds more.

    A limit on a place that there is not, which a search refuses, is a line too.
    """
    topology = problem.topology
    work = CostPipeline(problem.workload, topology).plan_work(plan)
    held = ledger(work, problem.workload, topology)
    for rule in problem.constraints.memory:
        by_rank = rule.level is Level.RANK
        used = [place.used_bytes for place in (held.ranks if by_rank else held.hosts)]
        places = rule.places or range(len(used))
        if max(places) >= len(used):
            yield f"{memory_words(rule)} is outside {rule.level}s 0..{len(used) - 1}"
        over = [p for p in places if p < len(used) and used[p] > rule.most_bytes * (1 + _ROUNDING)]
        if over:
            excess = format_bytes(used[over[0]] - rule.most_bytes)
            yield f"{rule.level} {over[0]} is {excess} over {memory_words(rule)}"


def _reasons(
    placement: TablePlacement, constraints: Constraints, local_world_size: int
) -> Iterator[str]:
    kind, kernel = placement.sharding_type, placement.kernel
    rules = constraints.for_table(placement.table)
    types = [constraints.sharding_types, *(r.sharding_types for r in rules)]
    kernels = [constraints.kernels, *(r.kernels for r in rules)]
    if any(allowed and kind not in allowed for allowed in types):
        yield f"is {kind}"
    elif any(allowed and kernel not in allowed for allowed in kernels):
        yield f"has the kernel {kernel}"
    elif not all(r.allows_pair(kind, kernel) for r in rules):
        yield f"is {kind} with the kernel {kernel}"
    if not rules:
        return
    used = set(placement.ranks)
    hosts = {rank // local_world_size for rank in used}
    for r in rules:
        if r.ranks and not used <= set(r.ranks):
            yield f"lies on rank {min(used - set(r.ranks))}"
        if r.hosts and not hosts <= set(r.hosts):
            yield f"lies on host {min(hosts - set(r.hosts))}"
    cells, least = placement.cells, max((r.min_column_width for r in rules), default=0)
    if len(np.unique(cells.col_offset)) > 1 and cells.num_cols.min() < least:
        yield f"has pieces of {cells.num_cols.min()} columns"
    cached = placement.cache_load_factor_ratio
    if cached and any(r.cache_load_factors and cached not in r.cache_load_factors for r in rules):
        yield f"keeps {cached:g} of its rows in the cache"
