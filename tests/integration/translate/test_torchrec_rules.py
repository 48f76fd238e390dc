"""Every layout trap of TorchRec is caught before TorchRec sees the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.errors import InvalidValueError
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    Shard,
    ShardingType,
    TablePlacement,
)
from costmodels.topology import Topology
from costmodels.workload import Pooling, Table, Workload
from planner.errors import InvalidInputError
from planner.options.torchrec_rules import layout_problems, legal_types_and_kernels
from tests.integration.builders import make_table, make_topology, placed

DP, TW, CW, RW = (
    ShardingType.DATA_PARALLEL,
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.ROW_WISE,
)
TWRW, TWCW, GRID = (
    ShardingType.TABLE_ROW_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.GRID_SHARD,
)
FUSED, UVM, CACHING, DENSE = (
    ComputeKernel.FUSED,
    ComputeKernel.FUSED_UVM,
    ComputeKernel.FUSED_UVM_CACHING,
    ComputeKernel.DENSE,
)


def problems_of(
    *placements: TablePlacement,
    table: Table | None = None,
    topology: Topology | None = None,
    device: str = "cuda",
) -> list[str]:
    workload = Workload(name="w", tables=(table or make_table(),), batch_size_per_rank=8)
    plan = Plan(placements=placements)
    return layout_problems(plan, workload, topology or make_topology(), device=device)


GOOD = {
    "dp": placed(DP),
    "tw": placed(TW, (7,)),
    "cw": placed(CW, (1, 6), widths=(8, 8)),
    "cw one piece": placed(CW, (1,)),
    "cw uneven widths": placed(CW, (1, 6), widths=(4, 12)),
    "cw one rank twice": placed(CW, (1, 1), widths=(8, 8)),
    "rw": placed(RW),
    "rw with empty ranks": placed(RW, table=make_table(rows=3)),
    "twrw": placed(TWRW, (1,)),
    "twcw": placed(TWCW, (4, 7), widths=(8, 8)),
    "grid": placed(GRID, (0, 1), widths=(8, 8)),
    "grid one host twice": placed(GRID, (1, 1), widths=(8, 8)),
    "uvm": placed(TW, (0,), kernel=UVM),
    "caching": placed(TW, (0,), kernel=CACHING, ratio=0.2),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_layouts_pass(name: str) -> None:
    rows = 3 if "empty" in name else 10
    assert problems_of(GOOD[name], table=make_table(rows=rows)) == []


def moved(placement: TablePlacement, ranks: tuple[int, ...]) -> TablePlacement:
    shards = tuple(replace(s, rank=r) for s, r in zip(placement.shards, ranks, strict=True))
    return replace(placement, shards=shards)


def cut(placement: TablePlacement, rows: list[int]) -> TablePlacement:
    offsets = [sum(rows[:i]) for i in range(len(rows))]
    shards = tuple(
        replace(s, row_offset=o, num_rows=n)
        for s, o, n in zip(placement.shards, offsets, rows, strict=True)
    )
    return replace(placement, shards=shards)


def keep(placement: TablePlacement, count: int) -> TablePlacement:
    return replace(placement, shards=placement.shards[:count])


BROKEN = {
    "rw short of ranks": (keep(GOOD["rw"], 7), "exactly one shard per rank in order"),
    "rw out of order": (moved(GOOD["rw"], (1, 0, 2, 3, 4, 5, 6, 7)), "per rank in order"),
    "rw uneven": (
        cut(GOOD["rw"], [3, 1, 1, 1, 1, 1, 1, 1]),
        "in equal blocks of rows; got 8 shards [rows 0+3 ",
    ),
    "rw rows without columns": (
        replace(GOOD["rw"], shards=tuple(replace(s, num_cols=8) for s in GOOD["rw"].shards)),
        "shards cover 80 cells of 160",
    ),
    "twrw half a host": (keep(GOOD["twrw"], 2), "shards cover 96 cells of 160"),
    "twrw over two hosts": (moved(GOOD["twrw"], (2, 3, 4, 5)), "all 4 ranks of one host"),
    "twrw out of order": (
        moved(GOOD["twrw"], (5, 4, 6, 7)),
        "in order, in equal blocks of rows; got 4 shards [rows 0+3 cols 0+16 on rank 5",
    ),
    "twrw uneven": (
        cut(GOOD["twrw"], [4, 2, 2, 2]),
        "in equal blocks of rows; got 4 shards [rows 0+4 ",
    ),
    "twcw over two hosts": (moved(GOOD["twcw"], (3, 4)), "on one host of 4 ranks"),
    "grid half a host": (keep(GOOD["grid"], 6), "shards cover 128 cells of 160"),
    "grid over two hosts": (
        moved(GOOD["grid"], (0, 1, 2, 4, 4, 5, 6, 7)),
        "all 4 ranks of one host",
    ),
    "grid without a block": (keep(GOOD["grid"], 4), "shards cover 80 cells of 160"),
    "grid rows first": (
        replace(GOOD["grid"], shards=(*GOOD["grid"].shards[::2], *GOOD["grid"].shards[1::2])),
        "blocks of columns, each on all 4 ranks of one host",
    ),
    "tw in two": (
        replace(GOOD["cw"], sharding_type=TW),
        "one shard with the whole table",
    ),
    "cw right to left": (replace(GOOD["cw"], shards=GOOD["cw"].shards[::-1]), "left to right"),
    "cw hole": (keep(GOOD["cw"], 1), "shards cover 80 cells of 160"),
    "cw overlap": (
        replace(GOOD["cw"], shards=(GOOD["cw"].shards[0], *GOOD["cw"].shards)),
        "shards cover 240 cells of 160",
    ),
    "cw with rows cut": (cut(GOOD["cw"], [5, 5]), "shards cover 80 cells of 160"),
    "cw width of 6": (
        placed(CW, (0, 1), widths=(6, 10)),
        "width [6, 10]: fused kernels need a multiple of 4",
    ),
    "dp short of ranks": (keep(GOOD["dp"], 7), "one copy on each of 8 ranks"),
    "dp in parts": (cut(GOOD["dp"], [2, 2, 2, 2, 2, 0, 0, 0]), "the whole table"),
    "rank too large": (moved(GOOD["tw"], (8,)), "outside 0..7"),
    "negative rank": (moved(GOOD["tw"], (-1,)), "outside 0..7"),
    "no shards": (keep(GOOD["tw"], 0), "shards cover 0 cells of 160"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_traps_are_caught(name: str) -> None:
    placement, message = BROKEN[name]
    problems = problems_of(placement)
    assert any(message in p for p in problems), problems
    assert all(p.startswith("table 't': ") for p in problems)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("dp", {"kernel": FUSED}, "kernel dense goes with data_parallel"),
        ("tw", {"kernel": DENSE}, "kernel dense goes with data_parallel"),
        ("caching", {"cache_load_factor_ratio": None}, "a cache load factor between 0 and 1"),
        ("caching", {"cache_load_factor_ratio": 1.0}, "a cache load factor between 0 and 1"),
        ("tw", {"cache_load_factor_ratio": 0.2}, "a cache load factor between 0 and 1"),
    ],
)
def test_kernels_that_contradict_their_type_cannot_be_placed(
    name: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        replace(GOOD[name], **changes)  # type: ignore[arg-type]


def test_missing_unknown_and_repeated_tables() -> None:
    other = replace(GOOD["tw"], table="other")
    assert any("unknown tables ['other']" in p for p in problems_of(GOOD["tw"], other))
    assert any("missing tables ['t']" in p for p in problems_of(other))
    assert any("places a table twice" in p for p in problems_of(GOOD["tw"], GOOD["cw"]))


def test_unpooled_tables_have_four_types() -> None:
    table = make_table(pooling=Pooling.NONE)
    assert set(legal_types_and_kernels(table)) == {DP, TW, CW, RW}
    for name in ("twrw", "twcw", "grid"):
        problems = problems_of(GOOD[name], table=table)
        assert any("does not exist for unpooled tables" in p for p in problems)
    for name in ("dp", "tw", "cw", "rw"):
        assert problems_of(GOOD[name], table=table) == []


def test_unpooled_tables_are_not_replicated_on_cpu() -> None:
    table = make_table(pooling=Pooling.NONE)
    assert set(legal_types_and_kernels(table, "cpu")) == {TW, CW, RW}
    (problem,) = problems_of(GOOD["dp"], table=table, device="cpu")
    assert "data_parallel does not exist for unpooled tables" in problem
    assert legal_types_and_kernels(make_table(dim=10, pooling=Pooling.NONE), "cpu") == {}


def test_kernels_follow_the_device() -> None:
    table = make_table()
    assert legal_types_and_kernels(table, "cpu")[RW] == (FUSED,)
    assert legal_types_and_kernels(table, "cuda")[RW] == (FUSED, UVM, CACHING)
    assert legal_types_and_kernels(table, "cuda")[DP] == (DENSE,)
    for name in ("uvm", "caching"):
        assert any("not on device cpu" in p for p in problems_of(GOOD[name], device="cpu"))
    with pytest.raises(InvalidInputError, match="'mtia' is not supported"):
        legal_types_and_kernels(table, "mtia")
    with pytest.raises(InvalidInputError, match="'mtia' is not supported"):
        problems_of(GOOD["tw"], device="mtia")


def test_dimensions_that_are_no_multiple_of_four_are_replicated() -> None:
    table = make_table(dim=10)
    assert set(legal_types_and_kernels(table)) == {DP}
    problems = problems_of(placed(TW, (0,), table=table), table=table)
    assert any("width [10]: fused kernels need a multiple of 4" in p for p in problems)
    assert problems_of(placed(DP, table=table), table=table) == []


def test_a_domain_may_take_the_place_of_the_host() -> None:
    topology = make_topology(num_hosts=4, local=2, domain=4)
    by_domain = placed(TWRW, (1,), local=4)
    by_host = placed(TWRW, (1,), local=2)
    assert problems_of(by_domain, topology=topology) == []
    assert problems_of(by_host, topology=topology) == []
    mixed = [by_domain, replace(by_host, table="u")]
    workload = Workload(name="w", tables=(make_table(), make_table("u")), batch_size_per_rank=8)
    problems = layout_problems(Plan(placements=tuple(mixed)), workload, topology)
    assert len(problems) == 1
    assert problems[0].startswith("table 'u': table_row_wise needs all 4 ranks of one host")


def test_a_hole_inside_a_table_is_found() -> None:
    shards = (Shard(rank=0, row_offset=0, num_rows=10, col_offset=0, num_cols=12),)
    assert problems_of(replace(GOOD["tw"], shards=shards))
