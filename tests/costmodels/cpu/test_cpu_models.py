"""Models of CPU ranks: additive, monotone, bound from below, and one thing at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.cpu.dense import CpuDense
from costmodels.cpu.exchange import (
    FRESH_BYTES,
    STAGES,
    CpuExchange,
    Gloo,
    predicted_stages,
)
from costmodels.cpu.lookup import Accesses, CpuLookup, factor, features
from costmodels.dense.base import dense_names
from costmodels.distribution.zipf import Zipf
from costmodels.measured.cpu_constants import (
    NUM_BACKWARD,
    NUM_FORWARD,
    NUM_SHAPE,
    Caches,
    CpuKernel,
    Residual,
)
from costmodels.measured.curves import Collective
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.stages.models import CostModels
from costmodels.workload import DenseArch, Feature, Interaction, Pipeline, Workload
from tests.costmodels.cpu.machines import MACHINE, cpu_topology, whole_shards
from tests.strategies import make_table

MODELS = CostModels(
    sigmas_ratio=MACHINE.sigmas_ratio,
    lookup=CpuLookup(constants=MACHINE),
    collective=Gloo(constants=MACHINE),
    dense=CpuDense(constants=MACHINE),
    exchange=CpuExchange(constants=MACHINE),
)
KINDS = (
    ShardingType.TABLE_WISE,
    ShardingType.ROW_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.DATA_PARALLEL,
)


def workload(pipeline: Pipeline = Pipeline.NONE) -> Workload:
    return Workload(
        name="cpu",
        tables=tuple(
            make_table(
                f"t{i}",
                num_embeddings=rows,
                embedding_dim=16,
                features=(Feature(name=f"f{i}", pooling_factor=4.0 * (i + 1)),),
                distribution=Zipf(num_embeddings=rows, exponent=0.4 * i, scattered=i % 2 == 0),
            )
            for i, rows in enumerate((10**3, 10**4, 10**5, 10**6))
        ),
        batch_size_per_rank=1024,
        dense=DenseArch(
            num_dense_features=13, bottom_mlp=(16,), top_mlp=(8, 1), interaction=Interaction.CAT
        ),
        pipeline=pipeline,
    )


def plan_of(kinds: tuple[ShardingType, ...], ranks: tuple[int, ...], world: int = 2) -> Plan:
    placements = []
    for table, kind, rank in zip(workload().tables, kinds, ranks, strict=True):
        replicated = kind is ShardingType.DATA_PARALLEL
        halves = kind is ShardingType.COLUMN_WISE
        option = ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
            column_widths=(8, 8) if halves else (16,),
        )
        where = ((rank, (rank + 1) % world) if halves else (rank,))[: option.num_pieces]
        placements.append(
            place(option, table.num_embeddings, where, world_size=world, local_world_size=world)
        )
    return Plan(placements=tuple(placements))


def any_plan() -> st.SearchStrategy[Plan]:
    return st.builds(
        plan_of,
        st.tuples(*[st.sampled_from(KINDS)] * 4),
        st.tuples(*[st.integers(0, 1)] * 4),
    )


@settings(max_examples=40, deadline=None)
@given(plan=any_plan(), pipeline=st.sampled_from([Pipeline.NONE, Pipeline.SPARSE_DIST]))
def test_the_closed_form_equals_the_simulation(plan: Plan, pipeline: Pipeline) -> None:
    costs = CostPipeline(workload(pipeline), cpu_topology(), MODELS)
    _, simulation = costs.simulate(plan)
    closed = float(costs.iteration_times(costs.plan_work(plan)))
    assert closed == pytest.approx(simulation.iteration_time_s, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(plan=any_plan())
def test_phases_bound_the_iteration_and_tangents_bound_the_phases(plan: Plan) -> None:
    costs = CostPipeline(workload(), cpu_topology(), MODELS)
    work = costs.plan_work(plan)
    phases = costs.phases.times(work)
    bound = costs.phases.base_s + float(phases.max(axis=0) @ costs.phases.weights)
    assert bound <= float(costs.iteration_times(work)) * (1 + 1e-9)
    for row in work:
        tangents = costs.phases.gradient(row)
        for rank in range(2):
            assert np.all(tangents @ work[rank] <= phases[rank] * (1 + 1e-6) + 1e-15)


def test_nothing_overlaps_on_one_stream() -> None:
    plan = plan_of((ShardingType.TABLE_WISE,) * 4, (0, 1, 0, 1))
    costs = CostPipeline(workload(), cpu_topology(), MODELS)
    estimate = costs.estimate(plan)
    spans = sorted((s.start_s[0], s.start_s[0] + s.duration_s[0]) for s in estimate.stages)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start >= end - 1e-12
    assert estimate.ranks[0].exposed_s == pytest.approx(estimate.ranks[0].communication_s)
    assert max(r.slack_s for r in estimate.ranks) > 0


def test_more_sharding_types_cost_more_exchanges() -> None:
    costs = CostPipeline(workload(), cpu_topology(), MODELS)
    pure = plan_of((ShardingType.TABLE_WISE,) * 4, (0, 1, 0, 1))
    mixed = plan_of(
        (
            ShardingType.TABLE_WISE,
            ShardingType.ROW_WISE,
            ShardingType.COLUMN_WISE,
            ShardingType.DATA_PARALLEL,
        ),
        (0, 1, 0, 1),
    )
    names = {s.name for s in costs.estimate(mixed).stages}
    assert {"input dist row_wise", "input dist column_wise", "input dist table_wise"} <= names
    assert len(names) > len({s.name for s in costs.estimate(pure).stages})


def test_skewed_indices_are_faster() -> None:
    topology = cpu_topology()
    times = []
    for exponent in (0.0, 0.8, 1.2):
        table = make_table(
            "t0",
            num_embeddings=10**6,
            embedding_dim=64,
            features=(Feature(name="f0", pooling_factor=20.0),),
            distribution=Zipf(num_embeddings=10**6, exponent=exponent),
        )
        load = Workload(name="one", tables=(table,), batch_size_per_rank=2048)
        option = ShardingOption(
            table="t0",
            sharding_type=ShardingType.TABLE_WISE,
            kernel=ComputeKernel.FUSED,
            column_widths=(64,),
        )
        placed = place(option, 10**6, (0,), world_size=2, local_world_size=2)
        costs = CostPipeline(load, topology, MODELS)
        times.append(float(costs.phases.times(costs.plan_work(Plan(placements=(placed,))))[0, 1]))
    assert times[0] > times[1] > times[2]


def test_counts_have_the_documented_order() -> None:
    seen, caches = Accesses(whole_shards(10**5, 16, 1e5, 0.5)), Caches(l2_bytes=1e6, l3_bytes=1e7)
    counted = features(seen, CpuKernel.FUSED, caches)
    assert counted.forward.shape[1] == NUM_FORWARD
    assert counted.backward.shape[1] == NUM_BACKWARD["fused"]
    assert counted.shape.shape[1] == NUM_SHAPE
    dense = features(seen, CpuKernel.DENSE, caches)
    assert dense.backward.shape[1] == NUM_BACKWARD["replicated"]
    sequence = features(seen, CpuKernel.SEQUENCE, caches)
    assert sequence.backward.shape[1] == NUM_BACKWARD["sequence"]
    assert dense.backward[0, -2] == 16 * 10**5  # elements of the table


@given(exponent=st.floats(0, 1.4), draws=st.floats(10, 1e6), kib=st.floats(1, 1e5))
def test_misses_lie_between_distinct_rows_and_indices(
    exponent: float, draws: float, kib: float
) -> None:
    each = Accesses(whole_shards(10**5, 16, draws, exponent))
    misses = each.misses(kib * 1024)[0]
    assert each.distinct[0] * (1 - 1e-9) <= misses <= draws * (1 + 1e-9)
    assert each.misses(2 * kib * 1024)[0] <= misses * (1 + 1e-6)


def test_the_factor_is_cut_and_ends_far_away() -> None:
    residual = Residual(
        points_ratio=((0.0,), (1.0,)), weights_ratio=(9.0, 0.0), lengths_ratio=(1.0,)
    )
    assert factor(residual, np.array([0.0])) == pytest.approx(math.exp(0.5))
    assert factor(residual, np.array([100.0])) == pytest.approx(1.0)
    assert factor(Residual(), np.array([0.0])) == 1.0


def test_gloo_pays_both_directions_and_fresh_memory() -> None:
    gloo, topology = Gloo(constants=MACHINE), cpu_topology()
    one = np.array([[1e6, 0.0, 0.0], [0.0, 0.0, 0.0]])
    both = gloo.all_to_all(one, one, topology)
    assert both[0] == pytest.approx(4e-4)
    assert gloo.all_to_all(one, 0 * one, topology)[0] == pytest.approx(3e-4)
    small_s, large_s = (gloo.all_to_all_s(k * one, 0 * one, topology)[0] for k in (1, 10))
    alone_s = 2e-5  # only sends, and waits for an empty message
    assert small_s == pytest.approx(1e-4 + 3e-4 + alone_s)
    assert large_s > 1e-4 + 10 * 3e-4 + alone_s
    assert gloo.all_to_all_s(one, one, topology)[0] == pytest.approx(1e-4 + 4e-4)
    assert gloo.all_to_all_s(0 * one, 0 * one, topology)[0] == pytest.approx(1e-4)
    small, large = np.array(FRESH_BYTES - 1), np.array(FRESH_BYTES)
    for half in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        least = 1.5 * gloo.buffer_s(half, small, topology, within_host=False)
        assert gloo.buffer_s(half, large, topology, within_host=False) > least
    assert gloo.buffer_s(
        Collective.ALL_REDUCE, small, topology, within_host=False
    ) >= gloo.all_reduce(small, topology)
    assert gloo.reduce_scatter(small, topology, within_host=True) > 0
    assert gloo.fixed_s(topology, ranks=1, across_hosts=False) == 0.0
    assert gloo.fixed_s(topology, ranks=2, across_hosts=False) == 1e-4
    alone = gloo.buffer_s(Collective.REDUCE_SCATTER, large, cpu_topology(1), within_host=False)
    assert alone == 0.0


def test_dense_times_and_the_update() -> None:
    model, topology = CpuDense(constants=MACHINE), cpu_topology()
    small = model.times(workload(), topology)
    indices = 1024 * (4 + 8 + 12 + 16)
    update_s = 4e-4 + 4 * 2e-5 + 1024 * 4 * 16 * 2e-10 + indices * 5e-10
    assert small.optimizer_s == pytest.approx(update_s)
    products = 3e-5 + 2e-11 * 1024 * 13 * 16 + 1e-9 * 1024 * 16 + 4e-10 * 1024 * 13
    assert small.bottom_backward_s == pytest.approx(products)
    assert small.top_forward_s > small.bottom_forward_s > 0
    assert small.top_backward_s > 1e-4


def test_one_rank_without_tables_reduces_no_gradients() -> None:
    """Several ranks do; so does one rank with tables, whose optimizer is priced there."""
    module = replace(workload(), tables=())
    for tables, world in itertools.product((False, True), (1, 2)):
        plan = plan_of(KINDS[:1] * 4, (0,) * 4, world) if tables else Plan(placements=())
        topology = cpu_topology().resized(1, world)
        costs = CostPipeline(workload() if tables else module, topology, MODELS)
        stages = {s.name: max(s.duration_s) for s in costs.estimate(plan).stages}
        reduced_s = stages.get("last gradient all-reduce", 0.0)
        assert (reduced_s > 0) is (tables or world > 1)
        assert stages["dense optimizer"] > 0


def test_intervals_follow_the_calibration() -> None:
    plan = plan_of(KINDS, (0, 1, 0, 1))
    wide = replace(MODELS, sigmas_ratio=tuple((kind, 2 * s) for kind, s in MACHINE.sigmas_ratio))
    widths = []
    for models in (MODELS, wide):
        time = CostPipeline(workload(), cpu_topology(), models).estimate(plan).time
        widths.append(math.log(time.high_s / time.low_s))
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.1)


def test_predicted_steps_fall_into_stages() -> None:
    plan = plan_of(KINDS, (0, 1, 0, 1))
    estimate = CostPipeline(workload(), cpu_topology(), MODELS).estimate(plan)
    stages = predicted_stages(estimate.stages, dense_names(workload()))
    assert len(stages) == len(STAGES)
    assert min(stages) > 0
    assert sum(stages) >= estimate.time.time_s * (1 - 1e-9)
