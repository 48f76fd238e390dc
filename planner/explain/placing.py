"""Finds places for the shards of one table, while the rest of a plan stays as it is.

If there are few ways to place the shards of an option, all of them are tried. Otherwise the shards
are placed one after the other, each where the plan is then fastest. Another placement of all shards
together can be a few per cent faster than that.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.sharding import Plan, ShardingOption, Spread, TablePlacement, place
from planner.options.cuts import option_of
from planner.problem import MoveLimit, PlanningProblem
from planner.rules.moved_bytes import MoveBudget
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
_OVERFULL_S: Final = 1e6
"""Seconds that stand for a plan that does not fit in memory; no iteration takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An option of a table on its places, together with the rest of the plan.

    Attributes:
        places: ranks (or hosts, depending on the option's spread) of its pieces.
        work: ``[W, F]`` work of the whole plan.
        value: seconds per iteration of the whole plan; infinite if it does not fit in memory, or if
            TorchRec cannot run the pieces on these places.
    """

    places: tuple[int, ...]
    work: FloatArray
    value: float


@dataclass(slots=True, kw_only=True)
class _Begun:
    """An option whose first pieces have places already.

    Attributes:
        option: the option.
        pieces: work of all its pieces, ``[pieces, F]`` or ``[pieces, L, F]``.
        work: ``[W, F]`` work of the plan with the pieces that are placed.
        places: the places of these pieces.
        is_stuck: whether rules leave the next piece no place.
    """

    option: ShardingOption
    pieces: FloatArray
    work: FloatArray
    places: tuple[int, ...] = ()
    is_stuck: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all pieces are placed; an option that loads all ranks has none to place."""
        return self.option.is_uniform or len(self.places) == len(self.pieces)


def least_moved(placement: TablePlacement, problem: PlanningProblem, start: Plan) -> TablePlacement:
    """The placement with its equal column pieces exchanged so that ranks receive fewest bytes.

    The price of the plan stays the same.

    Args:
        placement: the placement of one table.
        problem: tables and ranks.
        start: the plan that says what ranks hold before.
    """
    from scipy.optimize import linear_sum_assignment

    topology, table = problem.topology, problem.workload.table(placement.table)
    world, local = topology.world_size, topology.local_world_size
    option = option_of(placement, table, world_size=world, local_world_size=local)
    if option is None or option.num_pieces < 2:
        return placement
    received = MoveBudget(MoveLimit(start=start), problem.workload, topology).piece_bytes(option)
    step = local if option.spread is Spread.HOSTS else 1
    places = np.array(placement.ranks[::step], dtype=np.int64) // step
    widths = np.array(option.column_widths)
    for width in np.unique(widths):
        same = np.flatnonzero(widths == width)
        _, order = linear_sum_assignment(received[np.ix_(same, places[same])])
        places[same] = places[same][order]
    where = tuple(places.tolist())
    return place(option, table.num_embeddings, where, world_size=world, local_world_size=local)


class Placer:
    """Finds places for the options of a table beside the rest of one plan.

    A place that would break a constraint on places, groups or counts is not tried.
    """

    def __init__(self, space: SearchSpace, evaluate: Evaluator, plan: Plan) -> None:
        """Count the shards of the whole plan on each rank."""
        self._space, self._evaluate = space, evaluate
        self._usage = Usage(space.rules, [None] * space.num_tables)
        self._own: list[IntArray] = []
        for index, table in enumerate(space.tables):
            ranks = np.array(plan.placement(table.table).ranks, dtype=np.int64)
            self._own.append(np.bincount(ranks, minlength=space.world_size))
            self._usage.hold(index, self._own[-1])

    def best(self, table: int, rest: FloatArray) -> Iterator[Placed | None]:
        """Place each option of a table, its pieces one after the other where the plan is fastest.

        If there are few ways to place an option's pieces, all of them are tried as well. All
        options are placed at the same time, because pricing many plans in one call takes hardly
        longer than pricing one. None stands for an option whose pieces have no places under the
        rules.

        Args:
            table: the number of the table.
            rest: ``[W, F]`` work of the plan without the table.
        """
        every = range(len(self._space.tables[table].options))
        at_once = self._at_once(rest)
        for start in range(0, len(every), at_once):
            begun = [self._begun(table, index, rest) for index in every[start : start + at_once]]
            while open_ := [b for b in begun if not b.is_stuck and not b.is_whole]:
                self._place_next(table, open_)
            ways = [self._every_way(table, one) for one in begun]
            placed = self._priced(
                way
                for one, found in zip(begun, ways, strict=True)
                for way in itertools.chain(
                    () if one.is_stuck else (one,),
                    (self._placed_at(one, places, rest) for places in found),
                )
            )
            for one, found in zip(begun, ways, strict=True):
                tried = itertools.islice(placed, len(found) + (not one.is_stuck))
                yield min(tried, key=lambda way: way.value, default=None)

    def moved(
        self, table: int, index: int, own: tuple[int, ...], rest: FloatArray
    ) -> Iterator[Placed]:
        """Every way to put one piece of an option on another place than it has.

        Args:
            table: the number of the table.
            index: the index of the option among those of the table.
            own: the places that its pieces have.
            rest: ``[W, F]`` work of the plan without the table.
        """
        option, pieces = self._space.option(table, index), self._pieces(table, index)

        def ways() -> Iterator[_Begun]:
            for i, mine in enumerate(own):
                others = own[:i] + own[i + 1 :]
                for at in self._places_left(table, option.spread, others):
                    if at != mine:
                        begun = _Begun(option=option, pieces=pieces, work=rest)
                        yield self._placed_at(begun, (*own[:i], at, *own[i + 1 :]), rest)

        return self._priced(ways())

    def placement(self, table: int, index: int, places: tuple[int, ...]) -> TablePlacement:
        """The placement of an option on these places."""
        space = self._space
        return place(
            space.option(table, index),
            space.problem.workload.tables[table].num_embeddings,
            places,
            world_size=space.world_size,
            local_world_size=space.local_world_size,
        )

    # -- private ----------------------------------------------------------------------------------

    @property
    def _local(self) -> int:
        return self._space.local_world_size

    def _pieces(self, table: int, index: int) -> FloatArray:
        """Work of the pieces, ``[pieces, F]`` or ``[pieces, L, F]``."""
        space = self._space
        return np.asarray(space.pool[space.rows[int(space.first[table]) + index]])

    def _places_left(self, table: int, spread: Spread, taken: Sequence[int]) -> list[int]:
        """The places that constraints leave to one more piece, beside the pieces already placed."""
        own, usage = self._space.tables[table], self._usage
        hosts = spread is Spread.HOSTS
        ranks = self._space.host_ranks(taken) if hosts else np.array(taken, dtype=np.int64)
        usage.hold(table, np.bincount(ranks, minlength=self._space.world_size))
        free = usage.hosts_for(table) if hosts else usage.ranks_for(table)
        usage.hold(table, self._own[table])
        return [p for p in (own.hosts if hosts else own.ranks) if free[p]]

    def _begun(self, table: int, index: int, rest: FloatArray) -> _Begun:
        """An option before its first piece is placed."""
        option, pieces = self._space.option(table, index), self._pieces(table, index)
        if not option.is_uniform:
            return _Begun(option=option, pieces=pieces, work=rest)
        hosts = len(self._places_left(table, Spread.HOSTS, ()))
        stuck = hosts < self._space.num_hosts
        return _Begun(option=option, pieces=pieces, work=rest + pieces, is_stuck=stuck)

    def _every_way(self, table: int, begun: _Begun) -> list[tuple[int, ...]]:
        """Every way to place an option's pieces that can run; empty if there are too many ways.

        Pieces of one width are equal, so that only one of their orders is listed. The list is empty
        for a single piece too, because that is tried on every place when it is placed.
        """
        option = begun.option
        if option.is_uniform or len(option.column_widths) == 1:
            return []
        places = len(self._places_left(table, option.spread, ()))
        counts = Counter(option.column_widths).values()
        if math.prod(math.comb(places + n - 1, n) for n in counts) > _FEW_WAYS:
            return []
        ways: list[tuple[int, ...]] = [()]
        for piece, width in enumerate(option.column_widths):
            alike = [i for i in range(piece) if option.column_widths[i] == width]
            ways = [
                (*way, at)
                for way in ways
                for at in self._places_left(table, option.spread, way)
                if not alike or at >= way[alike[-1]]
            ]
        return [way for way in ways if option.may_be_at(way, self._local)]

    def _placed_at(self, begun: _Begun, places: Sequence[int], rest: FloatArray) -> _Begun:
        """The option with all its pieces on these places."""
        way = replace(begun, work=rest, places=())
        for at in places:
            self._add(way, at)
        return way

    def _place_next(self, table: int, begun: list[_Begun]) -> None:
        """Put the next piece of each option on the place where the plan is then fastest.

        If the plan fits in memory with none of them, the place that leaves memory least overfull is
        taken.
        """
        allowed = []
        for one in begun:
            left = self._places_left(table, one.option.spread, one.places)
            runs = [p for p in left if one.option.may_be_at((*one.places, p), self._local)]
            one.is_stuck = not left
            allowed.append(runs or left)
        tried = (
            self._added(b, p) for b, places in zip(begun, allowed, strict=True) for p in places
        )
        values = np.concatenate([np.zeros(0), *self._values(tried)])
        ends = np.cumsum([len(places) for places in allowed])
        for one, places, own in zip(begun, allowed, np.split(values, ends[:-1]), strict=True):
            if places:
                self._add(one, places[int(own.argmin())])

    def _priced(self, begun: Iterable[_Begun]) -> Iterator[Placed]:
        """Options with all their pieces placed, and the time of the plan with each of them."""
        ahead, again = itertools.tee(begun)
        values = itertools.chain.from_iterable(self._values(b.work for b in ahead))
        for one, value in zip(again, values, strict=True):
            runs = one.option.may_be_at(one.places, self._local) and value < _OVERFULL_S
            worth = float(value) if runs else np.inf
            yield Placed(places=one.places, work=one.work, value=worth)

    def _values(self, plans: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Seconds per iteration of plans ``[W, F]``, priced in groups.

        A plan that does not fit gets more seconds than any that fits, and the more, the more bytes
        are missing.
        """
        plans = iter(plans)
        for first in plans:
            some = [first, *itertools.islice(plans, self._at_once(first) - 1)]
            work = np.stack(some)
            values = self._evaluate.values(work)
            if not np.isfinite(values).all():
                overfull = _OVERFULL_S * (1.0 + self._space.overflow_ratio(work))
                values = np.where(np.isfinite(values), values, overfull)
            yield values

    @staticmethod
    def _at_once(work: FloatArray) -> int:
        """How many plans are priced in one group."""
        return max(_FEWEST, _MOST_NUMBERS // work.size)

    def _add(self, begun: _Begun, at: int) -> None:
        """Put the next piece of an option on a place."""
        begun.work = self._added(begun, at)
        begun.places = (*begun.places, at)

    def _added(self, begun: _Begun, at: int) -> FloatArray:
        """``[W, F]`` work of the plan with the next piece of an option on a place."""
        step = self._local if begun.option.spread is Spread.HOSTS else 1
        changed = begun.work.copy()
        changed[at * step : (at + 1) * step] += begun.pieces[len(begun.places)]
        return changed
