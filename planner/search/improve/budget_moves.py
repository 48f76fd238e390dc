"""Chains of moves away from the plan in use, the best one first, within the limit on what moves.

Each step looks at every option of every table, its own cut too, its pieces put one after the other
where the whole iteration is shortest, as ``explain`` does, and takes the best that the limit still
allows. Where a step would cost too much, a quick placement on the least loaded ranks says which
options are looked at first.
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
"""A step has to make the iteration shorter by this share."""
_BATCH: Final = 64
"""Plans priced at a time."""

_TOGETHER: Final = 256
"""Ranks of all options together whose next piece is placed at the same time."""
_MOST_ENTRIES: Final = 2_000_000
"""Entries of work priced at once."""

_Choice = tuple[int, tuple[int, ...]]
_Cut = tuple[int, int]
"""A table and one of its options."""


class Chain(Enum):
    """Which tables a chain looks at, and which move it takes."""

    EXPLAINED = "the shortest iteration, each critical table at its best, whatever it moves"
    EVERY = "the shortest iteration"
    FRUGAL = "the most time saved for each byte received"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One table with another option and places, and what that gives."""

    table: int
    choice: _Choice
    value: float
    received_bytes: float


@dataclass(slots=True, kw_only=True)
class _Build:
    """An option of which some pieces are placed; ``work`` is that of all ranks with them."""

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
        """None is placed yet."""
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
        """Whether places are hosts."""
        return self.option.spread is Spread.HOSTS

    def added(self, place: int) -> FloatArray:
        """The work with the next piece there."""
        size = self.local_world_size if self.on_hosts else 1
        changed = self.work.copy()
        changed[place * size : (place + 1) * size] += self.pieces[len(self.places)]
        return changed

    def put(self, place: int, value: float) -> None:
        """Place the next piece."""
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
    """Offer the plans of every chain from ``start``; the meter's reading ``until_s`` ends them."""
    meter, step_share = record.evaluate.meter, schedule.chain_step_share
    for share, kind in zip(schedule.chain_shares, Chain, strict=True):
        end_s = meter.spent_s + share * (until_s - meter.spent_s)
        _Walker(space, record, kind, until_s=end_s, step_share=step_share).walk(start)


class _Walker:
    """One chain of moves."""

    def __init__(
        self, space: SearchSpace, record: Record, kind: Chain, *, until_s: float, step_share: float
    ) -> None:
        self.space, self.record, self.kind = space, record, kind
        self.until_s, self.step_share = until_s, step_share
        objective = record.evaluate.objective
        slopes = objective.always().slopes
        self._price: FloatArray = slopes @ objective.gradient(space.mean_work.mean(axis=0))

    def walk(self, start: Assignment) -> None:
        """Move tables until nothing within the limit helps or the work is done."""
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
        """The best move of one table that the limit allows; None if none helps."""
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
        """What ``explain`` names: other places or another cut for each table, whatever moves."""
        best: dict[int, _Step] = {}
        for step in found:
            if step.table not in best or step.value < best[step.table].value:
                best[step.table] = step
        return list(best.values())

    def _helps(self, step: _Step) -> bool:
        return step.value < self.value * (1 - _GAIN) and self._keeps(step)

    def _rank(self, step: _Step) -> float:
        """What the chain makes small."""
        if self.kind is not Chain.FRUGAL or not np.isfinite(self.value):
            return step.value
        return (step.value - self.value) / max(step.received_bytes, 1.0)

    def _tables(self) -> Iterator[int]:
        """Tables that the rules let move alone, those on the critical path or all."""
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
        """Every option on the least loaded ranks, priced at once; the limit is not looked at."""
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
        """Options as they were placed, and with each piece where the iteration is shortest.

        Without a look at the limit first, as ``explain`` has it; where that moves too much, on the
        places that receive little enough.
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
        """Some options of some tables, the next piece of all of them priced at once."""
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
        """Places of the next piece that TorchRec can run; all of the table's if there is none."""
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
        """By what places are compared, and the values: where none fits, the emptiest is best."""
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
        budget = self.space.rules.budget
        option = self.space.option(table, choice[0])
        received = 0.0 if budget is None else budget.table_bytes(option, choice[1])
        return _Step(table=table, choice=choice, value=value, received_bytes=received)

    def _keeps(self, step: _Step) -> bool:
        index, places = step.choice
        option = self.space.option(step.table, index)
        may_run = option.may_be_at(places, self.space.local_world_size)
        return may_run and self.usage.allows([(step.table, option, places)])

    def _moved_others(self, table: int) -> float:
        return float(self.usage.moved.sum() - self.usage.moved[table])

    def _without(self, table: int) -> FloatArray:
        return self.space.work_without(self.work, table, self.options[table], self.places[table])

    def _rows(self, table: int, index: int, places: tuple[int, ...]) -> FloatArray:
        added = np.zeros_like(self.work)
        ranks, rows = self.space.placed_rows(table, index, places)
        np.add.at(added, ranks, rows)
        return added

    def _order(self, table: int, spread: Spread, loads: FloatArray) -> IntArray:
        """Allowed ranks or hosts, the least loaded first."""
        space = self.space
        mask: BoolArray = space.may_use_rank[table]
        if spread is Spread.HOSTS:
            mask = space.may_use_host[table]
            loads = loads.reshape(space.num_hosts, -1).max(axis=-1)
        places = np.flatnonzero(mask)
        return np.asarray(places[np.argsort(loads[places], kind="stable")], dtype=np.int64)
