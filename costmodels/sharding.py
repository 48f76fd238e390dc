"""How tables are cut, and on which ranks the pieces are.

Shards of a table are kept as columns. A row-wise table on thousands of ranks has as many shards,
and a plan has thousands of such tables; as columns they cost a few arrays, and what is counted over
them is arithmetic on arrays.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Self, cast, final

import numpy as np
from numpy.typing import ArrayLike

from costmodels.datatypes import IntArray
from costmodels.errors import refuse, require
from costmodels.workload import Table, Workload

_LARGEST: Final = 2**62


@dataclass(frozen=True, slots=True)
class Shard:
    """A rectangle of one table on one rank."""

    rank: int
    row_offset: int
    num_rows: int
    col_offset: int
    num_cols: int


@final
class Shards(Sequence[Shard]):
    """Shards as columns of whole numbers; a sequence whose items are made when they are read.

    Equal to another ``Shards``, or to a tuple, with the same shards in the same order.

    Attributes:
        rank, row_offset, num_rows, col_offset, num_cols: ``[n]``, read-only; the fields of a
            :class:`Shard`.
    """

    __slots__ = ("_hash", "col_offset", "num_cols", "num_rows", "rank", "row_offset")

    def __init__(self, *given: ArrayLike) -> None:
        """The five columns; a single number stands for that number in every shard."""
        columns = [np.asarray(c, dtype=np.int64) for c in given]
        size = max(c.size for c in columns) if all(c.size for c in columns) else 0
        columns = [c if c.shape == (size,) else np.broadcast_to(c, (size,)) for c in columns]
        for column in columns:
            column.flags.writeable = False
        self.rank, self.row_offset, self.num_rows, self.col_offset, self.num_cols = columns
        self._hash: int | None = None

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> Self:
        """From single shards.

        Raises:
            InvalidValueError: an offset or size of 2^62 or more, larger than any table.
        """
        if isinstance(shards, cls):
            return shards
        rows = [(s.rank, s.row_offset, s.num_rows, s.col_offset, s.num_cols) for s in shards]
        good = all(-_LARGEST < value < _LARGEST for row in rows for value in row)
        require(good, "ranks, offsets and sizes of shards must be below 2^62")
        return cls(*np.array(rows, dtype=np.int64).reshape(-1, 5).T.copy())

    @property
    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Rank, row offset, rows, column offset, columns."""
        return self.rank, self.row_offset, self.num_rows, self.col_offset, self.num_cols

    def __len__(self) -> int:
        """Number of shards."""
        return len(self.rank)

    def __getitem__(self, index: Any) -> Any:
        """One shard, or some of them."""
        if isinstance(index, slice):
            return Shards(*(c[index] for c in self.columns))
        return Shard(*(int(c[index]) for c in self.columns))

    def __iter__(self) -> Iterator[Shard]:
        """Each shard in turn."""
        return map(Shard, *(c.tolist() for c in self.columns))

    def __eq__(self, other: object) -> bool:
        """Whether the other holds the same shards in the same order."""
        if isinstance(other, tuple):
            return tuple(self) == other
        if not isinstance(other, Shards):
            return NotImplemented
        pairs = zip(self.columns, other.columns, strict=True)
        return len(self) == len(other) and all(a is b or np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        """Computed once."""
        if self._hash is None:
            self._hash = hash(tuple(c.tobytes() for c in self.columns))
        return self._hash

    def __repr__(self) -> str:
        """As the tuple of the shards."""
        return repr(tuple(self))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as five columns."""
        return Shards, self.columns


def _is_banded(cells: IntArray, num_embeddings: int, embedding_dim: int) -> bool:
    """Whether shards, in order of rows, then columns, fill one band of rows after the other."""
    row, rows, col, cols = cells
    ends_band = col + cols == embedding_dim
    next_row, next_col = np.where(ends_band, [row + rows, 0 * col], [row, col + cols])
    is_even = bool((ends_band[:-1] | (rows[1:] == rows[:-1])).all())
    rows_follow = np.array_equal(np.append(row, num_embeddings), np.append(0, next_row))
    cols_follow = np.array_equal(np.append(col, 0), np.append(0, next_col))
    return is_even and rows_follow and cols_follow


def _overlap(cells: IntArray) -> tuple[int, int] | None:
    """Two shards that share a cell, the first such pair, if they are in order of their rows."""
    row, rows, col, cols = cells
    for a in range(len(row)):
        later = slice(a + 1, int(np.searchsorted(row, row[a] + rows[a], side="left")))
        meets = np.flatnonzero(
            (col[later] < col[a] + cols[a]) & (col[a] < col[later] + cols[later])
        )
        if len(meets):
            return a, a + 1 + int(meets[0])
    return None


class ShardingType(StrEnum):
    """TorchRec's sharding types; the values are TorchRec's strings."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"


BY_HOSTS: Final = (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)
"""Types whose partial sums are added up inside a host first, and then sent to other hosts."""
ON_RANKS: Final = (
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_WISE,
    ShardingType.TABLE_COLUMN_WISE,
)
"""Types whose pieces are each on a rank, the most general type first."""
BY_ROWS: Final = (ShardingType.ROW_WISE, *BY_HOSTS)
"""Types that cut tables by rows, so that partial sums have to be added up."""


class ComputeKernel(StrEnum):
    """TorchRec's compute kernels; the values are TorchRec's strings."""

    DENSE = "dense"
    FUSED = "fused"
    FUSED_UVM = "fused_uvm"
    FUSED_UVM_CACHING = "fused_uvm_caching"


class Spread(StrEnum):
    """What has to be chosen when an option is placed.

    ``uniform``: nothing, every rank has a part. ``ranks``: a rank for each column piece. ``hosts``:
    a host for each column piece, which is then cut by rows over the ranks of the host.
    """

    UNIFORM = "uniform"
    RANKS = "ranks"
    HOSTS = "hosts"


SPREAD: Final = {
    **dict.fromkeys((ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE), Spread.UNIFORM),
    **dict.fromkeys(ON_RANKS, Spread.RANKS),
    **dict.fromkeys(BY_HOSTS, Spread.HOSTS),
}
"""What has to be chosen for each type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTerms:
    """What an option and its placements have in common.

    Attributes:
        table: its name.
        sharding_type: how it is cut.
        kernel: the code that looks it up, and where its memory is.
        cache_load_factor_ratio: share (0..1) of the rows that the cache holds; set for the caching
            kernel only.

    Raises:
        InvalidValueError: kernel and type do not go together, or the share is out of range.
    """

    table: str
    sharding_type: ShardingType
    kernel: ComputeKernel
    cache_load_factor_ratio: float | None = None

    def __post_init__(self) -> None:
        """Check kernel against type, and the cache load factor."""
        kind, kernel, ratio = self.sharding_type, self.kernel, self.cache_load_factor_ratio
        require(
            (kind is ShardingType.DATA_PARALLEL) == (kernel is ComputeKernel.DENSE),
            f"table {self.table!r}: kernel dense goes with data_parallel and only with it, "
            f"got {kind} with {kernel}",
        )
        caching = kernel is ComputeKernel.FUSED_UVM_CACHING
        require(
            caching == (ratio is not None) and (ratio is None or 0 < ratio < 1),
            f"table {self.table!r}: a cache load factor between 0 and 1 goes with "
            f"fused_uvm_caching and only with it, got {kernel} with {ratio}",
        )

    @property
    def terms(self) -> dict[str, Any]:
        """These values by their names."""
        return {f.name: getattr(self, f.name) for f in fields(TableTerms)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingOption(TableTerms):
    """One way to cut a table, not yet placed.

    Attributes:
        column_widths: widths of the column pieces, left to right; their sum is the embedding
            dimension.

    Raises:
        InvalidValueError: kernel and type do not go together, or a width or share is out of range.
    """

    column_widths: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check kernel against type, the cache load factor, and the widths."""
        TableTerms.__post_init__(self)
        require(
            bool(self.column_widths) and min(self.column_widths) >= 1,
            f"table {self.table!r}: column widths must be positive, got {self.column_widths}",
        )

    @property
    def spread(self) -> Spread:
        """What has to be chosen when this option is placed."""
        return SPREAD[self.sharding_type]

    @property
    def is_uniform(self) -> bool:
        """Whether nothing has to be chosen, because every rank holds a part."""
        return self.spread is Spread.UNIFORM

    @property
    def num_pieces(self) -> int:
        """How many ranks (or hosts) to choose: one per column piece; none for uniform options."""
        return 0 if self.is_uniform else len(self.column_widths)

    @property
    def keeps_pieces_on_host(self) -> bool:
        """Whether all column pieces must be on ranks of one host."""
        return self.sharding_type is ShardingType.TABLE_COLUMN_WISE

    @property
    def keeps_pieces_apart(self) -> bool:
        """Whether pieces of different widths must be on different ranks.

        TorchRec holds the pieces of a table on one rank as one tensor of one width
        (``TableBatchedEmbeddingSlice``).
        """
        return len(set(self.column_widths)) > 1

    def places_of(self, ranks: Sequence[int], local_world_size: int) -> tuple[int, ...]:
        """The rank or host of each piece, from the ranks of all shards of the placed option."""
        step = local_world_size if self.spread is Spread.HOSTS else 1
        return () if self.is_uniform else tuple(rank // step for rank in ranks[::step])

    def may_be_at(self, ranks: Sequence[int], local_world_size: int) -> bool:
        """Whether TorchRec can run the column pieces on these ranks, one for each piece.

        Args:
            ranks: of each piece, or of the first few pieces; hosts for types that cut rows inside
                a host.
            local_world_size: ranks of a host.
        """
        if self.keeps_pieces_on_host and len({rank // local_world_size for rank in ranks}) > 1:
            return False
        if not self.keeps_pieces_apart:
            return True
        widths = self.column_widths[: len(ranks)]
        return len(set(zip(ranks, widths, strict=True))) == len(set(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlacement(TableTerms):
    """One table, cut and placed.

    Attributes:
        shards: in TorchRec's order for the sharding type; any sequence may be given, and is kept as
            :class:`costmodels.sharding.Shards`.

    Raises:
        InvalidValueError: kernel and type do not go together, or the share is out of range.
    """

    shards: Sequence[Shard]

    def __post_init__(self) -> None:
        """Check kernel against type, and the cache load factor."""
        TableTerms.__post_init__(self)
        object.__setattr__(self, "shards", Shards.of(self.shards))

    @property
    def cells(self) -> Shards:
        """The shards as columns of numbers."""
        return cast("Shards", self.shards)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each shard, in shard order."""
        return tuple(self.cells.rank.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placement for every table of a workload."""

    placements: tuple[TablePlacement, ...]
    _by_table: dict[str, TablePlacement] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the placements by table; if a table is placed twice, the first placement counts."""
        found = {placement.table: placement for placement in reversed(self.placements)}
        object.__setattr__(self, "_by_table", found)

    def placement(self, table: str) -> TablePlacement:
        """The placement of ``table``.

        Raises:
            InvalidValueError: the plan does not place it.
        """
        require(table in self._by_table, f"the plan does not place table {table!r}")
        return self._by_table[table]


@lru_cache(maxsize=4096)
def row_block_columns(num_embeddings: int, parts: int) -> tuple[IntArray, IntArray]:
    """Offset and rows of each part, read-only ``[parts]``.

    TorchRec cuts R rows into parts of ceil(R / parts) until none is left.
    """
    size = -(-num_embeddings // parts)
    starts = np.minimum(np.arange(parts + 1, dtype=np.int64) * size, num_embeddings)
    offsets, rows = starts[:-1], np.diff(starts)
    offsets.flags.writeable = rows.flags.writeable = False
    return offsets, rows


def place(
    option: ShardingOption,
    num_embeddings: int,
    where: tuple[int, ...],
    *,
    world_size: int,
    local_world_size: int,
) -> TablePlacement:
    """Put an option on ranks (or hosts), in TorchRec's shard order.

    Args:
        option: the cut.
        num_embeddings: rows of the table.
        where: one rank per piece (spread ranks), one host per piece (spread hosts), or nothing.
        world_size: number of ranks.
        local_world_size: ranks per host.
    """
    require(
        len(where) == option.num_pieces,
        f"table {option.table!r}: {option.num_pieces} places needed, got {len(where)}",
    )
    every, width = np.arange(world_size), sum(option.column_widths)
    if option.is_uniform:
        shards = Shards(every, 0, num_embeddings, 0, width)
        if option.sharding_type is ShardingType.ROW_WISE:
            shards = Shards(every, *row_block_columns(num_embeddings, world_size), 0, width)
    else:
        num_cols = np.array(option.column_widths, dtype=np.int64)
        col_offset = np.cumsum(num_cols) - num_cols
        ranks = np.array(where, dtype=np.int64)
        blocks: tuple[ArrayLike, ArrayLike] = (0, num_embeddings)
        if option.spread is Spread.HOSTS:
            local = np.arange(local_world_size)
            ranks = (ranks[:, None] * local_world_size + local).ravel()
            rows = row_block_columns(num_embeddings, local_world_size)
            blocks = np.tile(rows[0], len(where)), np.tile(rows[1], len(where))
            col_offset, num_cols = (np.repeat(c, local_world_size) for c in (col_offset, num_cols))
        shards = Shards(ranks, *blocks, col_offset, num_cols)
    return TablePlacement(**option.terms, shards=shards)


def option_of(
    placement: TablePlacement, table: Table, *, world_size: int, local_world_size: int
) -> ShardingOption | None:
    """The option that a placement has, whatever its places; None if no option cuts a table so."""
    kind = placement.sharding_type
    step = local_world_size if SPREAD[kind] is Spread.HOSTS else 1
    widths = tuple(placement.cells.num_cols[::step].tolist())
    is_whole = SPREAD[kind] is Spread.UNIFORM or not widths
    cut = (table.embedding_dim,) if is_whole else widths
    option = ShardingOption(**placement.terms, column_widths=cut)
    places = option.places_of(placement.ranks, local_world_size)
    if len(places) != option.num_pieces:
        return None
    sizes = {"world_size": world_size, "local_world_size": local_world_size}
    same = place(option, table.num_embeddings, places, **sizes)
    return option if same.shards == placement.shards else None


def check_tiling(placement: TablePlacement, num_embeddings: int, embedding_dim: int) -> None:
    """Refuse shards that overlap, leave a hole, or go beyond the table.

    A replicated table must have a whole copy in each shard instead.

    Raises:
        InvalidValueError: names the first broken rule.
    """
    name, shards = f"table {placement.table!r}", placement.cells
    if placement.sharding_type is ShardingType.DATA_PARALLEL:
        expected = (0, num_embeddings, 0, embedding_dim)
        columns = zip(shards.columns[1:], expected, strict=True)
        whole = all(bool((column == value).all()) for column, value in columns)
        require(whole, f"{name}: every rank of a data_parallel table holds the whole table")
        return
    unsized = np.flatnonzero((shards.num_rows < 0) | (shards.num_cols < 1))
    if len(unsized):
        refuse(f"{name}: shard {shards[int(unsized[0])]} has no columns or rows < 0")
    used = np.lexsort((shards.col_offset, shards.row_offset))
    used = used[shards.num_rows[used] > 0]
    row, rows, col, cols = cells = np.stack(shards.columns[1:])[:, used]
    if _is_banded(cells, num_embeddings, embedding_dim):
        return
    outside = (row < 0) | (col < 0) | (row + rows > num_embeddings) | (col + cols > embedding_dim)
    if outside.any():
        shard = shards[int(used[np.argmax(outside)])]
        refuse(f"{name}: shard {shard} leaves the table of {num_embeddings} x {embedding_dim}")
    area = sum(r * c for r, c in zip(rows.tolist(), cols.tolist(), strict=True))
    expected_area = num_embeddings * embedding_dim
    if area != expected_area:
        refuse(f"{name}: shards cover {area} cells of {expected_area}; they must tile it")
    pair = _overlap(cells)
    if pair is not None:
        first, second = (shards[int(used[i])] for i in pair)
        refuse(f"{name}: shards {first} and {second} overlap")


def check_plan(plan: Plan, workload: Workload, world_size: int) -> None:
    """Refuse a plan that is not one of this workload on this many ranks.

    Raises:
        InvalidValueError: names missing and unknown tables, or the first broken tiling.
    """
    tables, planned = {t.name: t for t in workload.tables}, [p.table for p in plan.placements]
    require(len({*planned}) == len(planned), "the plan places a table twice")
    missing, unknown = sorted({*tables} - {*planned}), sorted({*planned} - {*tables})
    require(
        not missing and not unknown,
        f"the plan is not for this workload: missing tables {missing[:5]} ({len(missing)}), "
        f"unknown tables {unknown[:5]} ({len(unknown)})",
    )
    for placement in plan.placements:
        table, ranks = tables[placement.table], placement.cells.rank
        outside = (ranks < 0) | (ranks >= world_size)
        bad = ranks[outside].tolist()[:5]
        require(not bad, f"table {table.name!r}: ranks {bad} are outside 0..{world_size - 1}")
        if placement.sharding_type is ShardingType.DATA_PARALLEL:
            require(
                np.array_equal(np.sort(ranks), np.arange(world_size)),
                f"table {table.name!r}: data_parallel needs one copy on each of {world_size} ranks",
            )
        check_tiling(placement, table.num_embeddings, table.embedding_dim)
