"""Bounds hold where one shard takes most of a host's memory, or of the largest device's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.sharding import ShardingType
from costmodels.topology import Topology
from costmodels.units import GIB
from planner import api
from planner.problem import Constraints
from planner.search.auto import Auto
from tests.planner.cases import scheduled
from tests.strategies import make_device, make_host, make_table, make_topology, make_workload

pytestmark = pytest.mark.usefixtures("no_process_beside")

OURS = ("iteration", "phases")
TORCHRECS = ("torchrec", "torchrec-critical-path")


def _one_host() -> Topology:
    """A table takes more than half of the host's memory."""
    device = make_device(hbm_capacity_bytes=20 * GIB)
    return make_topology(1, 2, device=device, host=make_host(ddr_capacity_bytes=130 * GIB))


def _one_large_device() -> Topology:
    """A table fits the first device alone."""
    capacities = tuple(gib * GIB for gib in (120.0, 20.0, 20.0, 20.0))
    topology = make_topology(2, 2, host=make_host(ddr_capacity_bytes=1 * GIB))
    return replace(topology, hbm_capacity_by_rank_bytes=capacities)


@pytest.mark.parametrize("kinds", [(ShardingType.TABLE_WISE,), tuple(ShardingType)])
@pytest.mark.parametrize(
    ("topology", "objective"),
    [
        *((_one_host(), name) for name in OURS),  # TorchRec gives each rank its part of the host
        *((_one_large_device(), name) for name in (*OURS, *TORCHRECS)),
    ],
)
def test_a_plan_that_fits_is_above_the_bound(
    topology: Topology, objective: str, kinds: tuple[ShardingType, ...]
) -> None:
    large = make_table("large", num_embeddings=180_000_000, embedding_dim=128)
    small = [make_table(f"s{i}", num_embeddings=10**6, embedding_dim=64) for i in range(4)]
    with scheduled(exhaustive_s=0.0, second_size=10**9):  # bounds are proven and not counted out
        result = api.plan(
            make_workload(large, *small, batch_size_per_rank=512),
            topology,
            constraints=Constraints(sharding_types=kinds),
            objective=objective,
            max_evaluations=20,
            time_limit_s=None,
            strategy=Auto(),
            with_baselines=False,
        )
    bound = result.solver.bound
    assert bound is not None
    assert bound <= result.solver.value * (1 + 1e-9)
