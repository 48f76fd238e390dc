"""What planners in use do: list greedies, and HugeCTR's splits.

Their plans are baselines, and starting points of the search. All of them give a shard one cost (the
splits: the weighted sum of its phases, in seconds) and balance the sums of costs over ranks. They
do not see that every phase waits for its slowest rank.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ComputeKernel, ShardingType, Spread
from costmodels.workload import Table
from planner.search.base import AbstractProposals, Record
from planner.search.common.linear import LinearModel
from planner.search.construct.packing import Packer
from planner.space.evaluation import Assignment, SearchSpace

_ALIKE: Final = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.DATA_PARALLEL)
"""Ways in which all tables of a plan may be sharded alike."""
_MOST_SPLITS: Final = 40
"""Most plans of HugeCTR's walk; each cuts one more table. More plans take time from other parts."""


def size_cost(table: Table) -> float:
    """Bytes of the weights of a table."""
    return float(table.weight_bytes)


def lookup_cost(table: Table) -> float:
    """Elements that a sample reads from a table: its columns times its pooling factor."""
    return table.embedding_dim * table.pooling_factor


def size_lookup_cost(table: Table) -> float:
    """Elements that a sample reads, times the decimal logarithm of the number of rows."""
    return lookup_cost(table) * math.log10(max(table.num_embeddings, 1))


def shard_seconds(model: LinearModel) -> FloatArray:
    """``[M]`` seconds of each row of ``space.pool``: the sum of its phases.

    Each phase counts with its slope in the cut that always holds.
    """
    phases = model.phase_maxima(model.columns)
    return np.asarray(phases @ model.objective.always().slopes[model.used])


def list_greedy(
    space: SearchSpace, costs: FloatArray, choice: IntArray | None = None
) -> Assignment:
    """Place whole tables, the dearest first, each on the rank with the least cost that has room.

    AutoShard, DreamShard and NeuroShard all compare themselves with this (their ``sharders.py``). A
    table that has no option for one rank takes the option of :func:`whole_options`.

    Args:
        space: options and places.
        costs: ``[T]`` cost of each table, in any unit.
        choice: ``[T]`` the option of each table, counted from the first of the table; None for the
            whole ones.
    """
    choice = whole_options(space) if choice is None else choice
    sizes = space.largest_device[space.first[:-1] + choice]
    order = np.lexsort((-np.arange(len(costs)), sizes, costs))[::-1]
    pieces = np.maximum(space.pieces[space.first[:-1] + choice], 1)
    each = [np.full(n, cost / n) for n, cost in zip(pieces, costs, strict=True)]
    return _placed(space, choice.tolist(), order.tolist(), each)


def whole_options(space: SearchSpace) -> IntArray:
    """``[T]`` index of the option of each table that leaves it whole on one rank.

    Where there are several, one in device memory comes first, then the one that needs least device
    memory. Where there is none, the option is chosen in the same order among all.
    """
    return _first_options(space, space.is_uniform | space.is_on_hosts | (space.pieces > 1))


def _first_options(space: SearchSpace, avoided: BoolArray) -> IntArray:
    """``[T]`` index of the first option of each table in the order of :func:`whole_options`.

    Args:
        space: options.
        avoided: ``[n]`` options that come after all others of their table.
    """
    others = np.array([o.kernel is not ComputeKernel.FUSED for o in space.options], dtype=bool)
    order = np.lexsort((space.largest_device, others, avoided, space.table_of))
    return np.asarray(order[space.first[:-1]] - space.first[:-1])


