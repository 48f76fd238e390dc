"""Published measurements: the figures the README quotes, and the plans behind them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from costmodels.collective.hierarchical import Hierarchical
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType, check_plan
from costmodels.system_models import default_models
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner import io
from planner.io.importers.base import placed
from planner.validation.cases import summarize
from planner.validation.steps import load_cases, plan_from_matrix, predict


@pytest.fixture(scope="module")
def predictions() -> tuple:
    return tuple(predict(case) for case in load_cases())


def test_every_measured_system_is_a_case_with_a_valid_plan() -> None:
    cases = load_cases()
    assert len(cases) == 29
    for case in cases:
        check_plan(case.plan, case.workload, case.topology.world_size)
        assert case.measured_s > 0
        assert case.reference


def test_errors_are_within_the_target_and_beat_the_naive_roofline(predictions: tuple) -> None:
    ours, naive = summarize(predictions).values()
    assert ours.mean_error_ratio <= 0.08
    assert ours.worst_error_ratio <= 0.15
    assert ours.mean_error_ratio < naive.mean_error_ratio
    assert ours.worst_error_ratio < naive.worst_error_ratio


def test_intervals_hold_the_measurements(predictions: tuple) -> None:
    for p in predictions:
        assert p.shipped.low_s <= p.case.measured_s <= p.shipped.high_s


def test_a_matrix_replicates_small_tables_and_splits_rows() -> None:
    workload = io.load_workload("dlrm_dcnv2_hugectr")
    topology = io.load_system("h100_sxm", gpus=2)
    every = list(range(26))
    plan = plan_from_matrix([every, [t for t in every if t != 0]], workload, topology, 0.008)
    first, small = plan.placement("t_cat_0"), plan.placement("t_cat_5")
    assert first.sharding_type is ShardingType.TABLE_WISE
    assert small.kernel is ComputeKernel.DENSE
    large = plan.placement("t_cat_9")
    assert large.sharding_type is ShardingType.ROW_WISE
    assert [s.num_rows for s in large.shards] == [20_000_000, 20_000_000]


def by_host(workload: Workload, topology: Topology) -> Plan:
    """Large tables by rows over one host each, small ones on all ranks."""
    small = [3, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17, 18, 24, 25]
    placements, everywhere = [], list(range(topology.world_size))
    for i, table in enumerate(workload.tables):
        if i in small:
            placements.append(placed(table, ShardingType.DATA_PARALLEL, everywhere))
        else:
            first = 8 * (i % topology.num_hosts)
            host = everywhere[first : first + 8]
            placements.append(placed(table, ShardingType.TABLE_ROW_WISE, host))
    return Plan(placements=tuple(placements))


@pytest.mark.parametrize("system", ["a100_80gb_sxm", "h100_sxm", "b200_sxm", "gb200"])
def test_more_hosts_finish_a_fixed_batch_sooner(system: str) -> None:
    seconds, per_host = [], 8
    for gpus in (16, 32, 64):
        topology = io.load_system(system, gpus=gpus, gpus_per_host=per_host)
        workload = io.load_workload("dlrm_dcnv2_hugectr")
        workload = replace(workload, batch_size_per_rank=135_168 // gpus)
        models = default_models(topology)
        models = replace(models, collective=Hierarchical(models.collective))
        plan = by_host(workload, topology)
        time = CostPipeline(workload, topology, models).estimate(plan).time
        assert time.low_s < time.time_s < time.high_s
        seconds.append(time.time_s)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] > seconds[0] / 4


def test_the_command_prints_cases_and_json(predictions: tuple) -> None:
    from planner.cli.commands.validate import command
    from planner.cli.console import Settings

    text = CliRunner().invoke(command, ["published"], obj=Settings(), standalone_mode=False)
    assert text.exception is None
    assert text.output.count("h100_sxm") >= 10
    data = CliRunner().invoke(
        command, ["published", "--json"], obj=Settings(), standalone_mode=False
    )
    cases = json.loads(data.output)["systems"]["cases"]
    assert [c["predicted_s"] for c in cases] == [p.shipped.time_s for p in predictions]
