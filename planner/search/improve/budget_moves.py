"""Chains of moves away from the plan in use, within the limit on moves.

Each step takes the best move of one table that the limit still allows. It looks at every option of
every table, also at the table's own. The pieces are placed one after the other, each where the
whole iteration is shortest, as ``explain`` does it. Since that takes long, options are first placed
quickly on the least loaded ranks, and those that are best then are looked at first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingOption, Spread
from planner.rules.placement_rules import Usage
from planner.search.base import Record
from planner.search.common.schedule import USUAL, Schedule
from planner.space.evaluation import Assignment, SearchSpace

_GAIN: Final = 1e-9
"""Share of the objective by which a step has to make it smaller; less is rounding."""
_BATCH: Final = 64
"""Quick placements that are priced together. More of them take more memory, fewer take more
calls."""

_TOGETHER: Final = 256
"""Options times ranks whose next piece is placed at the same time. More of them are priced in fewer
calls, but a step can only end after all of them."""
_MOST_ENTRIES: Final = 2_000_000
"""Numbers in the work arrays of plans that are priced together, so that memory suffices."""

_Choice = tuple[int, tuple[int, ...]]
"""The index of an option of a table, and the ranks (or hosts) of its pieces."""
_Cut = tuple[int, int]
"""A table, and the index of one of its options."""


class Chain(Enum):
    """The kinds of chains: which tables they look at, and which move each step takes.

    ``EXPLAINED`` takes of each table on the critical path only the best move, as ``explain`` names
    it; ``EVERY`` takes the move with the smallest objective; ``FRUGAL`` takes the move with the
    largest gain per byte that is received.
    """

    EXPLAINED = "the shortest iteration, each critical table at its best, whatever it moves"
    EVERY = "the shortest iteration"
    FRUGAL = "the most time saved for each byte received"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A move of one table.

    Attributes:
        table: which table.
        choice: its new option and places.
        value: the objective of the plan after it.
        received_bytes: bytes that ranks receive in it; 0 without a limit on moves.
    """

    table: int
    choice: _Choice
    value: float
    received_bytes: float


@dataclass(slots=True, kw_only=True)
class _Build:
    """An option of a table of which some pieces are placed.

    Attributes:
        table: which table.
        index: which of its options.
        option: the option.
        pieces: work of each piece: ``[pieces, F]``, or ``[pieces, L, F]`` on hosts of L ranks.
        work: ``[W, F]`` work of all ranks with the pieces that are placed.
        local_world_size: number of ranks of a host, L.
        places: ranks (or hosts) of the pieces that are placed.
        value: the objective with these pieces; infinite before the first one.
    """

    table: int
    index: int
    option: ShardingOption
    pieces: FloatArray
    work: FloatArray
    local_world_size: int
    places: list[int]
    value: float = np.inf

    @classmethod
    def of(cls, space: SearchSpace, table: int, index: int, work: FloatArray) -> _Build:
        """An option of which no piece is placed; ``work`` is that of all other tables."""
        return cls(
            table=table,
            index=index,
            option=space.option(table, index),
            pieces=space.pool[space.rows[int(space.first[table]) + index]],
            work=work,
            local_world_size=space.local_world_size,
            places=[],
        )

    @property
    def on_hosts(self) -> bool:
        """Whether the places are hosts, not ranks."""
        return self.option.spread is Spread.HOSTS

    def added(self, place: int) -> FloatArray:
        """``[W, F]`` the work with the next piece on a place."""
        size = self.local_world_size if self.on_hosts else 1
        changed = self.work.copy()
        changed[place * size : (place + 1) * size] += self.pieces[len(self.places)]
        return changed

    def put(self, place: int, value: float) -> None:
        """Put the next piece on a place; ``value`` is the objective then."""
        self.work, self.value = self.added(place), value
        self.places.append(place)


def follow_chains(
    space: SearchSpace,
    record: Record,
    start: Assignment,
    *,
    until_s: float,
    schedule: Schedule = USUAL,
) -> None:
    """Follow a chain of each kind from the plan in use, and offer the plans on the way.

    Args:
        space: options, places and rules.
        record: is offered every plan.
        start: the plan in use.
        until_s: reading of the meter, in nominal seconds, at which the last chain ends.
        schedule: how the chains share the work, and how much of it one step may take.
    """
    meter, step_share = record.evaluate.meter, schedule.turn_share
    for left, kind in zip(range(len(Chain), 0, -1), Chain, strict=True):
        end_s = meter.spent_s + (until_s - meter.spent_s) / left
        _Walker(space, record, kind, until_s=end_s, step_share=step_share).walk(start)


