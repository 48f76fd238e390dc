"""Places for the shards of one table, with the rest of a plan left alone.

An option whose shards have few places is tried in every way. Otherwise its shards are placed one
after the other, each where it hurts least; other places for all of them together can then be a few
per cent better.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.sharding import Plan, ShardingOption, Spread, TablePlacement, place
from planner.options.recognise import option_of
from planner.problem import MoveLimit, PlanningProblem
from planner.rules.moved_bytes import MoveBudget
from planner.rules.placement_rules import Usage
from planner.space.evaluation import Evaluator, FloatArray, IntArray, SearchSpace

_FEWEST: Final = 64
_MOST_NUMBERS: Final = 2_000_000
"""Plans priced at a time: as many as have so many figures of work together, and the fewest."""
_FEW_WAYS: Final = 64
"""Ways to place the pieces of an option up to which all are tried: 3 pieces on 6 ranks have 56."""
_OVERFULL_S: Final = 1e6
"""Seconds that stand for a plan that does not fit into memory; no iteration takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An option of a table on its places, with the rest of the plan.

    Attributes:
        places: ranks or hosts of its pieces, by the option's spread.
        work: ``[W, F]`` of the whole plan.
        value: seconds per iteration of the whole plan; infinite where it does not fit into memory,
            or where TorchRec cannot run the pieces on these places.
    """

    places: tuple[int, ...]
    work: FloatArray
    value: float


@dataclass(slots=True, kw_only=True)
class _Begun:
    """An option of which the first pieces have their places.

    Attributes:
        option: which.
        pieces: their work, ``[pieces, F]`` or ``[pieces, L, F]``.
        work: ``[W, F]`` of the plan with those that are placed.
        places: of these.
        is_stuck: whether rules leave the next piece no place.
    """

    option: ShardingOption
    pieces: FloatArray
    work: FloatArray
    places: tuple[int, ...] = ()
    is_stuck: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all pieces are placed; an option on all ranks has none to place."""
        return self.option.is_uniform or len(self.places) == len(self.pieces)


def least_moved(placement: TablePlacement, problem: PlanningProblem, start: Plan) -> TablePlacement:
    """A placement whose equal column pieces change places, so that ranks receive fewest bytes.

    That leaves the price of a plan as it is.

    Args:
        placement: of one table.
        problem: its tables and ranks.
        start: where ranks hold their shards before.
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
    """Places options of one table after another beside the rest of one plan.

    Constraints on places, groups and counts are kept: a place that would break one is not tried.
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
        """Each option of a table, its pieces one after the other where they hurt least.

        Options with few ways to place their pieces are tried in all of them beside that. Options
        are placed side by side, because many plans priced at once take hardly longer than one. None
        stands for an option to whose pieces rules leave no place.

        Args:
            table: its number.
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
        """An option with one of its pieces on another place than its own, every such way.

        Args:
            table: its number.
            index: of the option among those of the table.
            own: places of its pieces.
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
        """The placement that an option on these places is."""
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
        """Places that constraints leave to one more piece beside those that have theirs."""
        own, usage = self._space.tables[table], self._usage
        hosts = spread is Spread.HOSTS
        ranks = self._space.host_ranks(taken) if hosts else np.array(taken, dtype=np.int64)
        usage.hold(table, np.bincount(ranks, minlength=self._space.world_size))
        free = usage.hosts_for(table) if hosts else usage.ranks_for(table)
        usage.hold(table, self._own[table])
        return [p for p in (own.hosts if hosts else own.ranks) if free[p]]

    def _begun(self, table: int, index: int, rest: FloatArray) -> _Begun:
        """An option before its first piece."""
        option, pieces = self._space.option(table, index), self._pieces(table, index)
        if not option.is_uniform:
            return _Begun(option=option, pieces=pieces, work=rest)
        hosts = len(self._places_left(table, Spread.HOSTS, ()))
        stuck = hosts < self._space.num_hosts
        return _Begun(option=option, pieces=pieces, work=rest + pieces, is_stuck=stuck)

    def _every_way(self, table: int, begun: _Begun) -> list[tuple[int, ...]]:
        """Places of an option's pieces in every way that may run; none where there are too many.

        Pieces of one width are alike, so that one of their orders stands for all. A single piece
        needs no ways of its own, because it is tried on every place when it is placed.
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
        """The same option with its pieces on these places."""
        way = replace(begun, work=rest, places=(), is_stuck=False)
        for at in places:
            self._add(way, at)
        return way

    def _place_next(self, table: int, begun: list[_Begun]) -> None:
        """Give the next piece of each option the place with the fastest plan.

        Where none fits into memory, the emptiest.
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
        """Options with all their pieces, and what the plan with each of them is worth."""
        ahead, again = itertools.tee(begun)
        values = itertools.chain.from_iterable(self._values(b.work for b in ahead))
        for one, value in zip(again, values, strict=True):
            runs = one.option.may_be_at(one.places, self._local) and value < _OVERFULL_S
            worth = float(value) if runs else np.inf
            yield Placed(places=one.places, work=one.work, value=worth)

    def _values(self, plans: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Seconds per iteration of plans ``[W, F]``, some at a time.

        Of those that do not fit, more than any that fits, and the emptiest least.
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
        """Plans of which so much is held at a time."""
        return max(_FEWEST, _MOST_NUMBERS // work.size)

    def _add(self, begun: _Begun, at: int) -> None:
        """Place the next piece of an option."""
        begun.work = self._added(begun, at)
        begun.places = (*begun.places, at)

    def _added(self, begun: _Begun, at: int) -> FloatArray:
        """Work of the plan with the next piece of an option on a place."""
        step = self._local if begun.option.spread is Spread.HOSTS else 1
        changed = begun.work.copy()
        changed[at * step : (at + 1) * step] += begun.pieces[len(begun.places)]
        return changed
