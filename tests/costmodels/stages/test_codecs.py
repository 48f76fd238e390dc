"""Quantized communication in bytes, kernels and steps; without codecs nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import BACKWARD, EXCHANGING_TYPES, FORWARD
from costmodels.shard_work.work import NUM_COLUMNS, sent_bytes
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.stages.models import CostModels
from costmodels.stages.stage_model import StageModel
from costmodels.torchrec_estimates import TorchrecTable
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.uncertainty import Scale
from costmodels.workload import DataType, Pipeline, Pooling, Workload
from tests.strategies import make_table, make_topology, make_workload

BATCH, DIM, WORLD = 512, 64, 4
TOPOLOGY = make_topology(2, 2)
TYPES = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.DATA_PARALLEL,
)


def workload(communication: Communication | None, **changes: object) -> Workload:
    tables = [
        make_table(f"t{i}", num_embeddings=4000, embedding_dim=DIM, communication=communication)
        for i in range(len(TYPES))
    ]
    return make_workload(*tables, batch_size_per_rank=BATCH, **changes)


def plan_of(kinds: tuple[ShardingType, ...] = TYPES) -> Plan:
    placements = []
    for i, kind in enumerate(kinds):
        replicated = kind is ShardingType.DATA_PARALLEL
        option = ShardingOption(
            table=f"t{i}",
            sharding_type=kind,
            kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
            column_widths=(DIM // 2, DIM // 2) if kind is ShardingType.COLUMN_WISE else (DIM,),
        )
        where = {
            ShardingType.TABLE_WISE: (1,),
            ShardingType.COLUMN_WISE: (0, 3),
            ShardingType.TABLE_ROW_WISE: (1,),
            ShardingType.GRID_SHARD: (1,),
        }.get(kind, ())
        placed = place(option, 4000, where, world_size=WORLD, local_world_size=2)
        placements.append(placed)
    return Plan(placements=tuple(placements))


def pipeline(communication: Communication | None, **changes: object) -> CostPipeline:
    return CostPipeline(workload(communication, **changes), TOPOLOGY, CostModels())


@pytest.mark.parametrize("name", list(Pipeline))
def test_nothing_changes_where_nothing_is_compressed(name: Pipeline) -> None:
    plan, plain = plan_of(), pipeline(None, pipeline=name)
    explicit = Communication(all_to_all=Codecs(), reduce_scatter=Codecs(), sequence=Codecs())
    for same in (Communication(), explicit, Communication.of()):
        other = pipeline(same, pipeline=name)
        assert other.num_features == NUM_COLUMNS == plain.num_features
        assert np.array_equal(other.plan_work(plan), plain.plan_work(plan))
        assert other.estimate(plan) == plain.estimate(plan)


@pytest.mark.parametrize(
    ("precision", "wire_bytes"),
    [("fp16", 2.0), ("bf16", 2.0), ("fp8", 1.0), ("int8", 40 / 32), ("mx4", 0.5 + 1 / 32)],
)
def test_bytes_of_a_direction_are_those_of_its_codec(precision: str, wire_bytes: float) -> None:
    codec = Codec(precision=Precision(precision))
    assert codec.wire_bytes == wire_bytes
    given = Communication(all_to_all=Codecs(forward=codec))
    plan = plan_of((ShardingType.TABLE_WISE,) * 5)
    work, plain = pipeline(given).plan_work(plan), pipeline(None).plan_work(plan)
    family = EXCHANGING_TYPES.index(ShardingType.TABLE_WISE)
    before = sent_bytes(plain, family)[0]
    assert before[1] == 5 * BATCH * DIM * 4
    np.testing.assert_allclose(sent_bytes(work, family, FORWARD)[0], before * wire_bytes / 4)
    np.testing.assert_allclose(sent_bytes(work, family, BACKWARD)[0], before)
    for mean in sent_bytes(work, family):  # of both directions
        np.testing.assert_allclose(mean, before * (wire_bytes / 4 + 1) / 2)


def test_sums_and_the_exchange_across_hosts_have_codecs_of_their_own() -> None:
    """Fp8 cannot be summed: inside a host the sums travel in fp16 and bf16, across hosts in fp8."""
    work = pipeline(Communication.of(Precision.FP8, Precision.FP8)).plan_work(plan_of())
    out = BATCH * DIM
    by_hosts, rows = (
        EXCHANGING_TYPES.index(k) for k in (ShardingType.TABLE_ROW_WISE, ShardingType.ROW_WISE)
    )
    for way in (FORWARD, BACKWARD):
        inside, across = sent_bytes(work, by_hosts, way)
        assert inside.tolist() == [0, 0, 2 * out, 2 * out]
        assert across.tolist() == [0, 0, out, out]
        assert sent_bytes(work, rows, way)[0].tolist() == [2 * out] * WORLD


@pytest.mark.parametrize("way", [None, FORWARD, BACKWARD])
def test_a_grid_with_one_piece_of_columns_sends_what_table_row_wise_does(way: int | None) -> None:
    """Inside the host and across hosts, with unlike codecs in the two directions."""
    given = pipeline(Communication.of(Precision.FP8, Precision.FP32))
    found = []
    for kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
        work = given.plan_work(plan_of((kind,) * len(TYPES)))
        found.append(np.array(sent_bytes(work, EXCHANGING_TYPES.index(kind), way)))
    assert found[0].max() > 0
    assert found[0] == pytest.approx(found[1])


def test_kernels_on_both_sides_by_hand() -> None:
    """One table on rank 1, fp16 forward: a clamped copy and a conversion there, one pass back."""
    codec = Codec(precision=Precision.FP16)
    given = Communication(all_to_all=Codecs(forward=codec))
    made = pipeline(given)
    kinds = (ShardingType.TABLE_WISE,) * 5
    times = made.stage_times(made.plan_work(plan_of(kinds))).codecs_s
    assert times is not None
    device = TOPOLOGY.device
    rate, gap = device.hbm_bandwidth_bytes_per_s, device.kernel_latency_s
    elements = 5 * BATCH * DIM
    sent = elements * WORLD * (4 + 4 + 4 + 2) / rate
    np.testing.assert_allclose(times["output quantize"], [gap, gap + sent, gap, gap])
    np.testing.assert_allclose(times["output dequantize"], np.full(4, gap + elements * 6 / rate))
    np.testing.assert_allclose(times["gradient quantize"], np.full(4, gap))
    np.testing.assert_allclose(times["gradient dequantize"], np.full(4, gap))


def test_kernels_take_their_time_at_the_speed_of_the_rank_and_launches_do_not() -> None:
    """Rank 1 has the tables and half the speed: fp16 forward, bf16 back, on both sides of each."""
    given = Communication(
        all_to_all=Codecs(
            forward=Codec(precision=Precision.FP16), backward=Codec(precision=Precision.BF16)
        )
    )
    speeds = (1.0, 0.5, 2.0, 4.0)
    unlike = replace(TOPOLOGY, speed_by_rank_ratio=speeds)
    even, uneven = (CostPipeline(workload(given), t, CostModels()) for t in (TOPOLOGY, unlike))
    work = even.plan_work(plan_of((ShardingType.TABLE_WISE,) * 5))
    plain, slowed = (made.stage_times(work).codecs_s for made in (even, uneven))
    assert plain is not None
    assert slowed is not None
    gap = TOPOLOGY.device.kernel_latency_s
    for name in set(plain) - {"host"}:
        before, after = (np.broadcast_to(x[name], (WORLD,)) for x in (plain, slowed))
        assert before.max() > gap, name
        np.testing.assert_allclose(after, (before - gap) / speeds + gap, err_msg=name)


def test_many_plans_at_once_have_the_kernels_of_each_alone() -> None:
    """Also where only some plans have a sharding type; factors of lookups multiply all kernels."""
    made = pipeline(Communication.of(Precision.FP16, Precision.BF16))
    plans = [plan_of((kind,) * 5) for kind in (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)]
    works = [made.plan_work(p) for p in (*plans, plan_of())]
    stages = StageModel(made.workload, TOPOLOGY, CostModels())
    together = stages.times(np.stack(works), Scale()).codecs_s
    assert together is not None
    names = set(together) - {"host"}
    factor = Scale(lookup_ratio=np.array([2.0]))
    for at, work in enumerate(works):
        alone, scaled = (stages.times(work, by).codecs_s for by in (Scale(), factor))
        assert alone is not None
        for name in names:
            np.testing.assert_allclose(together[name][at], alone[name], rtol=1e-12)
            np.testing.assert_allclose(scaled[name], 2.0 * alone[name], rtol=1e-12)


@pytest.mark.parametrize("name", list(Pipeline))
def test_the_kernels_are_steps_of_the_iteration(name: Pipeline) -> None:
    made = pipeline(Communication.of(Precision.FP16, Precision.FP16), pipeline=name)
    stages = {s.name for s in made.estimate(plan_of()).stages if any(s.duration_s)}
    assert {
        *("output quantize", "output dequantize"),
        *("gradient quantize", "gradient dequantize"),
    } <= stages


def test_large_exchanges_gain_and_replicated_tables_pay_nothing() -> None:
    codecs = Communication.of(Precision.FP16, Precision.BF16)
    large = {"batch_size_per_rank": 1 << 16}

    def time_s(communication: Communication | None, kinds: tuple[ShardingType, ...]) -> float:
        tables = workload(communication).tables
        pipe = CostPipeline(make_workload(*tables, **large), TOPOLOGY, CostModels())
        return pipe.estimate(plan_of(kinds)).time.time_s

    for kind in (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE):
        assert time_s(codecs, (kind,) * 5) < 0.8 * time_s(None, (kind,) * 5)
    replicated = (ShardingType.DATA_PARALLEL,) * 5
    assert time_s(codecs, replicated) == pytest.approx(time_s(None, replicated), rel=0.02)


def test_torchrecs_sizes_leave_out_scales() -> None:
    table = make_table("t", communication=Communication.of(Precision.INT8, Precision.BF16))
    read = TorchrecTable.of(table, make_workload(table))
    assert read.all_to_all_bytes == read.row_sum_bytes == (1.0, 2.0)
    unpooled = make_table("t", communication=table.communication, pooling=Pooling.NONE)
    read = TorchrecTable.of(unpooled, make_workload(unpooled))
    assert read.all_to_all_bytes == (1.0, 2.0)
    assert read.row_sum_bytes == (4.0, 4.0)


def test_torchrec_is_told_one_type_for_vectors_and_their_gradients() -> None:
    """The type in which the gradients of the dense part are reduced is another matter."""
    table = make_table("t")
    half, full = DataType.FP16, DataType.FP32
    for reduced in (half, full):
        made = make_workload(table, output_dtype=half, gradient_dtype=reduced)
        read = TorchrecTable.of(table, made)
        assert read.all_to_all_bytes == read.row_sum_bytes == (2.0, 2.0)
    whole = make_workload(table, output_dtype=full, gradient_dtype=half)
    assert TorchrecTable.of(table, whole).all_to_all_bytes == (4.0, 4.0)


def test_codecs_that_scale_rows_have_no_sum() -> None:
    assert Communication.of(Precision.FP8, Precision.MX4).sums_rows
    assert not Communication.of(Precision.INT8).sums_rows
    assert not Communication.of(Precision.FP16, Precision.INT8).sums_rows
    own = Codecs(forward=Codec(precision=Precision.FP8))
    assert not Communication(reduce_scatter=own).sums_rows


def test_the_host_issues_one_operator_of_each_sharding_type_at_each_end() -> None:
    """An operator has 2.2 dispatches and 1.2 launches; replicated tables exchange nothing."""
    operator_s = 2.2 * TOPOLOGY.host.dispatch_s + 1.2 * TOPOLOGY.host.launch_s
    made = pipeline(Communication.of(Precision.FP16, Precision.BF16))
    exchanged = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)
    for kinds in (exchanged[:1] * 5, (*exchanged, *exchanged[:2]), TYPES):
        codecs = made.stage_times(made.plan_work(plan_of(kinds))).codecs_s
        assert codecs is not None
        families = {k for k in kinds if k is not ShardingType.DATA_PARALLEL}
        np.testing.assert_allclose(codecs["host"], operator_s * len(families))


def test_a_single_rank_sends_nothing_and_compresses_nothing() -> None:
    alone = make_topology(1, 1)
    tables = workload(Communication.of(Precision.FP16, Precision.BF16)).tables[:1]
    made = CostPipeline(make_workload(*tables), alone, CostModels())
    option = ShardingOption(
        table="t0",
        sharding_type=ShardingType.TABLE_WISE,
        kernel=ComputeKernel.FUSED,
        column_widths=(DIM,),
    )
    plan = Plan(placements=(place(option, 4000, (0,), world_size=1, local_world_size=1),))
    codecs = made.stage_times(made.plan_work(plan)).codecs_s
    assert codecs is not None
    for name, seconds in codecs.items():
        assert not np.any(seconds), name
