"""Column pieces of unpooled tables that TorchRec cannot exchange together are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Pipeline, Pooling
from planner.options.torchrec_rules import runtime_warnings, width_problems
from tests.integration.builders import make_table, placed
from tests.strategies import make_workload

CW, TW, ROW = ShardingType.COLUMN_WISE, ShardingType.TABLE_WISE, ShardingType.ROW_WISE


@pytest.mark.parametrize(
    ("first", "second", "pooling", "same_module", "wrong"),
    [
        ((CW, (8, 8)), (CW, (8, 8)), Pooling.NONE, True, False),
        ((CW, (8, 8)), (CW, (16,)), Pooling.NONE, True, True),
        ((CW, (12, 4)), (TW, (16,)), Pooling.NONE, True, True),
        ((CW, (8, 8)), (TW, (16,)), Pooling.NONE, True, False),
        ((CW, (8, 8)), (CW, (16,)), Pooling.NONE, False, False),
        ((CW, (8, 8)), (CW, (16,)), Pooling.SUM, True, False),
    ],
)
def test_pieces_of_several_widths_are_named(
    first: tuple[ShardingType, tuple[int, ...]],
    second: tuple[ShardingType, tuple[int, ...]],
    pooling: Pooling,
    same_module: bool,
    wrong: bool,
) -> None:
    tables = [
        make_table("a", pooling=pooling, module="m"),
        make_table("b", pooling=pooling, module="m" if same_module else "n"),
    ]
    placements = [
        placed(kind, tuple(range(len(widths))), table=table, widths=widths)
        for (kind, widths), table in zip((first, second), tables, strict=True)
    ]
    plan, workload = Plan(placements=tuple(placements)), make_workload(*tables)
    found = width_problems(plan, workload)
    assert list(found) == ["m"] * wrong
    assert all("cut by columns into pieces of widths" in line for line in found.values())
    told = [line for line in runtime_warnings(plan, workload) if line.startswith("training")]
    assert told == [f"training will fail: {line}" for line in found.values()]
    assert runtime_warnings(plan, replace(workload, pipeline=Pipeline.HUGECTR)) == ()
