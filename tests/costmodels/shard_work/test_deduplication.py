"""Distinct indices: fewer bytes and lookups, more kernels; every number by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from costmodels.cpu.lookup import CpuLookup
from costmodels.dense.base import DenseTimes
from costmodels.distribution.uniform import Uniform
from costmodels.errors import InvalidValueError
from costmodels.lookup.base import LookupWork
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.wire import (
    EXCHANGING_TYPES,
    Wire,
    distinct_s,
    exchanged_indices,
    with_expansion,
)
from costmodels.shard_work.work import INPUT, OUTPUT
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.training.communication import Communication, Precision
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import Pipeline, Pooling, Table, Workload
from tests.costmodels.cpu.machines import MACHINE
from tests.lookups import lookup_columns
from tests.strategies import (
    make_placement,
    make_table,
    make_topology,
    make_workload,
    planned_workloads,
)

BATCH, DIM, ROWS, WORLD = 512, 64, 1000, 4
TOPOLOGY = make_topology(1, WORLD)
LAW = Uniform(num_embeddings=ROWS)
UNIQUE = ROWS * (1 - (1 - 1 / ROWS) ** (8 * BATCH))


def table(*, deduplicates: bool = True) -> Table:
    """Eight indices per sample on a thousand rows: 4096 of them, 983 distinct."""
    return make_table(
        num_embeddings=ROWS,
        embedding_dim=DIM,
        distribution=LAW,
        pooling=Pooling.NONE,
        deduplicates_indices=deduplicates,
    )


def workload(one: Table, **changes: object) -> Workload:
    return make_workload(one, batch_size_per_rank=BATCH, **changes)


def work_of(one: Table, kind: ShardingType) -> np.ndarray:  # type: ignore[type-arg]
    plan = Plan(placements=(make_placement(one, kind, TOPOLOGY),))
    return CostPipeline(workload(one), TOPOLOGY).plan_work(plan)


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        (ShardingType.TABLE_WISE, 1),
        (ShardingType.ROW_WISE, WORLD),
    ],
)
def test_distinct_indices_and_vectors_travel(kind: ShardingType, ranks: int) -> None:
    family, work = EXCHANGING_TYPES.index(kind), work_of(table(), kind)
    lengths = BATCH * 8.0
    assert work[0, INPUT + family] == pytest.approx(UNIQUE / ranks * 8 + lengths)
    assert work[0, OUTPUT + family] == pytest.approx(UNIQUE / ranks * DIM * 4)
    lookup = work[0, lookup_columns(ComputeKernel.FUSED)]
    assert lookup[LookupWork.INDICES] == pytest.approx(WORLD * UNIQUE / ranks)
    every = work_of(table(deduplicates=False), kind)
    assert every[0, INPUT + family] == pytest.approx(8 * BATCH / ranks * 8 + BATCH * 4)
    assert every[0, OUTPUT + family] == pytest.approx(8 * BATCH / ranks * DIM * 4)


@pytest.mark.parametrize("once", [False, True])
def test_unpooled_vectors_are_put_in_order_around_the_exchange(once: bool) -> None:
    """By hand: the permutation where they are looked up, and the selection of row-wise tables."""
    vectors = (UNIQUE if once else 8 * BATCH) * DIM * 4
    by_table, by_rows, copied = (
        work_of(table(deduplicates=once), kind)[:, lookup_columns(kernel)].sum(axis=0)
        for kind, kernel in (
            (ShardingType.TABLE_WISE, ComputeKernel.FUSED),
            (ShardingType.ROW_WISE, ComputeKernel.FUSED),
            (ShardingType.DATA_PARALLEL, ComputeKernel.DENSE),
        )
    )
    stream = LookupWork.STREAM_DRAM
    assert by_table[stream] - copied[stream] == pytest.approx(2 * WORLD * vectors)
    assert by_rows[stream] - by_table[stream] == pytest.approx(2 * WORLD * vectors)
    device = TOPOLOGY.device
    slower = device.hbm_bandwidth_bytes_per_s / device.l2_bandwidth_bytes_per_s
    added = np.hypot(3, 10.6 * slower) * WORLD * vectors
    back = LookupWork.BACKWARD_ROWS_DRAM
    assert by_rows[back] - by_table[back] == pytest.approx(added, rel=1e-6)


def test_replicas_look_up_their_own_distinct_indices() -> None:
    work = work_of(table(), ShardingType.DATA_PARALLEL)
    assert work[0, lookup_columns(ComputeKernel.DENSE)][LookupWork.INDICES] == pytest.approx(UNIQUE)


def test_kernels_beside_the_exchange_by_hand() -> None:
    device = TOPOLOGY.device
    none = DenseTimes(
        bottom_forward_s=0.0,
        top_forward_s=0.0,
        top_backward_s=0.0,
        bottom_backward_s=0.0,
        optimizer_s=0.0,
    )
    indices, vector = 8.0 * BATCH, 4.0 * DIM
    found = with_expansion(none, workload(table()), TOPOLOGY)
    hbm, l2 = device.hbm_bandwidth_bytes_per_s, device.l2_bandwidth_bytes_per_s
    assert found.top_forward_s == pytest.approx((indices + UNIQUE) * vector / hbm)
    moved, added = (indices + 2 * UNIQUE) * vector / hbm, 10.6 * indices * vector / l2
    assert found.top_backward_s == pytest.approx(np.hypot(moved, added))
    sort_s = indices / device.sort_rate_per_s + 56 * indices / hbm
    assert distinct_s(workload(table()), TOPOLOGY) == pytest.approx(sort_s)
    plain = workload(table(deduplicates=False))
    assert with_expansion(none, plain, TOPOLOGY) == none
    assert distinct_s(plain, TOPOLOGY) == 0


@pytest.mark.parametrize("name", list(Pipeline))
def test_the_kernels_and_their_memory_are_priced(name: Pipeline) -> None:
    """On one rank nothing travels, and of 10^9 rows few repeat: finding and expanding is all."""
    topology = make_topology(1, 1)
    law = Uniform(num_embeddings=10**9)
    large = replace(table(), num_embeddings=law.num_embeddings, distribution=law)
    seconds, limits = [], []
    for one in (large, replace(large, deduplicates_indices=False)):
        run = workload(one, pipeline=name)
        run = replace(run, batch_size_per_rank=2**18)
        plan = Plan(placements=(make_placement(one, ShardingType.TABLE_WISE, topology),))
        pipeline = CostPipeline(run, topology)
        seconds.append(float(pipeline.iteration_times(pipeline.plan_work(plan))))
        limits.append(float(pipeline.device_limits[0]))
    assert seconds[0] > 1.01 * seconds[1]
    assert limits[1] - limits[0] == pytest.approx(8 * 2**18 * (2 * 4 * DIM + 16), rel=2e-3)


def test_codecs_decode_what_travels() -> None:
    half = Communication.of(Precision.FP16, Precision.FP16)
    every, once = (
        Wire.of(workload(replace(table(deduplicates=d), communication=half)), TOPOLOGY)
        for d in (False, True)
    )
    assert every is not None
    assert once is not None
    ratio = once.received_bytes[0] / every.received_bytes[0]
    np.testing.assert_allclose(ratio, UNIQUE / (8 * BATCH))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="deduplicate_indices needs pooling none"):
        make_table(deduplicates_indices=True)
    models = CostModels(lookup=CpuLookup(constants=MACHINE))
    plan = Plan(placements=(make_placement(table(), ShardingType.TABLE_WISE, TOPOLOGY),))
    with pytest.raises(InvalidValueError, match="deduplicate_indices needs GPUs"):
        CostPipeline(workload(table()), TOPOLOGY, models).plan_work(plan)
    bare = replace(table(deduplicates=False), row_update=RowUpdate.PER_INDEX)
    with pytest.raises(InvalidValueError, match="row_update"):
        CostPipeline(workload(bare), TOPOLOGY, models).plan_work(plan)


@given(planned_workloads())
def test_no_more_travels_than_without(case: tuple[Workload, Topology, Plan]) -> None:
    """Bytes of vectors, and of indices but for their longer lengths."""
    run, topology, plan = case
    unpooled = [replace(t, pooling=Pooling.NONE, is_weighted=False) for t in run.tables]
    both = [
        replace(run, tables=tuple(replace(t, deduplicates_indices=d) for t in unpooled))
        for d in (True, False)
    ]
    once, every = (CostPipeline(w, topology).plan_work(plan) for w in both)
    families = len(EXCHANGING_TYPES)
    slack = 1e-6 + 1e-9 * every
    assert (once <= every + slack)[:, OUTPUT : OUTPUT + families].all()
    longer = 4.0 * run.batch_size_per_rank * sum(len(t.features) for t in run.tables) * 8
    assert (once <= every + slack + longer)[:, INPUT : INPUT + families].all()
    for t in both[0].tables:
        assert (
            exchanged_indices(t, run.batch_size_per_rank)
            <= run.batch_size_per_rank * t.pooling_factor
        )
