"""A near-tie never goes to slower memory: tables stay in device memory where that has room."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints, Topology

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from planner.integrations.drop_in import emptier, host_bytes
from planner.integrations.torchrec_planner import ShardPlanner
from planner.options.torchrec_rules import pooling_problems
from planner.problem import NO_CONSTRAINTS, Constraints, PlanningProblem, TableConstraint
from tests.found.drawn_torchrec import slower_memories
from tests.integration.builders import make_table, make_topology, placed
from tests.integration.models import Model, bags
from tests.strategies import make_workload

pytestmark = pytest.mark.torchrec

GB = 2**30
FAR = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)


@pytest.mark.parametrize(
    ("world", "hbm_gb", "rows", "batch"),
    [
        (4, 32, 40_000_000, 256),
        (4, 80, 40_000_000, 512),
        (8, 80, 100_000_000, 512),
        (8, 80, 100_000_000, 2048),
    ],
)
def test_large_tables_stay_in_free_device_memory(
    world: int, hbm_gb: int, rows: int, batch: int
) -> None:
    topology = Topology(world, "cuda", hbm_cap=hbm_gb * GB, local_world_size=world)
    model = Model(bags([(f"t{i}", 20_000 if i else rows, 64) for i in range(8)]))
    plan = ShardPlanner(topology, batch, stats=[]).plan(model, [EmbeddingBagCollectionSharder()])
    assert {s.compute_kernel for s in plan.plan["sparse.bags"].values()} <= {"fused", "dense"}


def test_what_has_to_be_in_host_memory_stays_there() -> None:
    topology = Topology(2, "cuda", hbm_cap=32 * GB, local_world_size=2)
    only = {"a": ParameterConstraints(compute_kernels=["fused_uvm"])}
    model = Model(bags([("a", 1000, 64), ("b", 1000, 64)]))
    planner = ShardPlanner(topology, 64, stats=[], constraints=only)
    plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
    assert plan.plan["sparse.bags"]["a"].compute_kernel == "fused_uvm"


def far_plan(kernel: ComputeKernel, **changes: object) -> tuple[Plan, CostPipeline]:
    """Two tables in host memory on one rank of four, and one that crowds that rank's device."""
    tables = [make_table(n, 1000, 64, **changes) for n in "ab"]
    crowd = make_table("crowd", 3_000_000, 256)
    topology = make_topology(1, 4)
    topology = replace(topology, device=replace(topology.device, hbm_capacity_bytes=3.2e9))
    workload = make_workload(*tables, crowd, batch_size_per_rank=64)
    ratio = 0.2 if kernel is ComputeKernel.FUSED_UVM_CACHING else None
    where = {"world": 4, "local": 4}
    far = [
        placed(ShardingType.TABLE_WISE, (0,), table=t, kernel=kernel, ratio=ratio, **where)
        for t in tables
    ]
    full = placed(ShardingType.TABLE_WISE, (0,), table=crowd, **where)
    return Plan(placements=(*far, full)), CostPipeline(workload, topology)


def nearer(
    plan: Plan, pipeline: CostPipeline, most_s: float = 1.0, rules: Constraints = NO_CONSTRAINTS
) -> Plan:
    """The plan after its tables have gone to device memory."""
    problem = PlanningProblem(
        workload=pipeline.workload, topology=pipeline.topology, constraints=rules
    )
    return emptier(plan, problem, CostPipeline, most_s)


@pytest.mark.parametrize("kernel", FAR)
def test_tables_go_to_device_memory_on_whichever_rank_has_room(kernel: ComputeKernel) -> None:
    plan, pipeline = far_plan(kernel)
    found = nearer(plan, pipeline)
    assert host_bytes(pipeline, plan) > 0 == host_bytes(pipeline, found)
    assert pipeline.memory(found).fits


def test_constraints_times_and_means_are_kept() -> None:
    plan, pipeline = far_plan(ComputeKernel.FUSED_UVM)
    rule = TableConstraint(pattern="a", kernels=(ComputeKernel.FUSED_UVM,))
    limited = Constraints(tables=(rule,))
    found = nearer(plan, pipeline, rules=limited)
    assert [p.kernel in FAR for p in found.placements] == [True, False, False]
    assert nearer(plan, pipeline, most_s=0.0) == plan
    plan, pipeline = far_plan(ComputeKernel.FUSED_UVM, pooling="mean")
    found = nearer(plan, pipeline)
    assert host_bytes(pipeline, found) == 0
    assert not pooling_problems(found, pipeline.workload)


@pytest.mark.parametrize("seed", range(1, 4))
def test_drawn_models_are_in_no_slower_memory_than_torchrecs(seed: int) -> None:
    assert slower_memories(seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *range(4, 100)])
def test_more_drawn_models_are_in_no_slower_memory_than_torchrecs(seed: int) -> None:
    assert slower_memories(seed) == []
