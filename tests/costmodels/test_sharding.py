"""How tables are cut, TorchRec's layouts, and every kind of plan that is refused."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.errors import InvalidValueError
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    Shard,
    ShardingOption,
    ShardingType,
    Spread,
    TablePlacement,
    check_plan,
    check_tiling,
    place,
    row_block_columns,
)
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from tests.strategies import (
    make_placement,
    make_table,
    make_topology,
    make_workload,
    options,
    placements,
    planned_workloads,
    tables,
    topologies,
)

WORLD, LOCAL = 16, 8
ROWS, DIM = 100, 64


def option(kind: ShardingType, *widths: int) -> ShardingOption:
    """A fused (or dense) option of a table 64 wide."""
    replicated = kind is ShardingType.DATA_PARALLEL
    return ShardingOption(
        table="t",
        sharding_type=kind,
        kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
        column_widths=widths or (DIM,),
    )


def layout(
    one: ShardingOption, *where: int, rows: int = ROWS
) -> list[tuple[int, int, int, int, int]]:
    """(rank, row offset, rows, column offset, columns) of each shard."""
    placed = place(one, rows, where, world_size=WORLD, local_world_size=LOCAL)
    check_tiling(placed, rows, DIM)
    return [(s.rank, s.row_offset, s.num_rows, s.col_offset, s.num_cols) for s in placed.shards]


# ------------------------------------------------------------------ TorchRec's layouts


def test_data_parallel_is_a_copy_on_every_rank() -> None:
    assert layout(option(ShardingType.DATA_PARALLEL)) == [
        (r, 0, ROWS, 0, DIM) for r in range(WORLD)
    ]


def test_table_wise_is_one_shard() -> None:
    assert layout(option(ShardingType.TABLE_WISE), 5) == [(5, 0, ROWS, 0, DIM)]


def test_row_wise_is_ceil_then_the_rest_then_nothing() -> None:
    """100 rows on 16 ranks: 14 ranks of 7 rows, one of 2, one of none."""
    blocks = [(r, 7 * r, 7, 0, DIM) for r in range(14)]
    expected = [*blocks, (14, 98, 2, 0, DIM), (15, 100, 0, 0, DIM)]
    assert layout(option(ShardingType.ROW_WISE)) == expected


def test_row_wise_of_fewer_rows_than_ranks() -> None:
    shards = layout(option(ShardingType.ROW_WISE), rows=3)
    assert [s[2] for s in shards] == [1, 1, 1, *[0] * 13]
    assert [s[0] for s in shards] == list(range(WORLD))


def test_column_wise_may_repeat_ranks_and_differ_in_width() -> None:
    shards = layout(option(ShardingType.COLUMN_WISE, 16, 16, 32), 3, 12, 3)
    assert shards == [(3, 0, ROWS, 0, 16), (12, 0, ROWS, 16, 16), (3, 0, ROWS, 32, 32)]


def test_table_column_wise_is_cut_like_column_wise() -> None:
    shards = layout(option(ShardingType.TABLE_COLUMN_WISE, 32, 32), 8, 9)
    assert shards == [(8, 0, ROWS, 0, 32), (9, 0, ROWS, 32, 32)]


def test_table_row_wise_splits_rows_over_the_ranks_of_one_host() -> None:
    expected = [(8 + i, 13 * i, 13, 0, DIM) for i in range(7)] + [(15, 91, 9, 0, DIM)]
    assert layout(option(ShardingType.TABLE_ROW_WISE), 1) == expected


def test_grid_shard_gives_each_column_block_a_host() -> None:
    shards = layout(option(ShardingType.GRID_SHARD, 32, 32), 1, 0)
    first = [(8 + i, 13 * i, min(13, ROWS - 13 * i), 0, 32) for i in range(8)]
    second = [(i, 13 * i, min(13, ROWS - 13 * i), 32, 32) for i in range(8)]
    assert shards == first + second


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_row_blocks_cover_the_rows_in_order(rows: int, parts: int) -> None:
    blocks = [*zip(*(c.tolist() for c in row_block_columns(rows, parts)), strict=True)]
    assert len(blocks) == parts
    assert sum(size for _, size in blocks) == rows
    start = 0
    for offset, size in blocks:
        assert offset == start
        assert 0 <= size <= math.ceil(rows / parts)
        start += size


@given(st.data())
def test_every_placed_option_tiles_its_table(data: st.DataObject) -> None:
    table: Table = data.draw(tables())
    topology: Topology = data.draw(topologies())
    placed: TablePlacement = data.draw(placements(table, topology))
    check_tiling(placed, table.num_embeddings, table.embedding_dim)
    assert set(placed.ranks) <= set(range(topology.world_size))
    covered = {(s.rank, s.row_offset, s.col_offset) for s in placed.shards if s.num_rows}
    assert len(covered) == sum(s.num_rows > 0 for s in placed.shards)


@given(st.data())
def test_pieces_are_what_remains_to_be_chosen(data: st.DataObject) -> None:
    one: ShardingOption = data.draw(options(data.draw(tables())))
    assert (one.num_pieces == 0) == (one.spread is Spread.UNIFORM)
    if one.num_pieces:
        assert one.num_pieces == len(one.column_widths)


def test_place_wants_one_place_per_piece() -> None:
    one = option(ShardingType.COLUMN_WISE, 32, 32)
    with pytest.raises(InvalidValueError, match="2 places needed, got 1"):
        place(one, ROWS, (0,), world_size=WORLD, local_world_size=LOCAL)
    with pytest.raises(InvalidValueError, match="0 places needed, got 1"):
        place(option(ShardingType.ROW_WISE), ROWS, (0,), world_size=WORLD, local_world_size=LOCAL)


# ------------------------------------------------------------------ refused options


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [
        (ShardingType.DATA_PARALLEL, ComputeKernel.FUSED),
        (ShardingType.TABLE_WISE, ComputeKernel.DENSE),
    ],
)
def test_dense_goes_with_data_parallel_only(kind: ShardingType, kernel: ComputeKernel) -> None:
    with pytest.raises(InvalidValueError, match="kernel dense goes with data_parallel"):
        ShardingOption(table="t", sharding_type=kind, kernel=kernel, column_widths=(4,))
    with pytest.raises(InvalidValueError, match="kernel dense goes with data_parallel"):
        TablePlacement(table="t", sharding_type=kind, kernel=kernel, shards=())


@pytest.mark.parametrize(
    ("kernel", "ratio"),
    [
        (ComputeKernel.FUSED, 0.5),
        (ComputeKernel.FUSED_UVM, 0.5),
        (ComputeKernel.FUSED_UVM_CACHING, None),
        (ComputeKernel.FUSED_UVM_CACHING, 0.0),
        (ComputeKernel.FUSED_UVM_CACHING, 1.0),
        (ComputeKernel.FUSED_UVM_CACHING, math.nan),
    ],
)
def test_a_cache_load_factor_goes_with_caching_only(
    kernel: ComputeKernel, ratio: float | None
) -> None:
    kind = ShardingType.TABLE_WISE
    with pytest.raises(InvalidValueError, match="cache load factor between 0 and 1"):
        ShardingOption(
            table="t",
            sharding_type=kind,
            kernel=kernel,
            column_widths=(4,),
            cache_load_factor_ratio=ratio,
        )
    with pytest.raises(InvalidValueError, match="cache load factor between 0 and 1"):
        TablePlacement(
            table="t", sharding_type=kind, kernel=kernel, shards=(), cache_load_factor_ratio=ratio
        )


@pytest.mark.parametrize("widths", [(), (0,), (8, -4)])
def test_column_widths_are_positive(widths: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValueError, match="column widths must be positive"):
        ShardingOption(
            table="t",
            sharding_type=ShardingType.COLUMN_WISE,
            kernel=ComputeKernel.FUSED,
            column_widths=widths,
        )


# ------------------------------------------------------------------ broken tilings


def shard(rank: int, row: int, rows: int, col: int, cols: int) -> Shard:
    return Shard(rank=rank, row_offset=row, num_rows=rows, col_offset=col, num_cols=cols)


def placement(
    *shards: Shard, kind: ShardingType = ShardingType.ROW_WISE, table: str = "t"
) -> TablePlacement:
    replicated = kind is ShardingType.DATA_PARALLEL
    return TablePlacement(
        table=table,
        sharding_type=kind,
        kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
        shards=shards,
    )


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([], "they must tile it"),
        ([shard(0, 0, 99, 0, 64)], "cover 6336 cells of 6400"),
        ([shard(0, 0, 101, 0, 64)], "leaves the table of 100 x 64"),
        ([shard(0, 0, 100, 32, 64)], "leaves the table"),
        ([shard(0, -1, 100, 0, 64)], "leaves the table"),
        ([shard(0, 0, 100, -1, 64)], "leaves the table"),
        ([shard(0, 0, 60, 0, 64), shard(1, 50, 50, 0, 64)], "cover 7040 cells"),
        ([shard(0, 0, 60, 0, 64), shard(1, 50, 40, 0, 64)], "overlap"),
        ([shard(0, 0, 100, 0, 40), shard(1, 0, 100, 30, 24)], "overlap"),
        ([shard(0, 0, 50, 0, 64), shard(1, 0, 50, 0, 64)], "overlap"),
        ([shard(0, 0, 100, 0, 64), shard(1, 50, -50, 0, 64)], "no columns or rows < 0"),
        ([shard(0, 0, 100, 0, 64), shard(1, 0, 100, 0, 0)], "no columns or rows < 0"),
    ],
)
def test_broken_tilings_are_refused(shards: list[Shard], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        check_tiling(placement(*shards), ROWS, DIM)


def test_a_tiling_of_mixed_rectangles_is_fine() -> None:
    pinwheel = [
        shard(0, 0, 60, 0, 24),
        shard(1, 0, 40, 24, 40),
        shard(2, 40, 60, 40, 24),
        shard(3, 60, 40, 0, 40),
        shard(4, 40, 20, 24, 16),
        shard(5, 100, 0, 0, 64),
    ]
    check_tiling(placement(*pinwheel), ROWS, DIM)


def test_a_replica_is_the_whole_table() -> None:
    half = placement(shard(0, 0, 50, 0, 64), kind=ShardingType.DATA_PARALLEL)
    with pytest.raises(InvalidValueError, match="holds the whole table"):
        check_tiling(half, ROWS, DIM)


# ------------------------------------------------------------------ broken plans


@given(planned_workloads())
def test_every_drawn_plan_passes(case: tuple[Workload, Topology, Plan]) -> None:
    workload, topology, plan = case
    check_plan(plan, workload, topology.world_size)
    for table in workload.tables:
        assert plan.placement(table.name).table == table.name


def broken(change: str) -> Plan:
    """A good plan of two tables on four ranks, with one thing wrong."""
    topology = make_topology()
    first, second = (
        make_placement(make_table("t0"), ShardingType.TABLE_WISE, topology),
        make_placement(make_table("t1", num_embeddings=500), ShardingType.DATA_PARALLEL, topology),
    )
    moved = dataclasses.replace(first.shards[0], rank=4)
    return {
        "missing": Plan(placements=(first,)),
        "unknown": Plan(placements=(first, second, dataclasses.replace(first, table="t9"))),
        "twice": Plan(placements=(first, first, second)),
        "rank": Plan(placements=(dataclasses.replace(first, shards=(moved,)), second)),
        "copies": Plan(placements=(first, dataclasses.replace(second, shards=second.shards[:3]))),
        "repeated": Plan(
            placements=(first, dataclasses.replace(second, shards=(second.shards[0],) * 4))
        ),
        "tiling": Plan(placements=(dataclasses.replace(first, shards=()), second)),
        "": Plan(placements=(first, second)),
    }[change]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"missing tables \['t1'\] \(1\), unknown tables \[\] \(0\)"),
        ("unknown", r"missing tables \[\] \(0\), unknown tables \['t9'\] \(1\)"),
        ("twice", "places a table twice"),
        ("rank", r"ranks \[4\] are outside 0..3"),
        ("copies", "one copy on each of 4 ranks"),
        ("repeated", "one copy on each of 4 ranks"),
        ("tiling", "must tile it"),
    ],
)
def test_broken_plans_are_refused(change: str, message: str) -> None:
    workload = make_workload()
    check_plan(broken(""), workload, 4)
    with pytest.raises(InvalidValueError, match=message):
        check_plan(broken(change), workload, 4)


def test_an_unknown_placement_is_named() -> None:
    with pytest.raises(InvalidValueError, match="does not place table 't7'"):
        broken("").placement("t7")
