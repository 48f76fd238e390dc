"""What the law of FBGEMM's kernels says, and whose kernels it leaves to others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import poisson

from costmodels.datatypes import FloatArray
from costmodels.distribution.base import side_by_side
from costmodels.distribution.zipf import Zipf
from costmodels.lookup.fbgemm import DEFAULTS, Fbgemm, call_sigma
from costmodels.lookup.roofline import Roofline
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.stages.models import CostModels
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import Feature, HostProfile, Pipeline
from planner.io.system.system_file import load_system
from tests.strategies import make_placement, make_table, make_topology, make_workload

CACHED = ComputeKernel.FUSED_UVM_CACHING
LONG = (Feature(name="long", pooling_factor=40.0),)


@pytest.mark.parametrize("scattered", [True, False])
def test_rows_with_many_indices_are_counted(scattered: bool) -> None:
    law = Zipf(num_embeddings=10**5, exponent=1.1, scattered=scattered)
    rows, probability = law.frequency_bins()
    expected = float((rows * poisson.sf(32, probability * 1e6)).sum())
    laws, at = side_by_side((law,)), np.zeros(2, dtype=np.int64)
    halves = laws.busy_rows_in_range(
        at, np.full(2, 1e6), np.array([0, 50_000]), np.full(2, 50_000), 32.0
    )
    assert halves.sum() == pytest.approx(expected, rel=0.01)
    assert (halves[0] == pytest.approx(halves[1])) == scattered


@pytest.mark.parametrize(
    ("changes", "is_fbgemm"),
    [
        ({}, True),
        ({"pipeline": Pipeline.HUGECTR}, False),
        ({"host_profile": HostProfile.EAGER_2021}, False),
    ],
)
def test_kernels_of_other_frameworks_keep_their_law(
    changes: dict[str, object], is_fbgemm: bool
) -> None:
    pipeline = CostPipeline(make_workload(make_table(), **changes), make_topology())
    assert isinstance(pipeline.lookup, Fbgemm if is_fbgemm else Roofline)


def test_a_table_that_fbgemm_would_not_update_so_keeps_the_other_law() -> None:
    table = make_table(row_update=RowUpdate.PER_INDEX)
    assert isinstance(CostPipeline(make_workload(table), make_topology()).lookup, Roofline)
    alone = CostModels(lookup=Fbgemm())
    assert isinstance(CostPipeline(make_workload(table), make_topology(), alone).lookup, Fbgemm)


def test_each_fused_call_pays_its_floor() -> None:
    """Two tables in one kind of sharding are one call, in two kinds two."""
    tables = (make_table(name="a"), make_table(name="b"))
    topology = make_topology(local_world_size=2)
    pipeline = CostPipeline(make_workload(*tables), topology)

    def backward_s(*kinds: ShardingType) -> FloatArray:
        placed = [make_placement(t, k, topology) for t, k in zip(tables, kinds, strict=True)]
        work = pipeline.plan_work(Plan(placements=tuple(placed)))
        return pipeline.stage_times(work).lookup_backward_s

    same = backward_s(ShardingType.ROW_WISE, ShardingType.ROW_WISE)
    mixed = backward_s(ShardingType.ROW_WISE, ShardingType.TABLE_WISE)
    floor = pipeline.lookup.call_floor(ComputeKernel.FUSED, topology)
    assert floor.backward_s == DEFAULTS.backward_floor_s
    assert same.min() > floor.backward_s
    assert same.max() < 2 * floor.backward_s
    assert mixed.max() > 2 * floor.backward_s


def test_a_cache_has_floors_of_its_own() -> None:
    fused, cached = (
        Fbgemm(chain_s=1e-6).call_floor(k, make_topology()) for k in (ComputeKernel.FUSED, CACHED)
    )
    assert fused.forward_s == cached.forward_s == DEFAULTS.forward_floor_s + 1e-6
    assert fused.fetch_s == 0.0
    assert cached.fetch_s == DEFAULTS.cache_floor_s
    assert cached.backward_s > fused.backward_s


def test_longer_bags_have_a_longer_chain() -> None:
    topology, chains = make_topology(), []
    for changes in ({}, {"features": LONG}, {"embedding_dim": 256}):
        pipeline = CostPipeline(make_workload(make_table(**changes)), topology)
        assert isinstance(pipeline.lookup, Fbgemm)
        chains.append(pipeline.lookup.chain_s)
    assert chains[0] < min(chains[1:])


def test_constants_of_a_system_replace_the_shipped_ones() -> None:
    slower = dataclasses.replace(DEFAULTS, forward_floor_s=1e-3)
    topology = make_topology(lookup_constants=slower)
    assert Fbgemm().call_floor(ComputeKernel.FUSED, topology).forward_s == 1e-3


def test_intervals_are_wider_on_cards_that_were_not_measured() -> None:
    systems = [load_system(n, gpus=1, gpus_per_host=1) for n in ("h200_sxm", "h100_sxm", "l40s")]
    sigmas = [call_sigma(s, ComputeKernel.FUSED, is_pooled=True) for s in systems]
    assert sigmas == sorted(sigmas)
    assert len(set(sigmas)) == 3
    own = dataclasses.replace(systems[2], lookup_constants=DEFAULTS)
    assert call_sigma(own, ComputeKernel.FUSED, is_pooled=True) == sigmas[0]
    assert call_sigma(own, CACHED, is_pooled=False) > sigmas[0]
