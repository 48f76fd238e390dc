"""Places for the shards of one table, with the rest of a plan left alone.

An option's shards are placed one after the other, each where it hurts least. Where there are
several, other places for all of them together can be a few per cent better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.sharding import Plan, ShardingOption, Spread, TablePlacement, place
from planner.options.recognise import option_of
from planner.problem import MoveLimit, PlanningProblem
from planner.rules.moved_bytes import MoveBudget
from planner.rules.placement_rules import Usage
from planner.space.evaluation import Evaluator, FloatArray, IntArray, SearchSpace

_BATCH: Final = 64
"""Places priced at a time."""


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

    def best(self, table: int, index: int, rest: FloatArray) -> Placed | None:
        """Pieces one after the other where they hurt least; None where rules leave no place.

        Args:
            table: its number.
            index: of the option among those of the table.
            rest: ``[W, F]`` work of the plan without the table.
        """
        option = self._space.option(table, index)
        if option.is_uniform:
            whole = self._places_left(table, Spread.HOSTS, ())
            if len(whole) < self._space.num_hosts:
                return None
            return self._priced(table, index, (), rest)
        places: tuple[int, ...] = ()
        work = rest
        for piece in self._pieces(table, index):
            left = self._places_left(table, option.spread, places)
            if not left:
                return None
            runs = [p for p in left if option.may_be_at((*places, p), self._local)] or left
            at = self._best_place(work, piece, runs, option)
            places, work = (*places, at), self._added(work, piece, at, option)
        return self._priced(table, index, places, rest)

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
        option = self._space.option(table, index)
        for i, mine in enumerate(own):
            others = own[:i] + own[i + 1 :]
            for at in self._places_left(table, option.spread, others):
                if at != mine:
                    yield self._priced(table, index, (*own[:i], at, *own[i + 1 :]), rest)

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

    def _priced(self, table: int, index: int, places: tuple[int, ...], rest: FloatArray) -> Placed:
        option = self._space.option(table, index)
        pieces = self._pieces(table, index)
        work = rest + pieces if option.is_uniform else rest
        for piece, at in zip(pieces, places, strict=False):
            work = self._added(work, piece, at, option)
        runs = option.may_be_at(places, self._local)
        value = float(self._evaluate.values(work[None])[0]) if runs else np.inf
        return Placed(places=places, work=work, value=value)

    def _best_place(
        self, work: FloatArray, piece: FloatArray, allowed: Sequence[int], option: ShardingOption
    ) -> int:
        """The place with the fastest plan; where none fits, the emptiest."""
        best, least = allowed[0], np.inf
        for start in range(0, len(allowed), _BATCH):
            some = allowed[start : start + _BATCH]
            tried = np.stack([self._added(work, piece, p, option) for p in some])
            values = self._evaluate.values(tried)
            if not np.isfinite(values).any():
                values = 1e6 * (1.0 + self._space.overflow_ratio(tried))
            at = int(values.argmin())
            if values[at] < least:
                best, least = some[at], float(values[at])
        return best

    def _added(
        self, work: FloatArray, piece: FloatArray, at: int, option: ShardingOption
    ) -> FloatArray:
        step = self._local if option.spread is Spread.HOSTS else 1
        changed = work.copy()
        changed[at * step : (at + 1) * step] += piece
        return changed
