"""Local search where tables depend on each other: groups, counts, and limits on what moves.

Works on the objective itself. A *unit* is a table, or all tables of a group kept together, which
can also move as one. A move takes one or two units out and tries them elsewhere, with other options
too; every candidate is checked against the rules before it is priced, a batch of them at once.
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
from planner.search.common.schedule import USUAL, Schedule
from planner.search.construct.packing import is_tight, offer_exact_packing, offer_packings
from planner.search.improve.budget_moves import follow_chains
from planner.space.evaluation import Assignment, SearchSpace

_MOST_OPTIONS: Final = 10
_MOST_PLACES: Final = 12
_MOST_PAIRS: Final = 24
_GAIN: Final = 1e-9
_KICK: Final = 3
_WORSE: Final = 2e-3
_MOST_RETURNS: Final = 4
"""Moved tables that are tried back where they were, to make room for another move."""

Recut = dict[int, Choice]
"""New choices by table."""


def start_under_rules(
    space: SearchSpace, record: Record, *, seed: int, schedule: Schedule = USUAL
) -> None:
    """Plans that keep the rules: the one in use, packings, and a first descent from the best.

    The plan in use is offered also where nothing limits the moves away from it.
    """
    home = home_choices(space)
    if home is not None:
        known = [c for c in home if c is not None]
        if len(known) == space.num_tables:
            start = Assignment(
                options=tuple(o for o, _ in known), places=tuple(p for _, p in known)
            )
            record.consider(start, "plan in use")
            if space.rules.budget is not None:
                meter = record.evaluate.meter
                until_s = meter.spent_s + schedule.chains_share * meter.planned_s
                follow_chains(space, record, start, until_s=until_s, schedule=schedule)
    if not (space.rules or is_tight(space)):
        return
    share = schedule.packing_share
    offer_packings(space, record, share=share, first_only=not space.rules)
    if space.rules:
        meter = record.evaluate.meter
        until_s = meter.spent_s + schedule.first_descent_share * meter.planned_s
        _improve(space, record, seed=seed, patience=0, until_s=until_s)


def finish_under_rules(
    space: SearchSpace, record: Record, *, seed: int, schedule: Schedule = USUAL
) -> None:
    """After a search: the exact packing if it found nothing; with rules, more local search."""
    if record.best is None and not (record.bound is not None and np.isinf(record.bound)):
        offer_packings(space, record)
        if record.best is None:
            offer_exact_packing(space, record, seed=seed)
    if space.rules:
        patience = max(schedule.rules_kicks, space.num_tables)
        _improve(space, record, seed=seed, patience=patience, until_s=np.inf)


def _improve(
    space: SearchSpace, record: Record, *, seed: int, patience: int, until_s: float
) -> None:
    start = record.best
    if start is None or record.stopped or record.proven:
        return
    search = RuleSearch(space, record, np.random.default_rng(seed), until_s=until_s)
    search.descend(start)
    search.iterate(patience)


class RuleSearch:
    """Descends and kicks from one plan that keeps the rules."""

    def __init__(
        self,
        space: SearchSpace,
        record: Record,
        rng: np.random.Generator,
        *,
        until_s: float = np.inf,
    ) -> None:
        """Find the units; the search ends with so many seconds spent, or when the record says."""
        self.space, self.record, self.rng, self.until_s = space, record, rng, until_s
        self.units = units(space)
        self.home = home_choices(space)
        objective = record.evaluate.objective
        slopes = objective.always().slopes
        self._price: FloatArray = slopes @ objective.gradient(space.mean_work.mean(axis=0))

    def stopped(self) -> bool:
        """Whether it has to end now."""
        return self.record.stopped or self.record.evaluate.meter.spent_s >= self.until_s

    def load(self, assignment: Assignment) -> None:
        """Become this plan."""
        self.options, self.places = list(assignment.options), list(assignment.places)
        self.work = self.space.work(assignment)
        self.usage: Usage = self.space.usage(assignment)
        self.value = float(self.record.evaluate.values(self.work[None])[0])

    @property
    def assignment(self) -> Assignment:
        """The plan as a value."""
        return Assignment(options=tuple(self.options), places=tuple(self.places))

    def descend(self, start: Assignment) -> None:
        """First improvement over all units, in random order, until none helps."""
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
        """Kick a few units, descend, and go on from there unless it is clearly worse."""
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
        """The unit's tables with other options or places, those that keep the rules."""
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
        """A candidate that keeps the rules, or else with other tables back where they were."""
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
        """Options on the ranks (hosts) of least load that the rules leave."""
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
        """All tables of a group on one place, options as they are or the same for all anew."""
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
                    indices = self._some_options(t) if fresh else [self.options[t]]
                    choice = self._inside(t, indices[0], ranks, place // local, own)
                    if choice is not None:
                        picked[t] = choice
                        where, rows = space.placed_rows(t, *choice)
                        np.add.at(own, where, rows @ self._price)
                found.append(picked)
        return found

    def _inside(
        self, table: int, index: int, ranks: IntArray, host: int, loads: FloatArray
    ) -> Choice | None:
        """An option of a table on these ranks alone."""
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
        """Units that swap their whole places, where both have as many."""
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
        """The rank that all shards of these tables are on, if they are on one."""
        spreads = {self.space.option(t, self.options[t]).spread for t in tables}
        used = {p for t in tables for p in self.places[t]}
        return used.pop() if spreads == {Spread.RANKS} and len(used) == 1 else None

    def _permitted(self, candidate: Recut) -> bool:
        return all(self.space.may_use_rank[t, list(p)].all() for t, (_, p) in candidate.items())

    # -- moving -----------------------------------------------------------------------------------

    def _take_best(self, candidates: Iterator[Recut]) -> bool:
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
        if not found:
            return np.zeros(0)
        works = np.stack([self.work + self._change(c) for c in found])
        return self.record.evaluate.values(works)

    def _change(self, candidate: Recut) -> FloatArray:
        change = np.zeros_like(self.work)
        for t, choice in candidate.items():
            ranks, rows = self.space.placed_rows(t, self.options[t], self.places[t])
            np.subtract.at(change, ranks, rows)
            ranks, rows = self.space.placed_rows(t, *choice)
            np.add.at(change, ranks, rows)
        return change

    def _apply(self, candidate: Recut) -> None:
        self.work = self.work + self._change(candidate)
        for t, (index, places) in candidate.items():
            self.options[t], self.places[t] = index, places
            self.usage.put(t, (self.space.option(t, index), places))
        self.value = float(self.record.evaluate.values(self.work[None])[0])

    def _keeps(self, candidate: Recut) -> bool:
        move = [(t, self.space.option(t, i), p) for t, (i, p) in candidate.items()]
        local = self.space.local_world_size
        return all(o.may_be_at(p, local) for _, o, p in move) and self.usage.allows(move)

    # -- what to try ------------------------------------------------------------------------------

    def _some_options(self, table: int) -> list[int]:
        """The present option first, then others in random order."""
        others = list(range(len(self.space.tables[table].options)))
        others.remove(self.options[table])
        picked = self.rng.permutation(others)[: _MOST_OPTIONS - 1]
        return [self.options[table], *(int(i) for i in picked)]

    def _loads(self, without: Sequence[int]) -> FloatArray:
        """``[W]`` one number per rank: its phases, each with its general weight."""
        loads = self.work @ self._price
        for t in without:
            ranks, rows = self.space.placed_rows(t, self.options[t], self.places[t])
            np.subtract.at(loads, ranks, rows @ self._price)
        return np.asarray(loads)

    def _order(self, table: int, spread: Spread, loads: FloatArray) -> IntArray:
        """Allowed ranks or hosts, the least loaded first."""
        space = self.space
        mask: BoolArray = space.may_use_rank[table] & self.usage.ranks_for(table)
        if spread is Spread.HOSTS:
            mask = space.may_use_host[table] & self.usage.hosts_for(table)
            loads = loads.reshape(space.num_hosts, -1).max(axis=-1)
        places = np.flatnonzero(mask)
        return np.asarray(places[np.argsort(loads[places], kind="stable")], dtype=np.int64)

    def _level(self, tables: Sequence[int]) -> Level:
        levels = {u.level for u in self.space.rules.unions if u.members[list(tables)].any()}
        return Level.RANK if Level.RANK in levels else Level.HOST


def units(space: SearchSpace) -> list[tuple[int, ...]]:
    """Groups of tables kept together, and every table alone."""
    label = np.arange(space.num_tables)
    for union in space.rules.unions:
        members = np.flatnonzero(union.members)
        if len(members):
            label[np.isin(label, label[members])] = label[members[0]]
    groups = [tuple(int(t) for t in np.flatnonzero(label == i)) for i in np.unique(label)]
    return groups + [(t,) for group in groups if len(group) > 1 for t in group]
