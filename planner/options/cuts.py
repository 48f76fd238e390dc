"""Ways to cut a table, without kernels and places.

Some sharding types can give the same shards: a whole table on one rank is ``table_wise``,
``column_wise`` with one piece, and ``table_column_wise`` with one piece. Each of these names has
collectives of its own, and two collectives never take less time than one with the bytes of both.
If every table may have the most general name of such a group, only that name is listed
(:func:`names_to_list`). Bounds hold for the other names as well, because they price the group by a
subadditive model, and without the slow-down of compute beside communication, which more names can
make smaller. Otherwise every name is listed for every table that may have it.

Two more kinds of cuts are left out: those with more column pieces than there are ranks (or hosts),
and those with pieces of unequal widths, which TorchRec trains but cannot load from a checkpoint
(:mod:`planner.options.runtime_warnings`). A table that may use only some of the ranks is cut into
as many pieces as any other, because two pieces on one rank do not cost the same as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from costmodels.sharding import ShardingType
from costmodels.torchrec_estimates.constants import MIN_COLUMN_WIDTH
from planner.options.table_limits import TableLimits
from planner.options.torchrec_rules import COLUMN_MULTIPLE
from planner.problem import PlanningProblem

ColumnSplit = tuple[ShardingType, tuple[int, ...]]
"""Sharding type and widths of the column pieces."""

PLAIN_NAMES: Final = {
    ShardingType.COLUMN_WISE: ShardingType.TABLE_WISE,
    ShardingType.GRID_SHARD: ShardingType.TABLE_ROW_WISE,
}
"""For each general type its plain name, which it has in a plan if it splits no columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The sharding types under which cuts are listed.

    Attributes:
        stands_for: pairs of a type that is not listed, and the type that is listed in its place.
    """

    stands_for: tuple[tuple[ShardingType, ShardingType], ...] = ()

    @property
    def left_out(self) -> frozenset[ShardingType]:
        """The types that are not listed because another one stands for them."""
        return frozenset(left_out for left_out, _ in self.stands_for)

    def listed(self, sharding_type: ShardingType) -> ShardingType:
        """The type under which a cut of this type is listed."""
        return dict(self.stands_for).get(sharding_type, sharding_type)

    @property
    def plain(self) -> dict[ShardingType, ShardingType]:
        """The plain name of each listed type, for plans in which that type splits no columns."""
        names = self.stands_for
        return {k: plain for k, plain in PLAIN_NAMES.items() if (plain, k) in names}


def names_to_list(limits: Sequence[TableLimits], alike: Sequence[Sequence[ShardingType]]) -> Names:
    """Choose which of several sharding types that give the same shards are listed.

    Args:
        limits: what constraints leave to every table.
        alike: groups of types that cost the same for the same shards, the most general one first.
    """
    stands_for: dict[ShardingType, ShardingType] = {}
    for general, *others in alike:
        users = [limit for limit in limits if any(limit.allows(t) for t in (general, *others))]
        if general not in stands_for and all(limit.allows(general) for limit in users):
            covered = [t for t in others if all(_covers(limit, general, t) for limit in users)]
            stands_for.update({t: general for t in covered if t not in stands_for})
    return Names(stands_for=tuple(stands_for.items()))


def _covers(limit: TableLimits, general: ShardingType, other: ShardingType) -> bool:
    """Whether ``general`` leaves a table every kernel that ``other`` leaves it."""
    return set(limit.kernels.get(other, ())) <= set(limit.kernels.get(general, ()))


def table_cuts(
    problem: PlanningProblem, limit: TableLimits, names: Names, *, every: bool = False
) -> Iterator[ColumnSplit]:
    """Sharding types with column widths; the module says which cuts are left out.

    Args:
        problem: tables and ranks.
        limit: what constraints leave to the table.
        names: the sharding types under which cuts are listed.
        every: whether to list TorchRec's own column cut even if it has more pieces than ranks.
    """
    topology, whole = problem.topology, (limit.table.embedding_dim,)
    allowed = [t for t in ShardingType if limit.allows(t) and t not in names.left_out]
    for sharding_type in allowed:
        if sharding_type is ShardingType.COLUMN_WISE:
            found = list(_splits(limit, topology.world_size))
            own = torchrec_widths(limit.table.embedding_dim, limit.min_column_width)
            if every and own not in found:
                found.append(own)
        elif sharding_type is ShardingType.TABLE_COLUMN_WISE:
            found = list(_splits(limit, topology.local_world_size))
        elif sharding_type is ShardingType.GRID_SHARD:
            found = list(_splits(limit, topology.num_hosts))
        else:
            found = [whole]
        for widths in found:
            yield sharding_type, widths


def _splits(limit: TableLimits, most: int) -> Iterator[tuple[int, ...]]:
    return column_splits(limit.table.embedding_dim, limit.min_column_width, most)


def column_splits(dim: int, min_width: int, most: int) -> Iterator[tuple[int, ...]]:
    """Column widths of 1 to ``most`` equal pieces: multiples of 4, at least ``min_width`` wide."""
    yield (dim,)
    for count in range(2, min(most, dim // COLUMN_MULTIPLE) + 1):
        width, rest = divmod(dim, count)
        if width < min_width:
            return
        if not rest and width % COLUMN_MULTIPLE == 0:
            yield (width,) * count


def torchrec_widths(dim: int, min_width: int) -> tuple[int, ...]:
    """TorchRec's cut of ``dim`` columns: the narrowest equal pieces that its rule allows.

    Multiples of 4 that divide the columns and are no narrower than 128, or than ``min_width``.
    """
    least = max(min_width, MIN_COLUMN_WIDTH)
    widths = range(least + -least % COLUMN_MULTIPLE, dim, COLUMN_MULTIPLE)
    width = next((w for w in widths if dim % w == 0), dim)
    return (width,) * (dim // width)
