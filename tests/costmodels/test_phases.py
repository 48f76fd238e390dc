"""The proven bound: phase maxima never exceed the iteration, tangents never exceed the phases."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.hierarchical import Hierarchical
from costmodels.datatypes import FloatArray
from costmodels.distribution.zipf import Zipf
from costmodels.floors.floor import leaf
from costmodels.floors.phases import ALL_REDUCE
from costmodels.lookup.base import AbstractLookupModel
from costmodels.lookup.fbgemm import Fbgemm
from costmodels.lookup.roofline import Roofline
from costmodels.measured.fbgemm_constants import FbgemmConstants
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import KERNELS, NUM_COLUMNS
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.training.communication import Communication, Precision
from costmodels.workload import DenseArch, Pipeline, Workload
from tests.lookups import lookup_columns
from tests.strategies import (
    make_host,
    make_placement,
    make_table,
    make_topology,
    make_workload,
    planned_workloads,
    plans,
)


def bound(pipeline: CostPipeline, work: FloatArray) -> float:
    """The lower bound of one plan's own work."""
    slowest = pipeline.phases.times(work).max(axis=-2)
    return pipeline.phases.base_s + float(slowest @ pipeline.phases.weights)


@given(planned_workloads())
def test_weighted_phase_maxima_never_exceed_the_iteration(
    case: tuple[Workload, Topology, Plan],
) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    work = pipeline.plan_work(plan)
    assert bound(pipeline, work) <= float(pipeline.iteration_times(work)) * (1 + 1e-9)


def test_tangents_hold_where_a_rank_also_carries_what_others_send() -> None:
    """In a hierarchical exchange the ranks of a domain share what one of them sends."""
    table, topology = make_table(), make_topology(2, 2)
    plan = Plan(placements=(make_placement(table, ShardingType.TABLE_WISE, topology),))
    models = CostModels(collective=Hierarchical(AlphaBeta()))
    pipeline = CostPipeline(make_workload(table), topology, models)
    work = pipeline.plan_work(plan)
    tangents = work @ pipeline.phases.gradient(work[0]).T
    assert (tangents <= pipeline.phases.times(work) * (1 + 1e-9)).all()


@pytest.mark.parametrize("law", [Fbgemm(), Roofline()], ids=["fbgemm", "roofline"])
@pytest.mark.parametrize("kind", list(Pipeline))
def test_the_bound_is_tight_where_nothing_overlaps_and_nothing_is_launched(
    kind: Pipeline, law: AbstractLookupModel
) -> None:
    """One table on one of two ranks, no host time and no latencies."""
    table = make_table(num_embeddings=10**6)
    topology = make_topology(local_world_size=2)
    free = dataclasses.replace(topology.device, kernel_latency_s=0.0)
    link = dataclasses.replace(topology.host_link, latency_s=0.0)
    host = make_host(eager_call_s=0.0)
    waits = ("forward_floor_s", "backward_floor_s", "chain_hit_s", "chain_miss_s")
    topology = dataclasses.replace(
        topology,
        device=free,
        host_link=link,
        host=host,
        lookup_constants=FbgemmConstants(**dict.fromkeys(waits, 0.0)),
    )
    workload = make_workload(table, batch_size_per_rank=8192, pipeline=kind)
    plan = Plan(placements=(make_placement(table, ShardingType.TABLE_WISE, topology),))
    pipeline = CostPipeline(workload, topology, CostModels(lookup=law))
    work = pipeline.plan_work(plan)
    assert bound(pipeline, work) > 0.8 * float(pipeline.iteration_times(work))


@pytest.mark.parametrize("kind", [Pipeline.NONE, Pipeline.SPARSE_DIST])
def test_the_floor_of_an_iteration_holds_the_floors_of_a_fused_call(kind: Pipeline) -> None:
    """FBGEMM's kernels take 0.1 ms for any call: the floor is the iteration itself."""
    table = make_table(num_embeddings=10**6)
    topology = make_topology(local_world_size=2, host=make_host(eager_call_s=0.0))
    workload = make_workload(table, batch_size_per_rank=8192, pipeline=kind)
    plan = Plan(placements=(make_placement(table, ShardingType.TABLE_WISE, topology),))
    pipeline = CostPipeline(workload, topology, CostModels(lookup=Fbgemm()))
    work = pipeline.plan_work(plan)
    floor = pipeline.floor.of(frozenset({ShardingType.TABLE_WISE}), fetches=False)
    slowest = pipeline.phases.times(work).max(axis=0)[None, floor.phases]
    found_s = float(floor.seconds(floor.leaf_seconds(slowest))[0])
    assert found_s == pytest.approx(float(pipeline.iteration_times(work)), rel=1e-6)
    assert found_s > bound(pipeline, work) + 1e-4


