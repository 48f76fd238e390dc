"""Local search under rules that couple tables: groups, counts, and limits on moves.

It works on the objective itself. A *unit* is a table, or all tables of a group that rules keep
together, which can move as one too. A step takes one or two units out and tries them in
other places, with other options too. Every candidate is checked against the rules; those that keep
them are priced together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.problem import Level
from planner.rules.moved_bytes import MOVED_BYTES
from planner.rules.placement_rules import Usage
from planner.search.base import Record
from planner.search.common.home import Choice, home_choices
from planner.space.evaluation import Assignment, SearchSpace

_MOST_OPTIONS: Final = 10
"""Most options of a table that a step tries: its own, and others drawn at random. More options take
more time in each step, and fewer steps are made."""
_MOST_PLACES: Final = 12
"""Most places that a step tries for an option with one piece, those of least load."""
_MOST_PAIRS: Final = 24
"""Other units that a step tries to exchange with a unit, drawn at random."""
_GAIN: Final = 1e-9
"""Share of the objective by which a plan has to be better; less is rounding."""
_KICK: Final = 3
"""Most units that a kick puts elsewhere. More of them lead further away from a good plan."""
_WORSE: Final = 2e-3
"""Share of the objective by which a kick may end above the best plan and still be followed."""
_MOST_RETURNS: Final = 4
"""Most moved tables that are tried back where they were in the plan in use, one at a time, if a
candidate would go beyond the limit on moves."""

Recut = dict[int, Choice]
"""The new option and places of each table that a candidate changes."""


class RuleSearch:
    """Descends and kicks from one plan that keeps the rules.

    Args:
        space: options, places and rules.
        record: is offered the plans that are found.
        rng: of all random choices.
        until_s: reading of the meter, in nominal seconds, at which it ends.
    """

    def __init__(
        self,
        space: SearchSpace,
        record: Record,
        rng: np.random.Generator,
        *,
        until_s: float = np.inf,
    ) -> None:
        """Find the units."""
        self.space, self.record, self.rng, self.until_s = space, record, rng, until_s
        self.units = units(space)
        self.home = home_choices(space)
        objective = record.evaluate.objective
        slopes = objective.always().slopes
        self._price: FloatArray = slopes @ objective.gradient(space.mean_work.mean(axis=0))

    def stopped(self) -> bool:
        """Whether the search has to end, or this part of it has done its work."""
        return self.record.stopped or self.record.evaluate.meter.spent_s >= self.until_s

    def load(self, assignment: Assignment) -> None:
        """Go to a plan."""
        self.options, self.places = list(assignment.options), list(assignment.places)
        self.work = self.space.work(assignment)
        self.usage: Usage = self.space.usage(assignment)
        self.value = float(self.record.evaluate.values(self.work[None])[0])

    @property
    def assignment(self) -> Assignment:
        """The present plan."""
        return Assignment(options=tuple(self.options), places=tuple(self.places))

    def descend(self, start: Assignment) -> None:
        """Go through all units in random order and improve each, until none can be improved."""
        self.load(start)
        improved = True
        while improved and not self.stopped():
            improved = False
            for unit in self.rng.permutation(len(self.units)):
                if self.stopped():
                    break
                tables = self.units[int(unit)]
                improved |= self._take_best(self._elsewhere(tables))
                improved |= self._take_best(self._exchanges(tables))
        self.record.keep_if_good(self.assignment, self.value, "rules")

    def iterate(self, patience: int) -> None:
        """Kick a few units, descend, and go on from there unless the plan is clearly worse.

        Args:
            patience: kicks in a row without a better plan after which this ends.
        """
        best, best_value, idle = self.assignment, self.value, 0
        while idle < patience and not self.stopped() and not self.record.proven:
            for unit in self.rng.integers(0, len(self.units), int(self.rng.integers(1, _KICK + 1))):
                found = list(self._elsewhere(self.units[int(unit)]))
                fitting = [c for c, v in zip(found, self._values(found), strict=True) if v < np.inf]
                if fitting:
                    self._apply(fitting[int(self.rng.integers(len(fitting)))])
            self.descend(self.assignment)
            idle += 1
            if self.value < best_value * (1 - _GAIN):
                best, best_value, idle = self.assignment, self.value, 0
            elif self.value > best_value * (1 + _WORSE):
                self.load(best)

    # -- candidates -------------------------------------------------------------------------------

    def _elsewhere(self, tables: Sequence[int]) -> Iterator[Recut]:
        """Candidates that give the tables of a unit other options or places, and keep the rules."""
        kept = {t: self.usage.placed[t] for t in tables}
        for t in tables:
            self.usage.put(t, None)
        loads = self._loads(tables)
        found: list[Recut] = []
        if len(tables) == 1:
            found += [{tables[0]: c} for c in self._choices(tables[0], loads)]
        else:
            found += self._together(tables, loads)
        if self.home is not None:
            found.append({t: c for t in tables if (c := self.home[t]) is not None})
        for candidate in found:
            if len(candidate) == len(tables):
                yield from self._within_limit(candidate)
        for t, item in kept.items():
            self.usage.put(t, item)

    def _within_limit(self, candidate: Recut) -> Iterator[Recut]:
        """A candidate, if it keeps the rules; otherwise variants of it that move less.

        Each variant also puts one of the tables that have moved most back where it was.
        """
        if self._keeps(candidate):
            yield candidate
            return
        if self.space.rules.budget is None or self.home is None:
            return
        away = [
            int(t)
            for t in np.flatnonzero(self.usage.moved > MOVED_BYTES)
            if int(t) not in candidate
        ]
        for t in sorted(away, key=lambda t: -self.usage.moved[t])[:_MOST_RETURNS]:
            home = self.home[t]
            if home is not None and self._keeps(wider := candidate | {t: home}):
                yield wider

    def _choices(self, table: int, loads: FloatArray) -> list[Choice]:
        """Some options of a table, each on some of the ranks (hosts) of least load.

        Args:
            table: which table.
            loads: ``[W]`` load of each rank without the table.
        """
        found: list[Choice] = []
        for index in self._some_options(table):
            option = self.space.option(table, index)
            if option.is_uniform:
                found.append((index, ()))
                continue
            order = self._order(table, option.spread, loads)
            near = option.keeps_pieces_on_host
            found += [(index, p) for p in self._placings(order, option.num_pieces, near=near)]
        return found

    def _placings(self, order: IntArray, pieces: int, *, near: bool) -> list[tuple[int, ...]]:
        """Some ways to put pieces on places, which come by increasing load.

        Args:
            order: the allowed places.
            pieces: number of pieces.
            near: whether all pieces have to be on one host.
        """
        if not len(order):
            return []
        if near:
            hosts = order // self.space.local_world_size
            groups = [order[hosts == h] for h in dict.fromkeys(hosts.tolist())][:_MOST_PLACES]
            return [tuple(int(p) for p in np.resize(g, pieces)) for g in groups]
        if pieces == 1:
            return [(int(p),) for p in order[:_MOST_PLACES]]
        return [
            tuple(int(p) for p in np.resize(np.roll(order, -shift), pieces))
            for shift in range(min(len(order), 3))
        ]

    def _together(self, tables: Sequence[int], loads: FloatArray) -> list[Recut]:
        """Candidates with all tables of a group on one rank (or host), for each of them.

        On each place there is one candidate with the present options and one with other options,
        those of :meth:`_some_options` that follow the present one.

        Args:
            tables: the tables of the group.
            loads: ``[W]`` load of each rank without them.
        """
        space = self.space
        level = self._level(tables)
        size = space.world_size if level is Level.RANK else space.num_hosts
        found: list[Recut] = []
        for place in range(size):
            local = space.local_world_size
            ranks = np.array([place]) if level is Level.RANK else space.host_ranks([place])
            for fresh in (False, True):
                picked: Recut = {}
                own = loads.copy()
                for t in tables:
                    others = self._some_options(t)[1:] if fresh else []
                    index = others[0] if others else self.options[t]
                    choice = self._inside(t, index, ranks, place // local, own)
                    if choice is not None:
                        picked[t] = choice
                        where, rows = space.placed_rows(t, *choice)
                        np.add.at(own, where, rows @ self._price)
                found.append(picked)
        return found

    def _inside(
        self, table: int, index: int, ranks: IntArray, host: int, loads: FloatArray
    ) -> Choice | None:
        """An option of a table, with all pieces on some ranks; None if that is not allowed.

        Args:
            table: which table.
            index: which of its options.
            ranks: one rank, or all ranks of a host.
            host: the host of these ranks.
            loads: ``[W]`` load of each rank; pieces go to the least loaded first.
        """
        option = self.space.option(table, index)
        if option.is_uniform:
            return (index, ())
        if option.spread is Spread.HOSTS:
            home = int(ranks[0]) // self.space.local_world_size if len(ranks) > 1 else host
            ok = bool(self.space.may_use_host[table, home])
            return (index, (home,) * option.num_pieces) if ok else None
        free = ranks[self.space.may_use_rank[table, ranks]]
        if not len(free):
            return None
        order = free[np.argsort(loads[free], kind="stable")]
        return index, tuple(int(p) for p in np.resize(order, option.num_pieces))

    def _exchanges(self, tables: Sequence[int]) -> Iterator[Recut]:
        """Candidates in which a unit and another one, each on one rank, exchange their ranks."""
        for _ in range(_MOST_PAIRS):
            other = self.units[int(self.rng.integers(len(self.units)))]
            mine, theirs = self._only_place(tables), self._only_place(other)
            if mine is None or theirs is None or mine == theirs:
                continue
            swapped = {t: (self.options[t], (theirs,) * len(self.places[t])) for t in tables}
            swapped |= {t: (self.options[t], (mine,) * len(self.places[t])) for t in other}
            if self._permitted(swapped) and self._keeps(swapped):
                yield swapped

    def _only_place(self, tables: Sequence[int]) -> int | None:
        """The rank that all pieces of these tables are on; None if they are on several."""
        spreads = {self.space.option(t, self.options[t]).spread for t in tables}
        used = {p for t in tables for p in self.places[t]}
        return used.pop() if spreads == {Spread.RANKS} and len(used) == 1 else None

    def _permitted(self, candidate: Recut) -> bool:
        """Whether every table of a candidate may be on its ranks."""
        return all(self.space.may_use_rank[t, list(p)].all() for t, (_, p) in candidate.items())

    # -- moving -----------------------------------------------------------------------------------

    def _take_best(self, candidates: Iterator[Recut]) -> bool:
        """Go to the best of some candidates, if it is better than the present plan."""
        found = list(candidates)
        values = self._values(found)
        if not len(values):
            return False
        at = int(np.argmin(values))
        if not values[at] < self.value * (1 - _GAIN):
            return False
        self._apply(found[at])
        self.value = float(values[at])
        return True

    def _values(self, found: Sequence[Recut]) -> FloatArray:
        """The objective of each candidate."""
        if not found:
            return np.zeros(0)
        works = np.stack([self.work + self._change(c) for c in found])
        return self.record.evaluate.values(works)

    def _change(self, candidate: Recut) -> FloatArray:
        """``[W, F]`` the work that a candidate adds to each rank."""
        change = np.zeros_like(self.work)
        for t, choice in candidate.items():
            ranks, rows = self.space.placed_rows(t, self.options[t], self.places[t])
            np.subtract.at(change, ranks, rows)
            ranks, rows = self.space.placed_rows(t, *choice)
            np.add.at(change, ranks, rows)
        return change

    def _apply(self, candidate: Recut) -> None:
        """Go to a candidate."""
        self.work = self.work + self._change(candidate)
        for t, (index, places) in candidate.items():
            self.options[t], self.places[t] = index, places
            self.usage.put(t, (self.space.option(t, index), places))
        self.value = float(self.record.evaluate.values(self.work[None])[0])

    def _keeps(self, candidate: Recut) -> bool:
        """Whether TorchRec can run a candidate, and it keeps the rules that couple tables."""
        move = [(t, self.space.option(t, i), p) for t, (i, p) in candidate.items()]
        local = self.space.local_world_size
        return all(o.may_be_at(p, local) for _, o, p in move) and self.usage.allows(move)

    # -- what to try ------------------------------------------------------------------------------

    def _some_options(self, table: int) -> list[int]:
        """Indices of some options of a table: the present one first, then others at random."""
        others = list(range(len(self.space.tables[table].options)))
        others.remove(self.options[table])
        picked = self.rng.permutation(others)[: _MOST_OPTIONS - 1]
        return [self.options[table], *(int(i) for i in picked)]

    def _loads(self, without: Sequence[int]) -> FloatArray:
        """``[W]`` one load of each rank, without some tables.

        It is the rank's work, priced by the cut that always holds.
        """
        loads = self.work @ self._price
        for t in without:
            ranks, rows = self.space.placed_rows(t, self.options[t], self.places[t])
            np.subtract.at(loads, ranks, rows @ self._price)
        return np.asarray(loads)

    def _order(self, table: int, spread: Spread, loads: FloatArray) -> IntArray:
        """The ranks (or hosts) that rules leave to a table, the least loaded first."""
        space = self.space
        mask: BoolArray = space.may_use_rank[table] & self.usage.ranks_for(table)
        if spread is Spread.HOSTS:
            mask = space.may_use_host[table] & self.usage.hosts_for(table)
            loads = loads.reshape(space.num_hosts, -1).max(axis=-1)
        places = np.flatnonzero(mask)
        return np.asarray(places[np.argsort(loads[places], kind="stable")], dtype=np.int64)

    def _level(self, tables: Sequence[int]) -> Level:
        """Whether rules keep the tables of a group on one rank, or only on one host."""
        levels = {u.level for u in self.space.rules.unions if u.members[list(tables)].any()}
        return Level.RANK if Level.RANK in levels else Level.HOST


def units(space: SearchSpace) -> list[tuple[int, ...]]:
    """The units of a space: groups of tables that rules keep together, and every table alone."""
    label = np.arange(space.num_tables)
    for union in space.rules.unions:
        members = np.flatnonzero(union.members)
        if len(members):
            label[np.isin(label, label[members])] = label[members[0]]
    groups = [tuple(int(t) for t in np.flatnonzero(label == i)) for i in np.unique(label)]
    return groups + [(t,) for group in groups if len(group) > 1 for t in group]
