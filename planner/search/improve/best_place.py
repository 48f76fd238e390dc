"""Finds places for the shards of one table, while the rest of a plan stays as it is.

If there are few ways to place the shards of an option, all of them are tried. Otherwise the shards
are placed one after the other, each where the whole objective is then least. Another placement of
all shards together can be a few per cent better than that.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import ShardingOption, Spread
from planner.rules.placement_rules import Usage
from planner.space.evaluation import Evaluator, SearchSpace

_FEWEST: Final = 64
"""Plans are priced in groups of at least this many, because each call has a fixed cost."""
_MOST_NUMBERS: Final = 2_000_000
"""Larger groups of plans have at most this many numbers of work, so that they do not take much
memory."""
_FEW_WAYS: Final = 64
"""If there are at most this many ways to place an option's pieces, all are tried. 3 equal pieces
on 6 ranks have 56."""
_OVERFULL: Final = 1e30
"""Objective that stands for a plan that does not fit in memory; others are far below it."""

Cut = tuple[int, int]
"""A table, and the index of one of its options."""


@dataclass(slots=True, kw_only=True)
class Placed:
    """An option of a table of which some or all pieces are placed, with the rest of the plan.

    Attributes:
        table: which table.
        index: which of its options.
        option: the option.
        pieces: work of all its pieces, ``[pieces, F]``, or ``[pieces, L, F]`` on hosts of L ranks.
        work: ``[W, F]`` work of the whole plan.
        places: ranks (or hosts, depending on the option's spread) of the pieces that are placed.
        value: the objective of the whole plan; infinite if it does not fit in memory, if TorchRec
            cannot run the pieces on these places, or before all pieces are placed.
        is_stuck: whether rules leave the next piece no place.
    """

    table: int
    index: int
    option: ShardingOption
    pieces: FloatArray
    work: FloatArray
    places: tuple[int, ...] = ()
    value: float = np.inf
    is_stuck: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all pieces are placed; an option that loads all ranks has none to place."""
        return self.option.is_uniform or len(self.places) == len(self.pieces)


class BestPlace:
    """Finds places for the options of a table beside the rest of one plan.

    A place that would break a constraint on places, groups or counts is not tried.

    Args:
        space: options, places and rules.
        evaluate: prices the plans that are tried.
        usage: what the plan uses of the rules that couple tables.
    """

    def __init__(self, space: SearchSpace, evaluate: Evaluator, usage: Usage) -> None:
        """Nothing is placed yet."""
        self._space, self._evaluate, self._usage = space, evaluate, usage
        self._is_ruled = bool(space.rules.caps or space.rules.unions)

    def best(
        self,
        cuts: Sequence[Cut],
        rest: Mapping[int, FloatArray],
        most_bytes: Mapping[int, float] | None = None,
    ) -> list[Placed | None]:
        """Place options, the pieces of each one after the other where the objective is least.

        If there are few ways to place an option's pieces, all of them are tried as well. All
        options are placed at the same time, because pricing many plans in one call takes hardly
        longer than pricing one.

        Args:
            cuts: the options.
            rest: for each of their tables the work of the plan without it, ``[W, F]``.
            most_bytes: for each of their tables what its shards may receive; each takes its part
                of it, or as little as it can. None for no limit.

        Returns:
            None for options whose pieces have no places under the rules.
        """
        begun = [self._begun(*cut, rest[cut[0]]) for cut in cuts]
        while open_ := [b for b in begun if not b.is_stuck and not b.is_whole]:
            self._place_next(open_, most_bytes)
        found: list[list[Placed]] = []
        for one in begun:
            ways = [] if most_bytes is not None else self._every_way(one)
            found.append([] if one.is_stuck else [one])
            found[-1] += [self._placed_at(one, way, rest[one.table]) for way in ways]
        self._price([way for ways in found for way in ways])
        return [min(ways, key=lambda way: way.value, default=None) for ways in found]

    def moved(self, cut: Cut, own: tuple[int, ...], rest: FloatArray) -> list[Placed]:
        """Every way to put one piece of an option on another place than it has.

        Args:
            cut: the option.
            own: the places that its pieces have.
            rest: ``[W, F]`` work of the plan without the table.
        """
        begun = self._begun(*cut, rest)
        found = [
            self._placed_at(begun, (*own[:i], at, *own[i + 1 :]), rest)
            for i, mine in enumerate(own)
            for at in self._places_left(begun, own[:i] + own[i + 1 :])
            if at != mine
        ]
        self._price(found)
        return found

    # -- private ----------------------------------------------------------------------------------

    def _places_left(self, begun: Placed, taken: Sequence[int]) -> list[int]:
        """The places that constraints leave to one more piece, beside the pieces already placed."""
        table, hosts = self._space.tables[begun.table], begun.option.spread is Spread.HOSTS
        places = table.hosts if hosts else table.ranks
        if not self._is_ruled:
            return list(places)
        usage, before = self._usage, self._usage.counts[begun.table].copy()
        ranks = self._space.host_ranks(taken) if hosts else np.array(taken, dtype=np.int64)
        usage.hold(begun.table, np.bincount(ranks, minlength=self._space.world_size))
        free = usage.hosts_for(begun.table) if hosts else usage.ranks_for(begun.table)
        usage.hold(begun.table, before)
        return [p for p in places if free[p]]

    def _begun(self, table: int, index: int, rest: FloatArray) -> Placed:
        """An option before its first piece is placed."""
        space = self._space
        option = space.option(table, index)
        pieces = np.asarray(space.pool[space.rows[int(space.first[table]) + index]])
        begun = Placed(table=table, index=index, option=option, pieces=pieces, work=rest)
        if option.is_uniform:
            begun.work = rest + pieces
            begun.is_stuck = len(self._places_left(begun, ())) < space.world_size
        return begun

    def _every_way(self, begun: Placed) -> list[tuple[int, ...]]:
        """Every way to place an option's pieces that can run; empty if there are too many ways.

        Pieces of one width are equal, so that only one of their orders is listed. The list is empty
        for a single piece too, because that is tried on every place when it is placed.
        """
        option = begun.option
        if option.is_uniform or len(option.column_widths) == 1:
            return []
        places = len(self._places_left(begun, ()))
        counts = Counter(option.column_widths).values()
        if math.prod(math.comb(places + n - 1, n) for n in counts) > _FEW_WAYS:
            return []
        ways: list[tuple[int, ...]] = [()]
        for piece, width in enumerate(option.column_widths):
            alike = [i for i in range(piece) if option.column_widths[i] == width]
            ways = [
                (*way, at)
                for way in ways
                for at in self._places_left(begun, way)
                if not alike or at >= way[alike[-1]]
            ]
        return [way for way in ways if option.may_be_at(way, self._space.local_world_size)]

    def _placed_at(self, begun: Placed, places: Sequence[int], rest: FloatArray) -> Placed:
        """The option with all its pieces on these places."""
        way = replace(begun, work=rest, places=(), is_stuck=False)
        for at in places:
            self._add(way, at)
        return way

    def _place_next(self, begun: list[Placed], most_bytes: Mapping[int, float] | None) -> None:
        """Put the next piece of each option on the place where the objective is then least.

        If the plan fits in memory with none of them, the place that leaves memory least overfull is
        taken.
        """
        local, allowed = self._space.local_world_size, []
        for one in begun:
            left = self._places_left(one, one.places)
            if most_bytes is not None:
                left = self._receiving_little(one, left, most_bytes[one.table])
            runs = [p for p in left if one.option.may_be_at((*one.places, p), local)]
            one.is_stuck = not left
            allowed.append(runs or left)
        values = self._values(
            self._added(b, p) for b, places in zip(begun, allowed, strict=True) for p in places
        )
        ends = np.cumsum([len(places) for places in allowed])
        for one, places, own in zip(begun, allowed, np.split(values, ends[:-1]), strict=True):
            if places:
                self._add(one, places[int(own.argmin())])

    def _receiving_little(self, one: Placed, left: list[int], most_bytes: float) -> list[int]:
        """The places where the next piece receives its part of the bytes that a table may receive.

        If it receives more everywhere, the places where it receives least.
        """
        budget = self._space.rules.budget
        if budget is None or not left:
            return left
        received, at = budget.piece_bytes(one.option), len(one.places)
        spent = sum(float(received[i, p]) for i, p in enumerate(one.places))
        part = (most_bytes - spent) / (len(one.pieces) - at)
        return [p for p in left if received[at, p] <= max(part, received[at, left].min())]

    def _price(self, ways: Sequence[Placed]) -> None:
        """Price options with all their pieces placed."""
        local = self._space.local_world_size
        for one, value in zip(ways, self._values(w.work for w in ways), strict=True):
            runs = one.option.may_be_at(one.places, local) and value < _OVERFULL
            one.value = float(value) if runs else np.inf

    def _values(self, plans: Iterable[FloatArray]) -> FloatArray:
        """The objective of plans ``[W, F]``, priced in groups.

        A plan that does not fit gets a larger value than any that fits, and the larger, the more
        bytes are missing.
        """
        found, plans = [np.zeros(0)], iter(plans)
        for first in plans:
            some = itertools.islice(plans, max(_FEWEST, _MOST_NUMBERS // first.size) - 1)
            work = np.stack([first, *some])
            values = self._evaluate.values(work)
            if not np.isfinite(values).all():
                overfull = _OVERFULL * (1.0 + self._space.overflow_ratio(work))
                values = np.where(np.isfinite(values), values, overfull)
            found.append(values)
        return np.concatenate(found)

    def _add(self, begun: Placed, at: int) -> None:
        """Put the next piece of an option on a place."""
        begun.work = self._added(begun, at)
        begun.places = (*begun.places, at)

    def _added(self, begun: Placed, at: int) -> FloatArray:
        """``[W, F]`` work of the plan with the next piece of an option on a place."""
        step = self._space.local_world_size if begun.option.spread is Spread.HOSTS else 1
        changed = begun.work.copy()
        changed[at * step : (at + 1) * step] += begun.pieces[len(begun.places)]
        return changed