def test_a_slow_rank_does_not_slow_its_cache_fetch() -> None:
    """The fetch runs on the host link; dividing it by the speed made the bound too high."""
    table = make_table(num_embeddings=10**6)
    topology = make_topology(local_world_size=2, speed_by_rank_ratio=(0.1, 0.1))
    placement = make_placement(
        table,
        ShardingType.TABLE_WISE,
        topology,
        kernel=ComputeKernel.FUSED_UVM_CACHING,
        cache_load_factor_ratio=0.01,
    )
    pipeline = CostPipeline(make_workload(table, batch_size_per_rank=8192), topology)
    work = pipeline.plan_work(Plan(placements=(placement,)))
    assert bound(pipeline, work) <= float(pipeline.iteration_times(work))


# ------------------------------------------------------------------ phases


@given(planned_workloads(), st.data())
def test_phases_are_homogeneous_and_convex(
    case: tuple[Workload, Topology, Plan], data: st.DataObject
) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    one, other = pipeline.plan_work(plan), pipeline.plan_work(data.draw(plans(workload, topology)))
    mean = pipeline.phases.times((one + other) / 2)
    assert np.all(
        mean <= (pipeline.phases.times(one) + pipeline.phases.times(other)) / 2 * (1 + 1e-9)
    )
    np.testing.assert_allclose(
        pipeline.phases.times(3.0 * one), 3.0 * pipeline.phases.times(one), rtol=1e-9
    )


def test_phases_broadcast_over_leading_axes() -> None:
    topology = make_topology(2, 2)
    workload = make_workload()
    pipeline = CostPipeline(workload, topology)
    works = np.random.default_rng(0).uniform(0, 1e6, (3, 5, 4, NUM_COLUMNS))
    times = pipeline.phases.times(works)
    assert times.shape == (3, 5, 4, len(pipeline.phases.weights))
    np.testing.assert_allclose(times[1, 2], pipeline.phases.times(works[1, 2]))


# ------------------------------------------------------------------ tangents


def assert_tangent(pipeline: CostPipeline, at: FloatArray, work: FloatArray) -> None:
    """Every rank's phases lie above the tangent taken at ``at``."""
    gradient = pipeline.phases.gradient(at)
    assert np.all(gradient >= 0)
    below = work @ gradient.T
    above = pipeline.phases.times(work)
    assert np.all(below <= above * (1 + 1e-9) + 1e-18)


@given(planned_workloads(), st.data())
def test_tangents_lie_below_the_phases_of_every_plan(
    case: tuple[Workload, Topology, Plan], data: st.DataObject
) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    other = pipeline.plan_work(data.draw(plans(workload, topology)))
    at = pipeline.plan_work(plan)[data.draw(st.integers(0, topology.world_size - 1))]
    for point in (at, np.zeros(NUM_COLUMNS), other.mean(axis=0)):
        assert_tangent(pipeline, point, other)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", list(Pipeline))
def test_tangents_lie_below_the_phases_of_random_work(seed: int, kind: Pipeline) -> None:
    """Any non-negative work, also with entries and whole kernels missing."""
    rng = np.random.default_rng(seed)
    topology = make_topology(3, 2, domain_hosts=2, speed_by_rank_ratio=(1, 2, 0.5, 1, 1, 0.3))
    pipeline = CostPipeline(make_workload(pipeline=kind), topology)
    size = (50, 6, NUM_COLUMNS)
    work = 10 ** rng.uniform(-2, 10, size) * (rng.random(size) < 0.6)
    at = 10 ** rng.uniform(-2, 10, NUM_COLUMNS) * (rng.random(NUM_COLUMNS) < 0.6)
    for kernel in KERNELS:
        if rng.random() < 0.5:
            at[lookup_columns(kernel)] = 0.0
        work[rng.random(50) < 0.5, :, lookup_columns(kernel)] = 0.0
    assert_tangent(pipeline, at, work)


def test_tangents_touch_the_lookup_phases_where_they_are_taken() -> None:
    topology = make_topology(local_world_size=2)
    tables = tuple(make_table(f"t{i}", num_embeddings=10 ** (3 + i)) for i in range(3))
    pipeline = CostPipeline(make_workload(*tables), topology)
    placed = tuple(make_placement(t, ShardingType.TABLE_WISE, topology) for t in tables)
    work = pipeline.plan_work(Plan(placements=placed))
    below = pipeline.phases.gradient(work[0]) @ work[0]
    np.testing.assert_allclose(below[:2], pipeline.phases.times(work)[0, :2], rtol=1e-3)


