"""How tables are cut and where the pieces live."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum

from costmodels.errors import InvalidValueError, require
from costmodels.workload import Workload


class ShardingType(StrEnum):
    """TorchRec's sharding types; the values are TorchRec's strings."""

    DATA_PARALLEL = "data_parallel"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"


class ComputeKernel(StrEnum):
    """TorchRec's compute kernels; the values are TorchRec's strings."""

    DENSE = "dense"
    FUSED = "fused"
    FUSED_UVM = "fused_uvm"
    FUSED_UVM_CACHING = "fused_uvm_caching"


class Spread(StrEnum):
    """What is free when an option is placed: nothing, one rank per shard, or one host per block."""

    UNIFORM = "uniform"
    RANKS = "ranks"
    HOSTS = "hosts"


SPREAD: dict[ShardingType, Spread] = {
    ShardingType.DATA_PARALLEL: Spread.UNIFORM,
    ShardingType.ROW_WISE: Spread.UNIFORM,
    ShardingType.TABLE_WISE: Spread.RANKS,
    ShardingType.COLUMN_WISE: Spread.RANKS,
    ShardingType.TABLE_COLUMN_WISE: Spread.RANKS,
    ShardingType.TABLE_ROW_WISE: Spread.HOSTS,
    ShardingType.GRID_SHARD: Spread.HOSTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A rectangle of one table on one rank."""

    rank: int
    row_offset: int
    num_rows: int
    col_offset: int
    num_cols: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingOption:
    """One way to cut a table, not yet placed.

    ``column_widths`` lists the widths of the column pieces, left to right; they sum to the
    embedding dimension. ``cache_load_factor_ratio`` (0..1) is set for the caching kernel alone.
    """

    table: str
    sharding_type: ShardingType
    kernel: ComputeKernel
    column_widths: tuple[int, ...]
    cache_load_factor_ratio: float | None = None

    def __post_init__(self) -> None:
        """Check kernel against type, and the cache load factor."""
        _check_kernel(self.table, self.sharding_type, self.kernel, self.cache_load_factor_ratio)
        require(
            len(self.column_widths) >= 1 and all(w >= 1 for w in self.column_widths),
            f"table {self.table!r}: column widths must be positive, got {self.column_widths}",
        )

    @property
    def spread(self) -> Spread:
        """What remains to be chosen when this option is placed."""
        return SPREAD[self.sharding_type]

    @property
    def num_pieces(self) -> int:
        """Ranks (or hosts) to choose: one per column piece; none for uniform options."""
        return 0 if self.spread is Spread.UNIFORM else len(self.column_widths)


