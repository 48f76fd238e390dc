"""The plan that TorchRec's planner makes, re-made without torch, equals TorchRec's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torchrec", reason="compares with torchrec, which is not installed")

from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.optim import RowWiseAdagrad

from benchmarks.search.torchrec_instances import Instance, instance, synthetic, system
from costmodels.sharding import Plan, ShardingType
from planner import load_system
from planner.integrations.torchrec_topology import topology_to_torchrec
from planner.options.torchrec_default import torchrec_default
from planner.problem import PlanningProblem
from tests.integration.models import bags
from tests.integration.read_back import from_sharding_plan

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]


def theirs(case: Instance) -> tuple[Plan | None, float]:
    """What ``EmbeddingShardingPlanner`` returns with its defaults, and its rating in seconds."""
    module = nn.Module()
    shapes = [(t.name, t.num_embeddings, t.embedding_dim) for t in case.workload.tables]
    module.embedding_bag_collection = bags(shapes)
    for parameter in module.parameters():
        parameter._optimizer_classes = [RowWiseAdagrad]
        parameter._optimizer_kwargs = [{}]
    planner = EmbeddingShardingPlanner(
        topology=topology_to_torchrec(case.topology, "cuda"),
        batch_size=case.workload.batch_size_per_rank,
        constraints={
            t.name: ParameterConstraints(pooling_factors=[f.pooling_factor for f in t.features])
            for t in case.workload.tables
        },
        stats=NoopEmbeddingStats(),
        debug=False,
    )
    try:
        plan = planner.plan(module, [EmbeddingBagCollectionSharder()])
    except PlannerError:
        return None, float("inf")
    rating = planner._perf_model.rate(planner._best_plan or [])
    return from_sharding_plan(plan, case.workload), rating / 1e3


def random_case(seed: int) -> Instance:
    """A dozen tables on one to four hosts, some of them short of memory."""
    workload = synthetic(6 + seed, seed=seed)
    topology = system((8, 16, 32)[seed % 3], a100=seed % 2 == 0)
    if seed % 3 == 2:
        size = float(sum(t.weight_bytes for t in workload.tables))
        device = replace(topology.device, hbm_capacity_bytes=1.6 * size / topology.world_size)
        topology = replace(topology, device=device)
    return Instance(name=f"random{seed}", workload=workload, topology=topology)


def shipped(name: str, gpus: int) -> Instance:
    """Tables of a published model on a shipped system."""
    case = instance(name)
    return Instance(name=name, workload=case.workload, topology=load_system("h100_sxm", gpus=gpus))


CASES = (
    instance("criteo26@8"),
    instance("criteo26@16/a100"),
    shipped("criteo26@16", 16),
    *(random_case(seed) for seed in range(7)),
)


def cut(plan: Plan) -> list[tuple[object, ...]]:
    """Shards and kernels of every table; one piece has one name, whatever splits it might have."""
    kinds = {
        ShardingType.COLUMN_WISE: ShardingType.TABLE_WISE,
        ShardingType.TABLE_COLUMN_WISE: ShardingType.TABLE_WISE,
    }
    return [
        (
            p.table,
            kinds.get(p.sharding_type, p.sharding_type) if len(p.shards) == 1 else p.sharding_type,
            p.kernel,
            p.shards,
        )
        for p in sorted(plan.placements, key=lambda p: p.table)
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_plan_equals_that_of_torchrec(case: Instance) -> None:
    plan, rating_s = theirs(case)
    found = torchrec_default(PlanningProblem(workload=case.workload, topology=case.topology))
    assert not found.is_cut
    assert (found.plan is None) == (plan is None)
    if plan is None or found.plan is None:
        return
    assert found.rating_s == pytest.approx(rating_s, rel=1e-6)
    assert cut(found.plan) == cut(plan)
