"""Our models and our search inside TorchRec's own planner."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    ShardingOption,
)
from torchrec.distributed.sharding_plan import get_default_sharders

from costmodels.distribution.zipf import Zipf
from planner import api
from planner.errors import InvalidInputError
from planner.integrations.torchrec_parts import (
    PredictedCosts,
    PredictedIteration,
)
from planner.integrations.torchrec_plan import plan_of
from planner.integrations.torchrec_workload import WorkloadHints
from tests.integration.models import Model, bags, sequences, torchrec_topology

pytestmark = pytest.mark.torchrec

BATCH = 4096
SHAPES = [("a", 200_000, 64), ("b", 50_000, 128), ("c", 1_000, 64), ("d", 90_000, 32)]
POOLING = {"a": 20.0, "b": 3.0, "c": 50.0, "d": 1.0}
TOPOLOGY = torchrec_topology(4, 2)


def constraints(**changes: Any) -> dict[str, ParameterConstraints]:
    return {n: ParameterConstraints(pooling_factors=[p], **changes) for n, p in POOLING.items()}


def model() -> Model:
    return Model(bags(SHAPES), sequences([("s", 500, 16)]))


def torchrecs(given: dict[str, ParameterConstraints], **parts: Any) -> EmbeddingShardingPlanner:
    return EmbeddingShardingPlanner(
        topology=TOPOLOGY,
        batch_size=BATCH,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.15),
        constraints=given,
        stats=[],
        **parts,
    )


def best_of(planner: EmbeddingShardingPlanner) -> list[ShardingOption]:
    planner.plan(model(), get_default_sharders())
    best = planner._best_plan
    assert best is not None
    return best


def enumerated(
    given: dict[str, ParameterConstraints], hints: WorkloadHints | None = None
) -> list[ShardingOption]:
    costs = PredictedCosts(TOPOLOGY, given, hints=hints or WorkloadHints())
    estimators = [costs, EmbeddingStorageEstimator(topology=TOPOLOGY, constraints=given)]
    enumerator = EmbeddingEnumerator(
        TOPOLOGY, batch_size=BATCH, constraints=given, estimator=estimators
    )
    return list(enumerator.enumerate(model(), get_default_sharders()))


def total(options: list[ShardingOption], table: str, kind: str, kernel: str = "fused") -> float:
    (option,) = [
        o for o in options if (o.name, o.sharding_type, o.compute_kernel) == (table, kind, kernel)
    ]
    return float(option.total_perf)


def test_every_shard_gets_a_cost_of_ours() -> None:
    options = enumerated(constraints())
    assert {o.sharding_type for o in options} >= {"data_parallel", "row_wise", "table_row_wise"}
    assert all(s.perf.total > 0 for o in options for s in o.shards if s.size[0])
    assert total(options, "a", "table_wise") > total(options, "d", "table_wise")
    assert total(options, "a", "table_wise", "fused_uvm") > total(options, "a", "table_wise")


def test_costs_know_what_torchrecs_do_not() -> None:
    """Hot rows stay in the cache, and row-wise shards send partial sums from every rank."""
    skewed = WorkloadHints(default_distribution=lambda n: Zipf(num_embeddings=n, exponent=1.3))
    flat = total(enumerated(constraints()), "a", "table_wise")
    assert total(enumerated(constraints(), skewed), "a", "table_wise") < flat


def test_torchrecs_search_runs_on_our_costs() -> None:
    given = constraints()
    estimators = [
        PredictedCosts(TOPOLOGY, given),
        EmbeddingStorageEstimator(topology=TOPOLOGY, constraints=given),
    ]
    enumerator = EmbeddingEnumerator(
        TOPOLOGY, batch_size=BATCH, constraints=given, estimator=estimators
    )
    best = best_of(torchrecs(given, enumerator=enumerator))
    by_hand = enumerated(given)
    for option in best:
        listed = total(by_hand, option.name, option.sharding_type, option.compute_kernel)
        assert option.total_perf == pytest.approx(listed)


def test_our_rating_picks_the_best_of_torchrecs_proposals() -> None:
    given = constraints()
    rate = PredictedIteration(TOPOLOGY, given)
    ours = best_of(torchrecs(given, performance_model=rate))
    theirs = best_of(torchrecs(given))
    assert rate.rate(ours) <= rate.rate(theirs)


def test_a_rating_is_the_predicted_iteration_time() -> None:
    given = constraints()
    best = best_of(torchrecs(given))
    rate = PredictedIteration(TOPOLOGY, given)
    pipeline = rate.read(best)
    priced = api.estimate(pipeline.workload, pipeline.topology, plan_of(best))
    assert rate.rate(best) == pytest.approx(priced.estimate.time.time_s * 1e3, rel=1e-6)
    assert len(pipeline.workload.tables) == len(SHAPES) + 1


def test_kernels_without_a_model_are_named() -> None:
    options = enumerated(constraints())
    options[0].compute_kernel = "key_value"
    with pytest.raises(InvalidInputError, match="'key_value' has no cost model"):
        PredictedCosts(TOPOLOGY, constraints()).estimate(options, {})


def test_the_sharders_of_bags_alone_are_enough() -> None:
    rate = PredictedIteration(TOPOLOGY, constraints(), sharders=[EmbeddingBagCollectionSharder()])
    assert rate.rate(best_of(torchrecs(constraints()))) > 0
