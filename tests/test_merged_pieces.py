"""Unequal column pieces of a table on one rank become one; everything else stays as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from planner.options.torchrec_rules import layout_problems
from tests.integration.builders import make_topology
from tests.merged_pieces import merged_pieces
from tests.strategies import make_table, make_workload

WORLD, LOCAL, ROWS = 4, 2, 10


def placed(kind: ShardingType, widths: tuple[int, ...], where: tuple[int, ...]) -> TablePlacement:
    option = ShardingOption(
        table="t", sharding_type=kind, kernel=ComputeKernel.FUSED, column_widths=widths
    )
    return place(option, ROWS, where, world_size=WORLD, local_world_size=LOCAL)


def merged(
    kind: ShardingType, widths: tuple[int, ...], where: tuple[int, ...]
) -> list[tuple[int, int, int]]:
    (made,) = merged_pieces(Plan(placements=(placed(kind, widths, where),))).placements
    return [(s.rank, s.col_offset, s.num_cols) for s in made.shards]


def test_unequal_pieces_of_a_rank_stand_side_by_side() -> None:
    assert merged(ShardingType.COLUMN_WISE, (8, 4, 4), (0, 1, 0)) == [(0, 0, 12), (1, 12, 4)]
    assert merged(ShardingType.TABLE_COLUMN_WISE, (8, 4), (3, 3)) == [(3, 0, 12)]


def test_equal_pieces_stay() -> None:
    assert merged(ShardingType.COLUMN_WISE, (8, 8), (2, 2)) == [(2, 0, 8), (2, 8, 8)]
    assert merged(ShardingType.COLUMN_WISE, (8, 4), (1, 0)) == [(1, 0, 8), (0, 8, 4)]


def test_blocks_of_a_host_are_merged_row_by_row() -> None:
    assert merged(ShardingType.GRID_SHARD, (8, 4), (1, 1)) == [(2, 0, 12), (3, 0, 12)]


@given(st.data())
def test_merged_plans_keep_every_rule(data: st.DataObject) -> None:
    kinds = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE, ShardingType.GRID_SHARD)
    kind = data.draw(st.sampled_from(kinds))
    widths = tuple(data.draw(st.lists(st.sampled_from((4, 8, 12)), min_size=1, max_size=5)))
    most = {kinds[0]: WORLD, kinds[1]: LOCAL, kinds[2]: WORLD // LOCAL}[kind]
    where = tuple(data.draw(st.integers(0, most - 1)) for _ in widths)
    table = make_table("t", num_embeddings=ROWS, embedding_dim=sum(widths))
    plan = merged_pieces(Plan(placements=(placed(kind, widths, where),)))
    topology = make_topology(WORLD // LOCAL, LOCAL)
    assert layout_problems(plan, make_workload(table), topology) == []
