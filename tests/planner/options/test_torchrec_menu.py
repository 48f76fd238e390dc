"""The options of TorchRec's default planner, whose equal shards share one record."""

from __future__ import annotations

import pytest

from costmodels.sharding import ShardingType, row_block_columns
from costmodels.torchrec_estimates import TorchrecMachine
from planner.options.torchrec_default import DefaultOption, DefaultShard, default_options
from planner.problem import PlanningProblem
from tests.planner.report.report_samples import make_topology, make_workload

RANKS = 64


@pytest.fixture(scope="module")
def options() -> list[DefaultOption]:
    """All options of three tables on 64 ranks."""
    problem = PlanningProblem(workload=make_workload(3), topology=make_topology(8, 8))
    machine = TorchrecMachine.of(problem.topology)
    return [
        o for i in range(len(problem.workload.tables)) for o in default_options(problem, machine, i)
    ]


def test_equal_shards_of_many_ranks_share_one_record(options: list[DefaultOption]) -> None:
    by_rows = (ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL)
    found = [o for o in options if o.option.sharding_type in by_rows]
    assert {o.option.sharding_type for o in found} == set(by_rows)
    assert {len(o.shards) for o in found} == {RANKS}
    assert max(len(set(map(id, o.shards))) for o in found) <= 3


def test_shards_come_in_the_order_of_their_row_blocks(options: list[DefaultOption]) -> None:
    cut = next(o for o in options if o.option.sharding_type is ShardingType.ROW_WISE)
    sizes = row_block_columns(1000, RANKS)[1].tolist()
    shards = cut.shards
    assert len(set(sizes)) == 3
    equal = [shards[i] == shards[i - 1] for i in range(1, RANKS)]
    assert [sizes[i] == sizes[i - 1] for i in range(1, RANKS)] == equal


def test_figures_of_an_option_are_those_of_all_its_shards(options: list[DefaultOption]) -> None:
    for option in options:
        seconds, hbm, ddr = zip(*option.shards, strict=True)
        assert option.most == (max(seconds), max(hbm), max(ddr))
        assert option.total == (sum(seconds), sum(hbm), sum(ddr))
        assert all(isinstance(shard, DefaultShard) for shard in option.shards)
