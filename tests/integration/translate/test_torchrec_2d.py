"""Group sizes of 2D parallelism, and cache statistics from index distributions."""

from __future__ import annotations

import pytest

pytest.importorskip("torchrec")

from hypothesis import given
from hypothesis import strategies as st
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import (
    EmbeddingShardingPlanner,
    validate_rank_assignment,
)
from torchrec.distributed.planner.proposers import EmbeddingOffloadScaleupProposer
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheAlgorithm, CacheParams

from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.topology import Topology
from planner.errors import InvalidInputError
from planner.integrations import torchrec_2d
from planner.integrations.torchrec_2d import group_choices
from planner.integrations.torchrec_cache import DistributionStatistics, with_cache_statistics
from planner.integrations.torchrec_workload import ModelDescription, WorkloadHints, describe_model
from tests.integration.builders import make_topology
from tests.integration.models import Model, bags, torchrec_topology

pytestmark = pytest.mark.torchrec

SHAPES = [("a", 20_000, 64), ("b", 5_000, 32)]
GIVEN = {n: ParameterConstraints(pooling_factors=[10.0]) for n, _, _ in SHAPES}
TOPOLOGY = make_topology(num_hosts=2, local=4)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches price few plans."""
    monkeypatch.setattr(torchrec_2d, "priced_plans", lambda *_: 10)


def described() -> ModelDescription:
    model = describe_model(Model(bags(SHAPES)), batch_size=64, constraints=GIVEN)
    assert model is not None
    return model


def ranks(topology: Topology | None) -> tuple[int, int] | None:
    return None if topology is None else (topology.num_hosts, topology.local_world_size)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("size", "beside", "between"),
    [(8, (2, 4), None), (4, (2, 2), (1, 4)), (2, (2, 1), (1, 2)), (1, None, (1, 1))],
)
def test_groups_lie_across_hosts_or_side_by_side(
    size: int, beside: tuple[int, int] | None, between: tuple[int, int] | None
) -> None:
    choices = group_choices(described(), TOPOLOGY, sync_interval=1, sizes=(size,))
    found = {c.use_inter_host_allreduce: c.result.problem.topology for c in choices}
    assert ranks(found.get(False)) == beside
    assert ranks(found.get(True)) == between


@pytest.mark.usefixtures("hasty")
def test_every_group_size_is_planned_and_the_fastest_comes_first() -> None:
    choices = group_choices(described(), TOPOLOGY, sync_interval=1, sizes=(2, 8), time_limit_s=60)
    assert [c.time_s for c in choices] == sorted(c.time_s for c in choices)
    assert {c.sharding_group_size for c in choices} == {2, 8}
    for choice in choices:
        assert choice.num_copies * choice.sharding_group_size == TOPOLOGY.world_size
        assert (choice.sync_s > 0) is (choice.num_copies > 1)
        plan = choice.sharding_plan(GIVEN)
        theirs = torchrec_topology(choice.sharding_group_size, choice.node_group_size)
        validate_rank_assignment(plan, theirs)


@pytest.mark.usefixtures("hasty")
def test_rare_syncs_favour_small_groups() -> None:
    def time_s(interval: int) -> float:
        (choice,) = [
            c
            for c in group_choices(
                described(), TOPOLOGY, sync_interval=interval, sizes=(4,), time_limit_s=60
            )
            if c.use_inter_host_allreduce
        ]
        return choice.time_s

    assert time_s(1000) < time_s(1)


@pytest.mark.parametrize(("sizes", "interval"), [((3,), 1), ((0,), 1), ((2,), 0)])
def test_impossible_groups_are_refused(sizes: tuple[int, ...], interval: int) -> None:
    with pytest.raises(InvalidInputError, match="must divide 8 ranks"):
        group_choices(described(), TOPOLOGY, sync_interval=interval, sizes=sizes)


# ------------------------------------------------------------------ cache statistics


@given(exponent=st.floats(0, 1.6), share=st.floats(0.01, 0.99))
def test_misses_fall_with_the_cache(exponent: float, share: float) -> None:
    statistics = DistributionStatistics(Zipf(num_embeddings=5000, exponent=exponent), 20_000)
    assert statistics.expected_miss_rate(0.0) == 1.0
    assert statistics.expected_miss_rate(1.0) == 0.0
    less = statistics.expected_miss_rate(share / 2)
    assert 0 <= statistics.expected_miss_rate(share) <= less <= 1
    assert 0 <= statistics.cacheability <= 1
    assert 0 < statistics.expected_lookups <= 5000


def test_hot_rows_cache_better() -> None:
    hot = DistributionStatistics(Zipf(num_embeddings=100_000, exponent=1.3), 10_000)
    flat = DistributionStatistics(Uniform(num_embeddings=100_000), 10_000)
    assert hot.expected_lookups < flat.expected_lookups
    assert hot.cacheability < flat.cacheability
    assert flat.expected_miss_rate(0.5) == pytest.approx(0.5, abs=0.05)
    assert hot.stable_fingerprint() != flat.stable_fingerprint()


def test_torchrecs_load_factor_search_runs_on_our_statistics() -> None:
    caching = {
        n: ParameterConstraints(
            pooling_factors=[10.0],
            compute_kernels=["fused_uvm_caching"],
            sharding_types=["table_wise"],
            cache_params=CacheParams(algorithm=CacheAlgorithm.LRU),
        )
        for n, _, _ in SHAPES
    }
    hints = WorkloadHints(default_distribution=lambda n: Zipf(num_embeddings=n, exponent=1.1))
    module = Model(bags(SHAPES))
    described = describe_model(module, batch_size=64, constraints=caching, hints=hints)
    assert described is not None
    given_statistics = with_cache_statistics(caching, described.workload, world_size=4)
    assert given_statistics["a"].cache_params is not None
    assert given_statistics["a"].cache_params.algorithm is CacheAlgorithm.LRU
    topology = torchrec_topology(4, 4)
    theirs = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=64,
        enumerator=EmbeddingEnumerator(topology, 64, constraints=given_statistics),
        proposer=EmbeddingOffloadScaleupProposer(),
        constraints=given_statistics,
        stats=[],
    )
    plan = theirs.plan(module, get_default_sharders()).plan["sparse.bags"]
    for sharding in plan.values():
        grown = sharding.cache_params.load_factor or 1.0
        assert sharding.compute_kernel == "fused" or grown > 0.2
    assert theirs.hash_planner_context_inputs_str()
