"""Estimates: interval, throughput, confidence, warnings, provenance; and what the stages are."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.dense.base import dense_layers, dense_parameters
from costmodels.dense.roofline import DenseRoofline as DenseRoofline
from costmodels.errors import InvalidValueError
from costmodels.estimates import RELATIVE_SIGMA, Provenance, Source
from costmodels.layers.hstu import Hstu
from costmodels.lookup.roofline import Roofline as LookupRoofline
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import CALLS, EXCHANGING_TYPES, NUM_COLUMNS, OUTPUT, REPLICATED
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.stages.host import HostCosts
from costmodels.stages.models import CostModels
from costmodels.stages.stage_model import StageModel
from costmodels.topology import FITTED_KINDS as KINDS
from costmodels.topology import Topology
from costmodels.training.optimizers import DenseOptimizer
from costmodels.uncertainty import MACHINE, sampled_factors, sigmas
from costmodels.workload import DenseArch, HostProfile, Pipeline, Pooling, Table, Workload
from tests.networks import matrix_by_level
from tests.strategies import (
    make_device,
    make_host,
    make_placement,
    make_table,
    make_topology,
    make_workload,
    planned_workloads,
    plans,
    topologies,
)

TABLES = (make_table("t0", num_embeddings=10**6), make_table("t1", num_embeddings=10**5))


def plan_on(topology: Topology, *ranks: int, tables: tuple[Table, ...] = TABLES) -> Plan:
    """Each table whole on the given rank."""
    return Plan(
        placements=tuple(
            make_placement(t, ShardingType.TABLE_WISE, topology, where=(r,))
            for t, r in zip(tables, ranks, strict=True)
        )
    )


# ------------------------------------------------------------------ estimates


@given(planned_workloads())
def test_an_estimate_is_consistent(case: tuple[Workload, Topology, Plan]) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    estimate = pipeline.estimate(plan)
    assert estimate == CostPipeline(workload, topology).estimate(plan)
    time = estimate.time
    assert 0 < time.low_s <= time.time_s <= time.high_s
    assert time.time_s == pytest.approx(
        float(pipeline.iteration_times(pipeline.plan_work(plan))), rel=1e-12
    )
    batch = workload.batch_size_per_rank * topology.world_size
    assert estimate.samples_per_s == pytest.approx(batch / time.time_s)
    assert len(estimate.ranks) == topology.world_size
    assert estimate.imbalance_ratio >= 1 - 1e-12
    assert estimate.slowest_rank in range(topology.world_size)
    compute = [r.compute_s for r in estimate.ranks]
    assert compute[estimate.slowest_rank] == max(compute)
    assert estimate.exposed_communication_s == max(r.exposed_s for r in estimate.ranks)
    assert time.source is topology.weakest_source()
    assert all(s.duration_s for s in estimate.stages)
    if workload.input_samples_per_s:
        assert time.time_s >= batch / workload.input_samples_per_s


def test_a_foreign_plan_is_refused() -> None:
    pipeline = CostPipeline(make_workload(*TABLES), make_topology())
    with pytest.raises(InvalidValueError, match="missing tables"):
        pipeline.estimate(Plan(placements=()))
    with pytest.raises(InvalidValueError, match="are outside 0"):
        pipeline.estimate(plan_on(make_topology(2, 4), 0, 5))


def test_doubt_about_the_inputs_widens_the_interval() -> None:
    workload, widths = make_workload(*TABLES, batch_size_per_rank=8192), []
    for source in (Source.MEASURED, Source.DATASHEET, Source.DEFAULT):
        names = ("device.hbm_bandwidth", "links.host.bandwidth", "device.flops_per_s")
        known = tuple(
            Provenance(name=n, value="1", source=source) for n in (*names, "host.eager_call")
        )
        topology = make_topology(provenance=known)
        time = CostPipeline(workload, topology).estimate(plan_on(topology, 0, 1)).time
        assert time.source is source
        widths.append(time.high_s / time.low_s)
    assert widths == sorted(widths)
    assert 1.2 < widths[0] < widths[-1]  # the model's own error stays with measured inputs


# ------------------------------------------------------------------ confidence


@given(planned_workloads(), st.data())
def test_confidence_is_antisymmetric(
    case: tuple[Workload, Topology, Plan], data: st.DataObject
) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    other = data.draw(plans(workload, topology))
    assert pipeline.confidence_faster(plan, plan) == 0.5
    forth, back = (pipeline.confidence_faster(plan, other), pipeline.confidence_faster(other, plan))
    assert 0 <= forth <= 1
    assert forth + back == pytest.approx(1)


def test_a_plan_that_wins_everywhere_wins_surely() -> None:
    topology = make_topology()
    workload = make_workload(*TABLES, batch_size_per_rank=65536, cuda_graph=True)
    pipeline = CostPipeline(workload, topology)
    apart, together = plan_on(topology, 0, 1), plan_on(topology, 0, 0)
    assert pipeline.confidence_faster(apart, together) == 1
    samples = pipeline.sampled_times(apart)
    assert len(samples) == 64
    np.testing.assert_array_equal(samples, pipeline.sampled_times(apart))
    time = pipeline.estimate(apart).time.time_s
    assert samples.min() < time < samples.max()


def test_without_sources_sigmas_are_those_of_a_users_number() -> None:
    assert dict(sigmas(make_topology())) == dict.fromkeys(KINDS, RELATIVE_SIGMA[Source.USER])


def test_factors_are_lognormal_around_one_and_independent() -> None:
    factors = sampled_factors((("lookup", 0.2), ("dense", 0.2)))
    logs = np.log(np.concatenate(list(factors.values()), axis=1))
    np.testing.assert_allclose(logs.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(logs.std(axis=0), 0.2, rtol=0.03)
    assert abs(np.corrcoef(logs.T)[0, 1]) < 0.3


def test_the_pace_of_the_machine_is_a_factor_on_every_kind_of_time() -> None:
    known = tuple((kind, 0.1) for kind in KINDS)
    apart, steady = sampled_factors(known), sampled_factors((*known, (MACHINE, 0.0)))
    moved = sampled_factors((*known, (MACHINE, 0.3)))
    assert set(moved) == set(KINDS)
    common = np.log(moved["lookup"] / apart["lookup"])
    assert float(common.std()) == pytest.approx(0.3, rel=0.05)
    for kind in KINDS:
        np.testing.assert_array_equal(steady[kind], apart[kind])
        np.testing.assert_allclose(np.log(moved[kind] / apart[kind]), common, atol=1e-12)


# ------------------------------------------------------------------ warnings


def test_a_slow_data_source_is_named() -> None:
    topology = make_topology()
    workload = make_workload(*TABLES, input_samples_per_s=1e4)
    estimate = CostPipeline(workload, topology).estimate(plan_on(topology, 0, 1))
    assert estimate.time.time_s == 4 * 512 / 1e4
    assert any(w.startswith("input bound") for w in estimate.warnings)
    assert estimate.critical_path[-1].stage == "input"
    fast = dataclasses.replace(workload, input_samples_per_s=1e12)
    assert CostPipeline(fast, topology).estimate(plan_on(topology, 0, 1)).warnings == (
        CostPipeline(make_workload(*TABLES), topology).estimate(plan_on(topology, 0, 1)).warnings
    )


def test_a_slow_host_is_named_and_a_graph_takes_it_away() -> None:
    topology = make_topology(host=make_host(eager_call_s=1e-3))
    workload = make_workload(*TABLES, batch_size_per_rank=8)
    plan = plan_on(topology, 0, 1)
    slow = CostPipeline(workload, topology).estimate(plan)
    assert any(w.startswith("launch bound") for w in slow.warnings)
    graph = dataclasses.replace(workload, cuda_graph=True)
    fast = CostPipeline(graph, topology).estimate(plan)
    assert not any(w.startswith("launch bound") for w in fast.warnings)
    assert fast.time.time_s < 0.1 * slow.time.time_s


def test_a_large_batch_on_a_fast_host_has_no_warnings() -> None:
    topology = make_topology()
    workload = make_workload(*TABLES, batch_size_per_rank=65536)
    assert CostPipeline(workload, topology).estimate(plan_on(topology, 0, 1)).warnings == ()


def test_what_a_pipeline_rests_on_is_told_before_what_the_layers_are() -> None:
    topology, layer = make_topology(), Hstu(layers=1, hidden=64, heads=2, seq=8)
    workload = make_workload(
        make_table("t0", pooling=Pooling.NONE),
        dense=DenseArch(layers=(layer,)),
        pipeline=Pipeline.LOOKAHEAD,
        lookahead_batches=4,
    )
    plan = plan_on(topology, 0, tables=workload.tables)
    told = CostPipeline(workload, topology).estimate(plan).warnings
    assert [w.split()[0] for w in told[:2]] == ["pipeline", "layer"]


def test_host_costs_scale_with_the_call() -> None:
    layers = dense_layers(make_workload()).bottom
    eager = HostCosts(host=make_host(), issued_by=HostProfile.EAGER)
    assert eager.call_s("collective") == pytest.approx(40e-6)
    for profile in HostProfile:
        hosts = (make_host(eager_call_s=n * 5e-6) for n in (1, 2))
        one, two = (HostCosts(host=host, issued_by=profile) for host in hosts)
        assert two.backward_s(layers) == pytest.approx(2 * one.backward_s(layers))
        assert two.copies_s(make_workload()) == pytest.approx(2 * one.copies_s(make_workload()))
    graph = HostCosts(host=make_host(), issued_by=HostProfile.CUDA_GRAPH)
    assert (
        graph.forward_s(layers)
        == graph.call_s("lookup_forward")
        == graph.optimizer_s(layers, DenseOptimizer.SGD)
        == 0
    )


# ------------------------------------------------------------------ ranks that differ


def test_work_is_cheaper_on_a_faster_rank() -> None:
    topology = make_topology(speed_by_rank_ratio=(0.4, 1.0, 1.0, 1.0))
    workload = make_workload(*TABLES, batch_size_per_rank=8192, dense=DenseArch())
    pipeline = CostPipeline(workload, topology)
    slow, fast = (pipeline.estimate(plan_on(topology, r, r)).time.time_s for r in (0, 1))
    assert fast < slow
    assert pipeline.estimate(plan_on(topology, 0, 1)).slowest_rank == 0


def test_ranks_of_unlike_memory_have_limits_of_their_own() -> None:
    topology = make_topology(hbm_capacity_by_rank_bytes=(1e9, 4e9, 4e9, 1e8))
    pipeline = CostPipeline(make_workload(*TABLES), topology)
    assert pipeline.device_limits[1] - pipeline.device_limits[0] == 3e9
    assert pipeline.memory(plan_on(topology, 0, 1)).fits
    assert not pipeline.memory(plan_on(topology, 3, 1)).fits
    assert pipeline.memory(plan_on(topology, 3, 1)).fullest.rank == 3


@given(topologies(uneven=False), st.sampled_from(list(Pipeline)))
def test_the_same_work_on_any_rank_of_one_host_costs_the_same(
    topology: Topology, kind: Pipeline
) -> None:
    topology = topology.resized(1, topology.local_world_size)
    pipeline = CostPipeline(make_workload(*TABLES, pipeline=kind), topology)
    works = [pipeline.plan_work(plan_on(topology, r, r)) for r in range(topology.world_size)]
    times = pipeline.iteration_times(np.stack(works))
    np.testing.assert_allclose(times, times[0], rtol=1e-12)


# ------------------------------------------------------------------ stages


def stages(topology: Topology, workload: Workload | None = None) -> StageModel:
    models = CostModels(lookup=LookupRoofline(), collective=AlphaBeta(), dense=DenseRoofline())
    return StageModel(workload or make_workload(*TABLES), topology, models)


def test_models_are_replaceable_and_name_their_sources() -> None:
    models = CostModels()
    topology = make_topology()
    faster = make_topology(device=make_device(hbm_bandwidth_bytes_per_s=1e15))
    plan, workload = plan_on(topology, 0, 1), make_workload(*TABLES)
    usual = CostPipeline(workload, topology, models)
    assert usual.models is models
    assert CostPipeline(workload, faster).estimate(plan).time.time_s < (
        usual.estimate(plan).time.time_s
    )


@given(topologies(max_hosts=5, uneven=False), st.integers(0, 1000))
def test_table_wise_outputs_move_like_their_matrix(topology: Topology, seed: int) -> None:
    out = np.random.default_rng(seed).uniform(0, 1e8, topology.world_size)
    kind = EXCHANGING_TYPES.index(ShardingType.TABLE_WISE)
    work = np.zeros((topology.world_size, NUM_COLUMNS))
    work[:, OUTPUT + kind] = out
    first, second, indices = stages(topology).exchanges.growth(work, kind)
    matrix = np.repeat(out[:, None], topology.world_size, axis=1)
    send, receive = matrix_by_level(matrix, topology)
    np.testing.assert_allclose(first, AlphaBeta().all_to_all(send, receive, topology), atol=1e-15)
    assert not second.any()
    assert not indices.any()


@given(topologies(max_hosts=5, uneven=False), st.integers(0, 1000))
def test_table_row_wise_outputs_cross_hosts_on_lanes(topology: Topology, seed: int) -> None:
    """After the reduction inside the host, rank j of a host sends to rank j of every other."""
    world, local = topology.world_size, topology.local_world_size
    out = np.random.default_rng(seed).uniform(0, 1e8, world)
    kind = EXCHANGING_TYPES.index(ShardingType.TABLE_ROW_WISE)
    work = np.zeros((world, NUM_COLUMNS))
    work[:, OUTPUT + kind] = out
    first, second, _ = stages(topology).exchanges.growth(work, kind)
    inside = AlphaBeta().reduce_scatter(world * out, topology, within_host=True)
    np.testing.assert_allclose(first, inside)
    lanes = np.arange(world)[:, None] % local == np.arange(world)[None, :] % local
    send, receive = matrix_by_level(out[:, None] * lanes, topology)
    expected = AlphaBeta().all_to_all(send, receive, topology)
    np.testing.assert_allclose(second, expected, rtol=1e-9, atol=1e-15)


@given(topologies(max_hosts=5, uneven=False), st.integers(0, 1000))
def test_row_wise_outputs_are_reduced_if_pooled_and_exchanged_if_not(
    topology: Topology, seed: int
) -> None:
    world = topology.world_size
    out = np.random.default_rng(seed).uniform(0, 1e8, world)
    kind = EXCHANGING_TYPES.index(ShardingType.ROW_WISE)
    work = np.zeros((world, NUM_COLUMNS))
    work[:, OUTPUT + kind] = out
    pooled, _, _ = stages(topology).exchanges.growth(work, kind)
    np.testing.assert_allclose(
        pooled, AlphaBeta().reduce_scatter(world * out, topology, within_host=False)
    )
    sequence = make_workload(make_table(pooling=Pooling.NONE))
    matrix = np.repeat(out[:, None], world, axis=1)
    send, receive = matrix_by_level(matrix, topology)
    exchanged, _, _ = stages(topology, sequence).exchanges.growth(work, kind)
    np.testing.assert_allclose(
        exchanged, AlphaBeta().all_to_all(send, receive, topology), atol=1e-15
    )


def test_a_cached_table_fetches_apart_from_its_lookup() -> None:
    topology = make_topology()
    table = make_table(num_embeddings=10**7)
    placed = make_placement(
        table,
        ShardingType.TABLE_WISE,
        topology,
        kernel=ComputeKernel.FUSED_UVM_CACHING,
        cache_load_factor_ratio=0.05,
    )
    pipeline = CostPipeline(make_workload(table, batch_size_per_rank=8192), topology)
    work = pipeline.plan_work(Plan(placements=(placed,)))
    forward, backward, fetch = stages(topology).lookup_times(work)
    assert fetch[0] > forward[0] > 0
    assert backward[0] > 0
    assert not fetch[1:].any()
    names = [s.name for s in pipeline.estimate(Plan(placements=(placed,))).stages]
    assert "cache fetch" in names


def test_dense_gradients_are_reduced_in_buckets() -> None:
    """Top 4096 x 4096 makes 67 MB of gradients: three buckets of at most 25 MiB."""
    arch = DenseArch(num_dense_features=13, bottom_mlp=(64,), top_mlp=(4096, 4096, 1))
    topology = make_topology()
    pipeline = CostPipeline(make_workload(*TABLES, dense=arch), topology)
    names = [s.name for s in pipeline.estimate(plan_on(topology, 0, 1)).stages]
    reductions = [n for n in names if "all-reduce" in n]
    assert reductions == [
        "gradient all-reduce 1",
        "gradient all-reduce 2",
        "last gradient all-reduce",
    ]


def test_replicated_tables_join_the_last_all_reduce() -> None:
    topology = make_topology()
    small, large = make_table("t0", num_embeddings=1000), make_table("t0", num_embeddings=10**6)

    def last(table: Table) -> float:
        placed = make_placement(table, ShardingType.DATA_PARALLEL, topology)
        estimate = CostPipeline(make_workload(table), topology).estimate(Plan(placements=(placed,)))
        return next(s for s in estimate.stages if s.name == "last gradient all-reduce").duration_s[
            0
        ]

    moved = (10**6 - 1000) * 64 * 4
    link = topology.host_link.bandwidth_bytes_per_s
    assert last(large) - last(small) >= 0.9 * 2 * moved * 3 / 4 / link


def test_a_type_with_shards_but_no_output_still_exchanges_indices() -> None:
    """An unpooled table of pooling factor 0 sends lengths alone."""
    feature = dataclasses.replace(make_table().features[0], pooling_factor=0.0)
    table = make_table(features=(feature,), pooling=Pooling.NONE)
    topology = make_topology()
    workload = make_workload(table, pipeline=Pipeline.NONE)
    pipeline = CostPipeline(workload, topology)
    plan = Plan(placements=(make_placement(table, ShardingType.TABLE_WISE, topology),))
    assert pipeline.plan_work(plan)[0, CALLS:REPLICATED].sum() == 1
    names = [s.name for s in pipeline.estimate(plan).stages]
    assert "input dist table_wise" in names


def test_no_dense_part_and_no_samples_rate_is_finite() -> None:
    topology = make_topology(1, 1)
    workload = make_workload(*TABLES, dense=DenseArch(), cuda_graph=True)
    estimate = CostPipeline(workload, topology).estimate(plan_on(topology, 0, 0))
    assert math.isfinite(estimate.samples_per_s)
    assert estimate.exposed_communication_s == 0
    assert estimate.ranks[0].slack_s == 0


def test_a_dense_part_is_counted() -> None:
    """13 x 8 and 8 biases, a batch of 512."""
    workload = make_workload(*TABLES, dense=DenseArch(num_dense_features=13, bottom_mlp=(8,)))
    assert dense_parameters(workload) == 13 * 8 + 8
    assert sum(layer.flops for layer in dense_layers(workload).bottom) == 2 * 512 * 13 * 8
