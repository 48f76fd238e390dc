"""Column pieces of unequal widths, into which TorchRec loads no checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Pipeline
from planner.options.torchrec_rules import runtime_warnings
from tests.integration.builders import make_table, placed
from tests.strategies import make_workload

CW = ShardingType.COLUMN_WISE


@pytest.mark.parametrize(
    ("widths", "pipeline", "wrong"),
    [
        ((8, 8), Pipeline.SPARSE_DIST, False),
        ((12, 4), Pipeline.SPARSE_DIST, True),
        ((4, 4, 8), Pipeline.NONE, True),
        ((12, 4), Pipeline.HUGECTR, False),
    ],
)
def test_they_are_named_as_far_as_torchrec_trains_them(
    widths: tuple[int, ...], pipeline: Pipeline, wrong: bool
) -> None:
    workload = replace(make_workload(make_table("a")), pipeline=pipeline)
    where = tuple(range(len(widths)))
    plan = Plan(placements=(placed(CW, where, table=workload.tables[0], widths=widths),))
    told = runtime_warnings(plan, workload)
    assert len(told) == wrong
    assert all("(a)" in line and "loads a checkpoint" in line for line in told)
