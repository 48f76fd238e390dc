"""Contradictions among constraints, found before any search and named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from costmodels.datatypes import BoolArray
from costmodels.topology import Topology
from planner.problem import Constraints, CountLimit, Level, TableGroup


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
            problems.append(f"constraint {_count(c)}: must be at least 1")
        if not any(c.matches(n) for n in names):
            problems.append(f"constraint {_count(c)}: {_show(c.patterns)} matches no table")
    for m in constraints.memory:
        bad = [p for p in m.places if not 0 <= p < places[m.level]]
        if bad:
            problems.append(
                f"constraint {'device' if m.level is Level.RANK else 'host'}_memory: {m.level}s "
                f"{bad[:5]} are outside 0..{places[m.level] - 1}"
            )
    return problems


def contradictions(
    constraints: Constraints, names: Sequence[str], allowed: BoolArray, topology: Topology
) -> list[str]:
    """One line for each set of rules that cannot hold at the same time.

    Every table needs at least one place. Tables that are kept apart (or limited in number) need
    enough different places between them; tables that are kept together need a place that all of
    them may use.

    Args:
        constraints: the rules.
        names: the names of the tables.
        allowed: ``[T, W]`` ranks that each table may use under its own limits.
        topology: ranks and hosts.
    """
    reach = {
        Level.RANK: allowed,
        Level.HOST: np.asarray(
            allowed.reshape(len(names), topology.num_hosts, -1).any(axis=-1), dtype=bool
        ),
    }
    problems = []
    for group in constraints.together:
        members = [i for i, n in enumerate(names) if group.matches(n)]
        if members and not reach[group.level][members].all(axis=0).any():
            problems.append(
                f"constraint together {_show(group.patterns)}: no {group.level} is allowed for all "
                f"of {_named(members, names)} by their own ranks and hosts; widen those limits"
            )
    problems += list(_against_each_other(constraints, names, topology))
    for level, most, members, text in _caps(constraints, names):
        stuck = _unmatched(reach[level][members], most)
        if stuck:
            tables = [members[i] for i in stuck]
            places = np.flatnonzero(reach[level][tables].any(axis=0))
            problems.append(
                f"constraint {text}: {_named(tables, names)} need more than the {len(places)} "
                f"{level}s {places[:8].tolist()} that they may use; allow more {level}s, or drop "
                "tables from the rule"
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


def _against_each_other(
    constraints: Constraints, names: Sequence[str], topology: Topology
) -> Iterator[str]:
    """Lines for tables kept together that another rule keeps apart, or limits to fewer."""
    for group in constraints.together:
        members = [n for n in names if group.matches(n)]
        for other in constraints.apart:
            both = [n for n in members if other.matches(n)]
            wider = group.level is Level.RANK or other.level is Level.HOST
            if len(both) > 1 and (wider or topology.local_world_size == 1):
                yield (
                    f"constraints together {_show(group.patterns)} (on: {group.level}) and apart "
                    f"{_show(other.patterns)} (on: {other.level}) both name {both[0]!r} and "
                    f"{both[1]!r}; drop them from one of the two"
                )
        for c in constraints.counts:
            counted = sum(c.matches(n) for n in members)
            if counted > c.most and (group.level is Level.RANK or c.level is Level.HOST):
                yield (
                    f"constraints together {_show(group.patterns)} and {_count(c)}: "
                    f"{counted} tables have to share one {c.level}; raise the limit or split the "
                    "group"
                )


def _caps(
    constraints: Constraints, names: Sequence[str]
) -> Iterator[tuple[Level, int, list[int], str]]:
    rules: list[tuple[TableGroup | CountLimit, int, str]] = [
        *((g, 1, f"apart {_show(g.patterns)}") for g in constraints.apart),
        *((c, c.most, _count(c)) for c in constraints.counts),
    ]
    for rule, most, text in rules:
        members = [i for i, n in enumerate(names) if rule.matches(n)]
        if members and most >= 1:
            yield rule.level, most, members, text


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


def _count(c: CountLimit) -> str:
    return f"max_{'shards' if c.counts_shards else 'tables'}_per_{c.level}: {c.most}"


def _named(members: Sequence[int], names: Sequence[str]) -> str:
    shown = ", ".join(repr(names[i]) for i in members[:4])
    return shown if len(members) <= 4 else f"{shown} and {len(members) - 4} more"


def _show(patterns: tuple[str, ...]) -> str:
    return f"[{', '.join(patterns)}]"