class _Walker:
    """Follows one chain of moves."""

    def __init__(
        self, space: SearchSpace, record: Record, kind: Chain, *, until_s: float, step_share: float
    ) -> None:
        self.space, self.record, self.kind = space, record, kind
        self.until_s, self.step_share = until_s, step_share
        objective = record.evaluate.objective
        slopes = objective.always().slopes
        self._price: FloatArray = slopes @ objective.gradient(space.mean_work.mean(axis=0))

    def walk(self, start: Assignment) -> None:
        """Move tables until no move within the limit helps, or the work is spent."""
        self.options, self.places = list(start.options), list(start.places)
        self.work = self.space.work(start)
        self.usage: Usage = self.space.usage(start)
        self.value = float(self.record.evaluate.values(self.work[None])[0])
        while not self._late:
            step = self._best_step()
            if step is None:
                return
            self._apply(step)
            assignment = Assignment(options=tuple(self.options), places=tuple(self.places))
            self.record.keep_if_good(assignment, self.value, "moves from the plan in use")

    @property
    def _late(self) -> bool:
        return self.record.stopped or self.record.evaluate.meter.spent_s >= self.until_s

    def _apply(self, step: _Step) -> None:
        index, places = step.choice
        self.work = self._without(step.table) + self._rows(step.table, index, places)
        self.options[step.table], self.places[step.table] = index, places
        self.usage.put(step.table, (self.space.option(step.table, index), places))
        self.value = step.value

    # -- one step ---------------------------------------------------------------------------------

    def _best_step(self) -> _Step | None:
        """The best move of one table that the limit allows; None if none helps.

        It ends with its share of the work left, once the first options are placed.
        """
        meter = self.record.evaluate.meter
        until_s = meter.spent_s + self.step_share * (self.until_s - meter.spent_s)
        quick = [found for t in self._tables() for found in self._quick(t)]
        found: list[_Step] = []
        quick.sort(key=lambda s: s.value)
        together = max(_TOGETHER // self.space.world_size, 1)
        for begin in range(0, len(quick), together):
            found += self._placed(quick[begin : begin + together])
            if self.record.stopped or meter.spent_s >= until_s:
                break
        if self.kind is Chain.EXPLAINED:
            found = self._best_of_each_table(found)
        return min((s for s in found if self._helps(s)), key=self._rank, default=None)

    def _best_of_each_table(self, found: list[_Step]) -> list[_Step]:
        """The best move of each table, whatever it moves: these are the ones ``explain`` names."""
        best: dict[int, _Step] = {}
        for step in found:
            if step.table not in best or step.value < best[step.table].value:
                best[step.table] = step
        return list(best.values())

    def _helps(self, step: _Step) -> bool:
        """Whether a step makes the objective smaller and keeps the rules."""
        return step.value < self.value * (1 - _GAIN) and self._keeps(step)

    def _rank(self, step: _Step) -> float:
        """What the chain makes small: the objective, or the negative gain per byte received."""
        if self.kind is not Chain.FRUGAL or not np.isfinite(self.value):
            return step.value
        return (step.value - self.value) / max(step.received_bytes, 1.0)

    def _tables(self) -> Iterator[int]:
        """The tables to look at: those with pieces on ranks of the critical path, or all."""
        ranks: set[int] | None = None
        if self.kind is Chain.EXPLAINED:
            plan = self.space.plan(
                Assignment(options=tuple(self.options), places=tuple(self.places))
            )
            path = self.space.pipeline.estimate(plan).critical_path
            ranks = {step.rank for step in path}
        for t in range(self.space.num_tables):
            where, _ = self.space.placed_rows(t, self.options[t], self.places[t])
            if ranks is None or ranks & set(where.tolist()):
                yield t

    def _quick(self, table: int) -> list[_Step]:
        """Moves of a table to every option, placed quickly on the least loaded ranks.

        The limit on moves is not looked at.
        """
        rest = self._without(table)
        loads = rest @ self._price
        choices: list[_Choice] = []
        for index in range(len(self.space.tables[table].options)):
            option = self.space.option(table, index)
            if option.is_uniform:
                choices.append((index, ()))
                continue
            order = self._order(table, option.spread, loads)
            if len(order):
                choices.append((index, tuple(int(p) for p in np.resize(order, option.num_pieces))))
        found = []
        for begin in range(0, len(choices), _BATCH):
            some = choices[begin : begin + _BATCH]
            values = self.record.evaluate.values(
                np.stack([rest + self._rows(table, *choice) for choice in some])
            )
            found += [self._step(table, c, float(v)) for c, v in zip(some, values, strict=True)]
        return found

    def _placed(self, near: Sequence[_Step]) -> Iterator[_Step]:
        """Moves to some options, with each piece where the iteration is shortest.

        The limit on moves is not looked at first, as in ``explain``. Options that move too much
        then are placed once more, on the places that receive little enough. Except in chains of
        the kind ``EXPLAINED``, the quick placements are candidates too.

        Args:
            near: the quick placements of these options.
        """
        cut: list[_Cut] = []
        for step in near:
            is_uniform = self.space.option(step.table, step.choice[0]).is_uniform
            if is_uniform or self.kind is not Chain.EXPLAINED:
                yield step
            if not is_uniform:
                cut.append((step.table, step.choice[0]))
        found = self._greedily(cut, is_frugal=False)
        yield from found
        if self.kind is not Chain.EXPLAINED:
            over = [(s.table, s.choice[0]) for s in found if not self._keeps(s)]
            yield from self._greedily(over, is_frugal=True)

    def _greedily(self, cut: Sequence[_Cut], *, is_frugal: bool) -> list[_Step]:
        """Moves to some options, placed piece by piece; the next piece of all is priced together.

        Args:
            cut: tables and options.
            is_frugal: whether pieces only go where they receive few enough bytes.
        """
        builds = [_Build.of(self.space, t, index, self._without(t)) for t, index in cut]
        for at in range(max((len(b.pieces) for b in builds), default=0)):
            growing = [b for b in builds if at < len(b.pieces)]
            places = [self._allowed(b, is_frugal=is_frugal) for b in growing]
            tried = [(b, int(p)) for b, some in zip(growing, places, strict=True) for p in some]
            ranked, values = self._tried(tried)
            ends = np.cumsum([len(some) for some in places])
            for build, some, end in zip(growing, places, ends.tolist(), strict=True):
                best = end - len(some) + int(ranked[end - len(some) : end].argmin())
                build.put(tried[best][1], float(values[best]))
        return [self._step(b.table, (b.index, tuple(b.places)), b.value) for b in builds]

    def _allowed(self, build: _Build, *, is_frugal: bool) -> IntArray:
        """The places that the next piece of an option may have.

        These are places where TorchRec can run it; if there are none, all that constraints leave
        the table.

        Args:
            build: the option, with the pieces that are placed.
            is_frugal: whether the piece may only receive its part of the bytes that the limit
                leaves; if it receives more everywhere, the places where it receives least.
        """
        space, option, budget = self.space, build.option, self.space.rules.budget
        mask = (space.may_use_host if build.on_hosts else space.may_use_rank)[build.table]
        if is_frugal and budget is not None:
            received, at = budget.piece_bytes(option), len(build.places)
            spent = sum(float(received[i, p]) for i, p in enumerate(build.places))
            left = budget.max_bytes - self._moved_others(build.table) - spent
            few = mask & (received[at] <= left / (len(build.pieces) - at))
            mask = few if few.any() else mask & (received[at] <= received[at][mask].min())
        places = np.flatnonzero(mask)
        local = space.local_world_size
        runs = [option.may_be_at((*build.places, p), local) for p in places.tolist()]
        return places[runs] if any(runs) else places

    def _tried(self, tried: Sequence[tuple[_Build, int]]) -> tuple[FloatArray, FloatArray]:
        """Price options with their next piece on a place.

        Args:
            tried: options and places.

        Returns:
            The numbers by which places are compared, and the objectives. Both are the same for a
            plan that fits into memory; otherwise the first is large, and larger the more bytes are
            over the limits, and the second is infinite.
        """
        size = max(_MOST_ENTRIES // self.work.size, 1)
        ranked, values = [np.zeros(0)], [np.zeros(0)]
        for begin in range(0, len(tried), size):
            works = np.stack([build.added(place) for build, place in tried[begin : begin + size]])
            values.append(self.record.evaluate.values(works))
            fits = np.isfinite(values[-1])
            full = 0.0 if fits.all() else 1e6 * (1.0 + self.space.overflow_ratio(works))
            ranked.append(np.where(fits, values[-1], full))
        return np.concatenate(ranked), np.concatenate(values)

    # -- parts ------------------------------------------------------------------------------------

    def _step(self, table: int, choice: _Choice, value: float) -> _Step:
        """A move of a table to an option and places, with the bytes that it receives."""
        budget = self.space.rules.budget
        option = self.space.option(table, choice[0])
        received = 0.0 if budget is None else budget.table_bytes(option, choice[1])
        return _Step(table=table, choice=choice, value=value, received_bytes=received)

    def _keeps(self, step: _Step) -> bool:
        """Whether TorchRec can run a move, and it keeps the rules and the limit on moves."""
        index, places = step.choice
        option = self.space.option(step.table, index)
        may_run = option.may_be_at(places, self.space.local_world_size)
        return may_run and self.usage.allows([(step.table, option, places)])

    def _moved_others(self, table: int) -> float:
        """Bytes that all other tables have moved."""
        return float(self.usage.moved.sum() - self.usage.moved[table])

    def _without(self, table: int) -> FloatArray:
        """``[W, F]`` the work of all other tables."""
        return self.space.work_without(self.work, table, self.options[table], self.places[table])

    def _rows(self, table: int, index: int, places: tuple[int, ...]) -> FloatArray:
        """``[W, F]`` the work of a table alone, with this option and these places."""
        added = np.zeros_like(self.work)
        ranks, rows = self.space.placed_rows(table, index, places)
        np.add.at(added, ranks, rows)
        return added

    def _order(self, table: int, spread: Spread, loads: FloatArray) -> IntArray:
        """The ranks (or hosts) that constraints leave to a table, the least loaded first."""
        space = self.space
        mask: BoolArray = space.may_use_rank[table]
        if spread is Spread.HOSTS:
            mask = space.may_use_host[table]
            loads = loads.reshape(space.num_hosts, -1).max(axis=-1)
        places = np.flatnonzero(mask)
        return np.asarray(places[np.argsort(loads[places], kind="stable")], dtype=np.int64)
