"""Host kernels that are not listed: when a bound holds for them, and when they are listed.

Tables named ``p0``, ``p1`` and so on are pinned to host memory; ``free0`` and so on may have any
kernel. A free table is best looked up with the pinned ones, in their fused call.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Feature, Optimizer, Pipeline
from planner.api import estimate, floor, plan
from planner.objectives import objective_named
from planner.options.enumeration import enumerate_options
from planner.options.table_limits import crowded, table_limits
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.result import PlanningResult
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.common.linear import LinearModel
from planner.solving.prepare import BOUND_OF_LISTED
from planner.space.evaluation import SearchSpace
from tests.strategies import (
    make_device,
    make_placement,
    make_table,
    make_topology,
    make_workload,
)

IN_HOST = ComputeKernel.FUSED_UVM


def problem(num_pinned: int, num_free: int, kind: ShardingType) -> PlanningProblem:
    """Two ranks on which a fused call is dear, and tables that may be sharded in one way alone."""
    names = [*(f"p{i}" for i in range(num_pinned)), *(f"free{i}" for i in range(num_free))]
    tables = [
        make_table(
            name,
            num_embeddings=40_000 if name[0] == "p" else 400,
            embedding_dim=16,
            features=(Feature(name=name, pooling_factor=30.0 if name[0] == "p" else 0.001),),
        )
        for name in names
    ]
    rule = TableConstraint(pattern="p*", kernels=(IN_HOST,))
    return PlanningProblem(
        workload=make_workload(*tables, batch_size_per_rank=512, pipeline=Pipeline.NONE),
        topology=_dear_calls(make_topology(1, 2)),
        constraints=Constraints(tables=(rule,) if num_pinned else (), sharding_types=(kind,)),
    )


def _dear_calls(topology: Topology) -> Topology:
    return replace(
        topology,
        device=replace(topology.device, kernel_latency_s=1e-4),
        host=replace(topology.host, eager_call_s=0.0),
    )


def solved(asked: PlanningProblem) -> PlanningResult:
    return plan(
        asked.workload,
        asked.topology,
        constraints=asked.constraints,
        with_baselines=False,
        max_evaluations=100,
    )


def in_host_memory(asked: PlanningProblem) -> Plan:
    """Every table whole, in host memory, in turn on both ranks."""
    placements = []
    for i, table in enumerate(asked.workload.tables):
        placements.append(
            make_placement(
                table, ShardingType.TABLE_WISE, asked.topology, kernel=IN_HOST, where=(i % 2,)
            )
        )
    return Plan(placements=tuple(placements))


def test_a_bound_that_others_may_beat_is_said_to_be_of_the_listed_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = problem(2, 2, ShardingType.TABLE_WISE)
    known = estimate(asked.workload, asked.topology, in_host_memory(asked))
    best_s = known.estimate.time.time_s
    every = solved(asked)
    assert every.solver.value <= best_s * (1 + 1e-9)
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    listed = solved(asked)
    assert listed.solver.value > best_s
    assert any(BOUND_OF_LISTED in line for line in listed.searched)
    assert floor(asked).value <= best_s


def test_a_bound_holds_for_kernels_that_no_table_is_listed_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = problem(0, 3, ShardingType.TABLE_WISE)
    every = solved(free)
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    listed = solved(free)
    assert any("the bound still holds" in line for line in listed.searched)
    assert listed.bound is not None
    assert listed.bound <= every.solver.value * (1 + 1e-9)


def test_tables_with_one_option_each_leave_the_others_all_of_theirs() -> None:
    """A thousand pinned tables are no reason to leave kernels of the one free table out."""
    asked = problem(1001, 1, ShardingType.ROW_WISE)
    found = solved(asked)
    assert found.plan.placement("free0").kernel is IN_HOST
    assert not any("skipped" in line for line in found.searched)


def test_more_tables_than_an_array_has_axes_are_all_priced() -> None:
    """Every plan is priced where tables have few choices, however many tables there are."""
    asked = problem(70, 1, ShardingType.ROW_WISE)
    assert solved(asked).solver.gap_ratio == pytest.approx(0.0)


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAM])
def test_tables_left_out_where_memory_is_scarce_take_next_to_none_of_it(
    optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the optimizer's state: many small tables with a large state were left out, each small.

    Their kernels in host memory were not tried, and the bound allowed for them all the same.
    """
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    rows = [*(50_000 * (i + 1) for i in range(40)), 100, 120]
    tables = [make_table(f"t{i}", num_embeddings=n) for i, n in enumerate(rows)]
    workload = make_workload(*tables, optimizer=optimizer, batch_size_per_rank=4096)
    sizes = [workload.trained_bytes(t) for t in tables]
    device = make_device(hbm_capacity_bytes=0.6 * sum(sizes))
    asked = PlanningProblem(workload=workload, topology=make_topology(1, 2, device=device))
    pipeline = CostPipeline(workload, asked.topology)
    listing = enumerate_options(asked, pipeline)
    assert listing.left_out_tables == ("t40", "t41")
    assert sum(sizes[-2:]) < 1e-3 * pipeline.device_limits.sum() < sizes[0]
    space = SearchSpace(asked, pipeline, listing)
    made = RankFreeProgram(LinearModel(space, objective_named("iteration", space)))
    assert made.unlisted_bytes == pytest.approx(sum(sizes[-2:])), "buffers are the same anywhere"


def test_a_table_that_no_device_holds_is_not_left_out_however_many_ranks_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four ranks and half of all memory stand for thousands of ranks and a thousandth of it."""
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    monkeypatch.setattr("planner.options.enumeration._SMALL_RATIO", 0.5)
    tables = [make_table(f"t{i}", num_embeddings=n) for i, n in enumerate([1_200_000, 2_500_000])]
    workload = make_workload(*tables)
    full = make_topology(1, 4)
    taken = full.device.hbm_capacity_bytes - CostPipeline(workload, full).device_limits[0]
    room = workload.trained_bytes(tables[0]) / 1.2
    device = make_device(hbm_capacity_bytes=float(taken + room))
    asked = PlanningProblem(workload=workload, topology=make_topology(1, 4, device=device))
    pipeline = CostPipeline(workload, asked.topology)
    sizes = [workload.trained_bytes(t) for t in tables]
    assert crowded(asked, table_limits(asked), sizes, pipeline.device_limits)
    listing = enumerate_options(asked, pipeline)
    assert listing.left_out_tables == ()