def split_walk(model: LinearModel) -> Iterator[Assignment]:
    """The plans of HugeCTR's planner.

    The first plan has whole tables, placed by decreasing cost. Each further one splits the table
    with the dearest shard once more.
    """
    space, seconds = model.space, shard_seconds(model)
    choice = whole_options(space).tolist()
    for _ in range(_MOST_SPLITS):
        flats = [int(space.first[t]) + o for t, o in enumerate(choice)]
        costs = [seconds[space.rows[flat]] for flat in flats]
        hottest, uniform = [float(own.max()) for own in costs], space.is_uniform[flats]
        order = sorted(range(len(flats)), key=lambda t: (not uniform[t], -hottest[t], t))
        yield _placed(space, choice, order, [c if c.ndim == 1 else c.max(axis=-1) for c in costs])
        for table in sorted(range(space.num_tables), key=lambda t: (-hottest[t], t)):
            finer = _next_split(space, table, choice[table])
            if finer is not None:
                choice[table] = finer
                break
        else:
            return


def _placed(
    space: SearchSpace, choice: list[int], order: list[int], costs: Sequence[FloatArray]
) -> Assignment:
    """Place one option per table in this order, each piece where the sum of costs is least."""
    packer = Packer(space)
    places: list[tuple[int, ...]] = [()] * space.num_tables
    for t in order:
        places[t] = packer.place(t, choice[t], costs[t]) or ()
    return Assignment(options=tuple(choice), places=tuple(places))


def _next_split(space: SearchSpace, table: int, index: int) -> int | None:
    """Index of the next finer option: the fewest pieces that are at least twice as many.

    Type and kernel stay the same. After the finest such option comes the row-wise one; None after
    that, or if there is none.
    """
    now = space.option(table, index)
    if now.spread is not Spread.RANKS:
        return None
    options = list(enumerate(space.tables[table].options))
    finer = [
        (o.num_pieces, i)
        for i, o in options
        if o.sharding_type is now.sharding_type
        and (o.kernel, o.cache_load_factor_ratio) == (now.kernel, now.cache_load_factor_ratio)
        and o.num_pieces >= 2 * now.num_pieces
    ]
    by_rows = ShardingType.ROW_WISE, now.kernel
    rows = (i for i, o in options if (o.sharding_type, o.kernel) == by_rows)
    return min(finer)[1] if finer else next(rows, None)


def list_plans(space: SearchSpace) -> Iterator[Assignment]:
    """The plans of the three list greedies."""
    for cost in (size_lookup_cost, lookup_cost, size_cost):
        yield list_greedy(space, np.array([cost(t) for t in space.problem.workload.tables]))


def _alike_plans(space: SearchSpace) -> Iterator[Assignment]:
    """For each of :data:`_ALIKE` that is listed, all tables in that way where they may be."""
    costs = np.array([lookup_cost(t) for t in space.problem.workload.tables])
    whole = whole_options(space)
    for sharding_type in _ALIKE:
        of_type = np.array([o.sharding_type is sharding_type for o in space.options], dtype=bool)
        if of_type.any():
            chosen = _first_options(space, ~of_type)
            may_be = of_type[space.first[:-1] + chosen]
            yield list_greedy(space, costs, np.where(may_be, chosen, whole))


def offer_first(record: Record) -> None:
    """Price a few plans before anything else is prepared, so that a search cut at once has one.

    The first is the plan which the space was made with, or the first greedy one that fits; the
    others shard all tables alike, which is hard to reach from whole tables with little work. The
    search makes the greedy plans again later, and spends its budget on them then.
    """
    space = record.evaluate.space
    if space.known is not None:
        record.consider(space.known, "quick plan")
    for found in list_plans(space):
        if record.best is not None:
            break
        record.consider(found, "greedy")
    for found in _alike_plans(space):
        if record.stopped:
            return
        record.consider(found, "all alike")


class AbstractListGreedy(AbstractProposals):
    """Whole tables by decreasing cost, each on the rank with the least cost so far.

    These are the baselines of AutoShard, DreamShard and NeuroShard. They differ in the cost of a
    table.
    """

    @staticmethod
    @abstractmethod
    def cost(table: Table) -> float:
        """The cost of a table, in any unit."""

    def proposals(self, space: SearchSpace, record: Record, seed: int) -> Iterator[Assignment]:
        """Make the one plan of this baseline; the seed has no effect."""
        del record, seed
        yield list_greedy(space, np.array([self.cost(t) for t in space.problem.workload.tables]))