def test_no_work_costs_no_phase_and_exchanges_are_free_on_one_rank() -> None:
    topology = make_topology(1, 1)
    pipeline = CostPipeline(make_workload(), topology)
    assert np.all(pipeline.phases.times(np.zeros((1, NUM_COLUMNS))) == 0)
    work = np.full((1, NUM_COLUMNS), 1e6)
    assert np.all(pipeline.phases.times(work)[0, 2:-1] == 0)


def test_a_floor_leaves_out_what_is_decoded_while_the_host_issues_the_update() -> None:
    """A rank decodes its gradients before the backward lookup, for which it may wait for the host.

    Both are one phase. Counted at the lookup as a whole, the decoding would come after the wait;
    counted at the decoding as a whole, the lookup would not. The lookup is a phase of its own too.
    """
    law = Zipf(num_embeddings=20_000, exponent=1.05)
    table = make_table(num_embeddings=20_000, embedding_dim=256, distribution=law)
    codecs = Communication.of(Precision.FP16, Precision.INT8)
    workload = make_workload(table, batch_size_per_rank=8192, dense=DenseArch()).communicating(
        codecs
    )
    topology = make_topology(local_world_size=2)
    kind = ShardingType.TABLE_WISE
    plan = Plan(placements=(make_placement(table, kind, topology),))
    pipeline = CostPipeline(workload, topology)
    work = pipeline.plan_work(plan)
    program, times = pipeline.scheduled(pipeline.stage_times(work), (2,))
    names = [step.name for step in program.steps]
    decoded, updated = (names.index(n) for n in ("gradient dequantize", "lookup backward"))
    assert times.start_s[updated][0] > times.finish_s[decoded][0]
    assert program.steps[decoded].duration_s[0] > 1e-5
    floor = pipeline.floor.of(frozenset({kind}), fetches=False)
    slowest = pipeline.phases.times(work).max(axis=0)[None, floor.phases]
    found_s = floor.seconds(floor.leaf_seconds(slowest))[0]
    assert found_s == pytest.approx(float(times.iteration_time_s), rel=1e-9)


@given(planned_workloads(), st.booleans())
def test_a_floor_of_plans_that_may_replicate_is_never_above_one_of_them(
    case: tuple[Workload, Topology, Plan], has_dense: bool
) -> None:
    """Whatever the plan replicates, and whether the model has dense gradients to reduce or none."""
    workload, topology, plan = case
    if not has_dense:
        workload = dataclasses.replace(workload, dense=DenseArch())
    pipeline = CostPipeline(workload, topology)
    work = pipeline.plan_work(plan)
    kinds = frozenset(p.sharding_type for p in plan.placements)
    others = kinds - {ShardingType.DATA_PARALLEL}
    if others and pipeline.models.exchange is None:
        for types, may_replicate in ((others, True), (kinds, False)):
            floor = pipeline.floor.of(types, fetches=True, may_replicate=may_replicate)
            slowest = pipeline.phases.times(work).max(axis=-2)[None, floor.phases]
            least_s = float(floor.seconds(floor.leaf_seconds(slowest))[0])
            assert least_s <= float(pipeline.iteration_times(work)) * (1 + 1e-9)


@pytest.mark.parametrize("has_dense", [True, False])
def test_what_replicated_tables_send_counts_where_plans_may_have_them(has_dense: bool) -> None:
    """It cost nothing in models without a dense part, so bounds replicated tables for free."""
    table = make_table(num_embeddings=10**6)
    dense = make_workload(table).dense if has_dense else DenseArch()
    workload = make_workload(table, dense=dense, cuda_graph=True)
    pipeline = CostPipeline(workload, make_topology(local_world_size=2))
    kind = frozenset({ShardingType.TABLE_WISE})
    floor = pipeline.floor.of(kind, fetches=False, may_replicate=True)
    own_s = np.zeros((2, len(floor.phases)))
    own_s[1, floor.phases == ALL_REDUCE] = 0.01
    least_s = floor.seconds(floor.leaf_seconds(own_s))
    assert least_s[1] - least_s[0] == pytest.approx(0.01, rel=1e-6)
    never = pipeline.floor.of(kind, fetches=False)
    assert ALL_REDUCE not in never.phases
    assert never.seconds(never.leaf_seconds(np.zeros((1, len(never.phases)))))[0] == least_s[0]


@pytest.mark.parametrize("constant_s", [0.0, 1e-3, 7_501_269.85354983])
def test_straight_minorants_of_durations_of_every_size(constant_s: float) -> None:
    """At months (links of 1 B/s) a phase adds less than the last digit: it ended as a bug."""
    found = leaf(ALL_REDUCE, lambda seconds: constant_s + 2.0 * seconds)
    assert 0.9 * min(constant_s, 300.0) <= found.constant_s <= constant_s
