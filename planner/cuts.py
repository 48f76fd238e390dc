"""Ways to cut a table, without kernels and places.

Left out, because another cut does the same or better:

- ``table_wise`` where ``column_wise`` is allowed: one column piece on one rank is the same shard,
  and one sharding type means one set of collectives. Likewise ``table_row_wise``, ``grid_shard``.
- ``table_column_wise`` where ``column_wise`` is allowed: its places are a subset.
- splits over hosts when there is one host and rows can be split over all ranks.
- more column pieces than ranks (or hosts).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from costmodels.sharding import ShardingType
from costmodels.torchrec_estimates.constants import MIN_COLUMN_WIDTH
from planner.problem import PlanningProblem
from planner.table_limits import TableLimits
from planner.torchrec_rules import COLUMN_MULTIPLE

Cut = tuple[ShardingType, tuple[int, ...]]
"""Sharding type and widths of the column pieces."""

_UNEVEN_COUNTS: Final = (2, 3, 4, 8, 16)
"""Numbers of column pieces tried with unequal widths where equal ones do not exist."""


def table_cuts(
    problem: PlanningProblem, limit: TableLimits, *, every: bool = False
) -> Iterator[Cut]:
    """Sharding types with column widths, dominated ones left out (see the module).

    With ``every`` only those are left out that are dominated under any cost model, and TorchRec's
    own cut is among the rest even if it has more pieces than there are ranks.
    """
    topology, whole = problem.topology, (limit.table.embedding_dim,)
    for sharding_type in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE):
        if limit.allows(sharding_type):
            yield sharding_type, whole
    yield from _rank_cuts(problem, limit)
    own = torchrec_widths(limit.table.embedding_dim, limit.min_column_width)
    if every and len(own) > len(limit.ranks) and limit.allows(ShardingType.COLUMN_WISE):
        yield ShardingType.COLUMN_WISE, own
    columns, rows = limit.allows(ShardingType.COLUMN_WISE), limit.allows(ShardingType.ROW_WISE)
    alone = topology.local_world_size == 1 and columns and not every
    if (topology.num_hosts == 1 and rows) or alone:
        return
    if limit.allows(ShardingType.GRID_SHARD):
        for widths in _splits(limit, len(limit.hosts), uneven=False):
            yield ShardingType.GRID_SHARD, widths
    elif limit.allows(ShardingType.TABLE_ROW_WISE):
        yield ShardingType.TABLE_ROW_WISE, whole


def _rank_cuts(problem: PlanningProblem, limit: TableLimits) -> Iterator[Cut]:
    """Cuts whose pieces go to one rank each."""
    if limit.allows(ShardingType.COLUMN_WISE):
        for widths in _splits(limit, len(limit.ranks)):
            yield ShardingType.COLUMN_WISE, widths
        return
    table_wise = limit.allows(ShardingType.TABLE_WISE)
    if table_wise:
        yield ShardingType.TABLE_WISE, (limit.table.embedding_dim,)
    if limit.allows(ShardingType.TABLE_COLUMN_WISE):
        for widths in _splits(limit, problem.topology.local_world_size):
            if len(widths) > 1 or not table_wise:
                yield ShardingType.TABLE_COLUMN_WISE, widths


def _splits(limit: TableLimits, most: int, *, uneven: bool = True) -> Iterator[tuple[int, ...]]:
    dim = limit.table.embedding_dim
    return column_splits(dim, limit.min_column_width, most, uneven=uneven)


def column_splits(
    dim: int, min_width: int, most: int, *, uneven: bool = True
) -> Iterator[tuple[int, ...]]:
    """Column widths of 1 to ``most`` pieces: multiples of 4, at least ``min_width`` wide.

    Every number of equal pieces; where the columns do not divide, a few numbers of pieces whose
    widths differ by 4.
    """
    yield (dim,)
    units = dim // COLUMN_MULTIPLE
    if dim % COLUMN_MULTIPLE:
        return
    for count in range(2, min(most, units) + 1):
        small, larger = divmod(units, count)
        if small * COLUMN_MULTIPLE < min_width:
            return
        if larger == 0 or (uneven and count in _UNEVEN_COUNTS):
            wide = ((small + 1) * COLUMN_MULTIPLE,) * larger
            yield wide + (small * COLUMN_MULTIPLE,) * (count - larger)


def torchrec_widths(dim: int, min_width: int) -> tuple[int, ...]:
    """TorchRec's cut of ``dim`` columns: the narrowest equal pieces that its rule allows.

    Multiples of 4 that divide the columns and are no narrower than 128, or than ``min_width``.
    """
    least = max(min_width, MIN_COLUMN_WIDTH)
    widths = range(least + -least % COLUMN_MULTIPLE, dim, COLUMN_MULTIPLE)
    width = next((w for w in widths if dim % w == 0), dim)
    return (width,) * (dim // width)