def _check_kernel(
    table: str, sharding_type: ShardingType, kernel: ComputeKernel, ratio: float | None
) -> None:
    replicated = sharding_type is ShardingType.DATA_PARALLEL
    require(
        replicated == (kernel is ComputeKernel.DENSE),
        f"table {table!r}: kernel dense goes with data_parallel and only with it, "
        f"got {sharding_type} with {kernel}",
    )
    caching = kernel is ComputeKernel.FUSED_UVM_CACHING
    require(
        caching == (ratio is not None) and (ratio is None or 0 < ratio < 1),
        f"table {table!r}: a cache load factor between 0 and 1 goes with "
        f"fused_uvm_caching and only with it, got {kernel} with {ratio}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlacement:
    """One table, cut and placed. ``shards`` are in TorchRec's order for the sharding type."""

    table: str
    sharding_type: ShardingType
    kernel: ComputeKernel
    shards: tuple[Shard, ...]
    cache_load_factor_ratio: float | None = None

    def __post_init__(self) -> None:
        """Check kernel against type, and the cache load factor."""
        _check_kernel(self.table, self.sharding_type, self.kernel, self.cache_load_factor_ratio)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each shard, in shard order."""
        return tuple(s.rank for s in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every table of a workload, placed."""

    placements: tuple[TablePlacement, ...]

    def placement(self, table: str) -> TablePlacement:
        """The placement of ``table``.

        Raises:
            InvalidValueError: the plan does not place it.
        """
        for placement in self.placements:
            if placement.table == table:
                return placement
        msg = f"the plan does not place table {table!r}"
        raise InvalidValueError(msg)


def row_blocks(num_embeddings: int, parts: int) -> list[tuple[int, int]]:
    """(offset, rows) of each part as TorchRec cuts rows: ceil(R / parts) until they run out."""
    size = math.ceil(num_embeddings / parts)
    starts = [min(i * size, num_embeddings) for i in range(parts + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(starts)]


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
        where: one rank per piece (spread ranks), one host per piece (spread hosts), or empty.
        world_size: ranks in all.
        local_world_size: ranks per host.
    """
    require(
        len(where) == option.num_pieces,
        f"table {option.table!r}: {option.num_pieces} places needed, got {len(where)}",
    )
    width = sum(option.column_widths)
    offsets = [sum(option.column_widths[:i]) for i in range(len(option.column_widths))]
    columns = list(zip(offsets, option.column_widths, strict=True))
    cells: list[tuple[int, int, int, int, int]]
    if option.sharding_type is ShardingType.DATA_PARALLEL:
        cells = [(r, 0, num_embeddings, 0, width) for r in range(world_size)]
    elif option.sharding_type is ShardingType.ROW_WISE:
        blocks = row_blocks(num_embeddings, world_size)
        cells = [(r, row, rows, 0, width) for r, (row, rows) in enumerate(blocks)]
    elif option.spread is Spread.RANKS:
        cells = [(r, 0, num_embeddings, col, n) for r, (col, n) in zip(where, columns, strict=True)]
    else:
        blocks = row_blocks(num_embeddings, local_world_size)
        cells = [
            (host * local_world_size + i, row, rows, col, n)
            for host, (col, n) in zip(where, columns, strict=True)
            for i, (row, rows) in enumerate(blocks)
        ]
    shards = tuple(
        Shard(rank=rank, row_offset=row, num_rows=rows, col_offset=col, num_cols=n)
        for rank, row, rows, col, n in cells
    )
    return TablePlacement(
        table=option.table,
        sharding_type=option.sharding_type,
        kernel=option.kernel,
        shards=shards,
        cache_load_factor_ratio=option.cache_load_factor_ratio,
    )


def check_tiling(placement: TablePlacement, num_embeddings: int, embedding_dim: int) -> None:
    """Refuse shards that overlap, leave a hole, or leave the table.

    Replicated tables need a whole copy on each rank instead.

    Raises:
        InvalidValueError: with the first rule broken.
    """
    name = f"table {placement.table!r}"
    if placement.sharding_type is ShardingType.DATA_PARALLEL:
        whole = all(
            (s.row_offset, s.num_rows, s.col_offset, s.num_cols)
            == (0, num_embeddings, 0, embedding_dim)
            for s in placement.shards
        )
        require(whole, f"{name}: every rank of a data_parallel table holds the whole table")
        return
    for s in placement.shards:
        sized = s.num_rows >= 0 and s.num_cols >= 1
        require(sized, f"{name}: shard {s} has no columns or rows < 0")
    shards = [s for s in placement.shards if s.num_rows > 0]
    for s in shards:
        inside = (
            s.row_offset >= 0
            and s.col_offset >= 0
            and s.row_offset + s.num_rows <= num_embeddings
            and s.col_offset + s.num_cols <= embedding_dim
        )
        require(inside, f"{name}: shard {s} leaves the table of {num_embeddings} x {embedding_dim}")
    area = sum(s.num_rows * s.num_cols for s in shards)
    require(
        area == num_embeddings * embedding_dim,
        f"{name}: shards cover {area} cells of {num_embeddings * embedding_dim}; they must tile it",
    )
    ordered = sorted(shards, key=lambda s: (s.row_offset, s.col_offset))
    for i, a in enumerate(ordered):
        for b in ordered[i + 1 :]:
            if b.row_offset >= a.row_offset + a.num_rows:
                break
            apart = (
                b.col_offset >= a.col_offset + a.num_cols
                or a.col_offset >= b.col_offset + b.num_cols
            )
            require(apart, f"{name}: shards {a} and {b} overlap")


def check_plan(plan: Plan, workload: Workload, world_size: int) -> None:
    """Refuse a plan that is not one of this workload on this many ranks.

    Raises:
        InvalidValueError: names missing and unknown tables, or the first broken tiling.
    """
    planned = [p.table for p in plan.placements]
    expected = [t.name for t in workload.tables]
    require(len(set(planned)) == len(planned), "the plan places a table twice")
    missing = sorted(set(expected) - set(planned))
    unknown = sorted(set(planned) - set(expected))
    require(
        not missing and not unknown,
        f"the plan is not for this workload: missing tables {missing[:5]} ({len(missing)}), "
        f"unknown tables {unknown[:5]} ({len(unknown)})",
    )
    for placement in plan.placements:
        table = workload.table(placement.table)
        bad = [r for r in placement.ranks if not 0 <= r < world_size]
        require(not bad, f"table {table.name!r}: ranks {bad[:5]} are outside 0..{world_size - 1}")
        if placement.sharding_type is ShardingType.DATA_PARALLEL:
            require(
                sorted(placement.ranks) == list(range(world_size)),
                f"table {table.name!r}: data_parallel needs one copy on each of {world_size} ranks",
            )
        check_tiling(placement, table.num_embeddings, table.embedding_dim)
