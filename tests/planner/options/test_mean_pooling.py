"""Plans that change what a module with mean-pooled tables computes are said to."""

from __future__ import annotations

import pytest

from costmodels.sharding import ShardingType
from costmodels.workload import Pipeline, Pooling
from planner import api
from planner.problem import Constraints, TableConstraint
from tests.strategies import make_table, make_topology, make_workload

ROW, TWRW = ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE
GRID, WHOLE = ShardingType.GRID_SHARD, ShardingType.TABLE_WISE


@pytest.mark.parametrize(
    ("mean", "other", "pooling", "same_module", "is_wrong"),
    [
        (ROW, ROW, Pooling.SUM, True, False),
        (ROW, TWRW, Pooling.MEAN, True, False),
        (ROW, WHOLE, Pooling.SUM, True, True),
        (ROW, WHOLE, Pooling.MEAN, True, True),
        (ROW, WHOLE, Pooling.SUM, False, False),
        (WHOLE, ROW, Pooling.SUM, True, False),
        (GRID, GRID, Pooling.MEAN, True, True),
        (WHOLE, WHOLE, Pooling.MEAN, True, False),
    ],
)
@pytest.mark.parametrize("pipeline", [Pipeline.SPARSE_DIST, Pipeline.HUGECTR])
def test_a_plan_is_warned_of_where_torchrec_divides_otherwise(
    mean: ShardingType,
    other: ShardingType,
    pooling: Pooling,
    same_module: bool,
    is_wrong: bool,
    pipeline: Pipeline,
) -> None:
    tables = (
        make_table("a", pooling=Pooling.MEAN, module="m"),
        make_table("b", pooling=pooling, module="m" if same_module else "n"),
    )
    rules = tuple(
        TableConstraint(pattern=name, sharding_types=(kind,))
        for name, kind in (("a", mean), ("b", other))
    )
    result = api.plan(
        make_workload(*tables, pipeline=pipeline),
        make_topology(2, 2),
        constraints=Constraints(tables=rules),
        max_evaluations=20,
        with_baselines=False,
    )
    told = [line for line in result.warnings if "TorchRec computes another model" in line]
    assert bool(told) is (is_wrong and pipeline is not Pipeline.HUGECTR)
    assert not told or "'a'" in told[0]
