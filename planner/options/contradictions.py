"""Contradictions among constraints, found before any search and named."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from costmodels.datatypes import BoolArray, IntArray
from costmodels.topology import Topology
from planner.problem import Constraints, Level, TableGroup
from planner.rules.placement_rules import PlacementRules, count_words


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

    The list is empty if they do. Rows get their places one after the other; for each row a
    breadth-first search looks for an augmenting path, on which rows before it change their places.
    Where there is none, the rows that the search has met have too few places between them (Hall's
    theorem), and they are returned.
    """
    on_place: list[list[int]] = [[] for _ in range(reach.shape[1])]
    place_of: dict[int, int] = {}
    for row in range(len(reach)):
        came_from: dict[int, int] = {}
        queue, goal = [row], -1
        for at in queue:
            for place in (int(p) for p in np.flatnonzero(reach[at])):
                if place in came_from or goal >= 0:
                    continue
                came_from[place] = at
                goal = place if len(on_place[place]) < most else goal
                queue.extend(on_place[place])
        if goal < 0:
            return sorted(set(queue))
        while goal >= 0:
            at = came_from[goal]
            on_place[goal].append(at)
            last = place_of.get(at, -1)
            place_of[at] = goal
            if last >= 0:
                on_place[last].remove(at)
            goal = last
    return []


def _named(members: IntArray, names: Sequence[str]) -> str:
    shown = ", ".join(repr(names[i]) for i in members[:4])
    return shown if len(members) <= 4 else f"{shown} and {len(members) - 4} more"


def _show(patterns: tuple[str, ...]) -> str:
    return f"[{', '.join(patterns)}]"
