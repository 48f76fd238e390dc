"""The memory ledger against a count of its own, from shards alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given

from costmodels import memory
from costmodels.dense.base import live_bytes
from costmodels.memory import dense_bytes
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.topology import Topology
from costmodels.workload import DenseArch, Optimizer, Pipeline, Pooling, Workload
from tests.strategies import (
    make_dense,
    make_host,
    make_placement,
    make_table,
    make_topology,
    make_workload,
    planned_workloads,
)

ON_HOST = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)
STATES_PER_CELL = {Optimizer.ADAGRAD: 1, Optimizer.ADAM: 2, Optimizer.ROWWISE_ADAM: 1}
STATES_PER_ROW = {Optimizer.ROWWISE_ADAGRAD: 1, Optimizer.ROWWISE_ADAM: 1}


@given(planned_workloads())
def test_weights_states_and_gradients_equal_a_count_over_shards(
    case: tuple[Workload, Topology, Plan],
) -> None:
    workload, topology, plan = case
    size = {"weights": np.zeros(topology.world_size)}
    size.update({k: np.zeros_like(size["weights"]) for k in ("state", "gradient", "host", "cache")})
    for placed in plan.placements:
        optimizer = workload.table(placed.table).optimizer or workload.optimizer
        element = workload.table(placed.table).dtype.num_bytes
        for s in placed.shards:
            cells = s.num_rows * s.num_cols
            state = 4 * STATES_PER_CELL.get(optimizer, 0) * cells
            state += 4 * STATES_PER_ROW.get(optimizer, 0) * s.num_rows
            if placed.kernel in ON_HOST:
                size["host"][s.rank] += cells * element + state
                ratio = placed.cache_load_factor_ratio
                if ratio is not None:
                    size["cache"][s.rank] += ratio * (cells * element + state)
                    size["cache"][s.rank] += s.num_rows * (4 + 16 * ratio)
                continue
            size["weights"][s.rank] += cells * element
            size["state"][s.rank] += state
            if placed.kernel is ComputeKernel.DENSE:
                size["gradient"][s.rank] += cells * 4
    ledger = CostPipeline(workload, topology).memory(plan)
    for r in ledger.ranks:
        assert r.weights_bytes == pytest.approx(size["weights"][r.rank], rel=1e-12)
        assert r.optimizer_bytes == pytest.approx(size["state"][r.rank], rel=1e-12)
        assert r.gradients_bytes == pytest.approx(size["gradient"][r.rank], rel=1e-12)
        assert r.cache_bytes == pytest.approx(size["cache"][r.rank], rel=1e-12)
        assert r.host_bytes == pytest.approx(size["host"][r.rank], rel=1e-12)
        assert r.capacity_bytes == topology.hbm_capacities()[r.rank]
    local = topology.local_world_size
    for h in ledger.hosts:
        used = size["host"][h.host * local : (h.host + 1) * local].sum()
        assert h.used_bytes == pytest.approx(used, rel=1e-12)
        assert h.capacity_bytes == topology.host.ddr_capacity_bytes


@given(planned_workloads())
def test_limits_and_bytes_agree_with_the_ledger(case: tuple[Workload, Topology, Plan]) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    work, ledger = pipeline.plan_work(plan), pipeline.memory(plan)
    room = pipeline.device_limits - pipeline.device_bytes(work)
    np.testing.assert_allclose(room, [r.headroom_bytes for r in ledger.ranks], rtol=1e-9)
    host = pipeline.host_bytes(work)
    np.testing.assert_allclose(host, [h.used_bytes for h in ledger.hosts], rtol=1e-12)
    assert pipeline.host_limits.shape == (topology.num_hosts,)
    assert ledger.fits == bool(np.all(room >= 0) and np.all(host <= pipeline.host_limits))
    assert ledger.fullest.headroom_bytes == pytest.approx(room.min(), rel=1e-9)
    both = np.stack([work, 2 * work])
    np.testing.assert_allclose(pipeline.device_bytes(both)[1], 2 * pipeline.device_bytes(work))
    np.testing.assert_allclose(pipeline.host_bytes(both)[1], 2 * host)


@pytest.mark.parametrize(
    ("kind", "depth"),
    [
        (Pipeline.NONE, 1),
        (Pipeline.SPARSE_DIST, 4),
        (Pipeline.PREFETCH_SPARSE_DIST, 5),
        (Pipeline.HUGECTR, 2),
    ],
)
def test_buffers_hold_batches_in_flight_and_what_lookups_need_for_a_moment(
    kind: Pipeline, depth: int
) -> None:
    """Batch 512 from each of 4 ranks, 8 indices of 8 bytes and a length of 4, output 64 x 4.

    Besides, there are 12 bytes of offsets, and in the backward pass 52 bytes for each index and the
    gradients of the vectors. Without a dense part nothing makes room for these.
    """
    topology, table = make_topology(), make_table()
    workload = make_workload(table, pipeline=kind, dense=DenseArch())
    plan = Plan(placements=(make_placement(table, ShardingType.TABLE_WISE, topology),))
    ledger = CostPipeline(workload, topology).memory(plan)
    expected = 4 * 512 * (depth * (8 * 8 + 4) + 12 + 8 * 52 + 64 * 4)
    assert [r.buffers_bytes for r in ledger.ranks] == [expected, 0, 0, 0]


def test_room_that_activations_leave_is_used_by_lookups_but_by_no_rank_twice() -> None:
    """Of two tables on one rank, both fill the room; a plan with one on each is counted long."""
    topology, tables = make_topology(1, 2), (make_table("a"), make_table("b"))
    arch = DenseArch(num_dense_features=4, bottom_mlp=(64,), top_mlp=(8, 1))
    workload = make_workload(*tables, dense=arch, pipeline=Pipeline.NONE)
    live = live_bytes(workload)
    room = live.peak_bytes - live.beside_lookups_bytes
    held = {}
    for where in ((0, 0), (0, 1)):
        pairs = zip(tables, where, strict=True)
        placed = [
            make_placement(t, ShardingType.TABLE_WISE, topology, where=(r,)) for t, r in pairs
        ]
        ranks = CostPipeline(workload, topology).memory(Plan(placements=tuple(placed))).ranks
        held[where] = [r.buffers_bytes for r in ranks]
    kept = 2 * 512 * (8 * 8 + 4 + 12)
    passing = 2 * 512 * (8 * 52 + 64 * 4)
    assert 0 < room < 2 * passing
    assert held[0, 0] == pytest.approx([2 * (kept + passing) - room, 0.0])
    assert held[0, 1] == pytest.approx([kept + passing - room / 2] * 2)


def test_the_dense_part_and_the_reserve_are_on_every_rank() -> None:
    """Bottom 13-8: 112 parameters; batch 100: activations 21 elements, received 64, three times.

    A pipeline holds the vectors; in the backward pass there are the gradient of what is joined and
    the part of it that belongs to the tables.
    """
    arch = DenseArch(num_dense_features=13, bottom_mlp=(8,))
    table = make_table()
    workload = make_workload(table, dense=arch, batch_size_per_rank=100, reserved_bytes=5e9)
    live = 4 * 100 * 21 + 3 * 100 * 64 * 4
    topology = make_topology()
    assert dense_bytes(workload, topology) == 4 * 4 * 112 + live + 2 * 8.125 * 1024**2
    plan = Plan(placements=(make_placement(table, ShardingType.ROW_WISE, topology),))
    for r in CostPipeline(workload, topology).memory(plan).ranks:
        assert r.dense_bytes == dense_bytes(workload, topology)
        assert r.reserved_bytes == 5e9
    left = topology.hbm_capacities() - 5e9 - dense_bytes(workload, topology)
    assert CostPipeline(workload, topology).device_limits == pytest.approx(left, rel=1e-12)


def test_a_block_that_is_repeated_is_gathered_as_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever layers it goes through; what is not repeated is gathered layer by layer."""

    def layer(name: str, *operators: tuple[int, int]) -> object:
        made = [SimpleNamespace(num_parameters=n, num_repeats=times) for n, times in operators]
        return SimpleNamespace(name=name, operators=made)

    def largest(*layers: object) -> int:
        found = SimpleNamespace(bottom=layers[:1], top=layers[1:])
        monkeypatch.setattr(memory, "dense_layers", lambda _: found)
        return memory._largest_layer(make_workload())

    assert largest(layer("a", (5, 2)), layer("b", (7, 2))) == 12
    assert largest(layer("a", (5, 2)), layer("b", (7, 3))) == 7, "two blocks"
    assert largest(layer("a", (5, 1)), layer("b", (7, 1))) == 7, "two layers"
    assert largest(layer("a", (5, 1), (4, 1)), layer("b", (7, 1))) == 9
    assert largest() == 0


def test_sequences_are_received_index_by_index() -> None:
    pooled = make_workload(make_table(), dense=DenseArch())
    sequence = make_workload(make_table(pooling=Pooling.NONE), dense=DenseArch())
    assert dense_bytes(sequence) == 8 * dense_bytes(pooled)


def test_what_is_too_large_does_not_fit() -> None:
    table = make_table(num_embeddings=200_000_000, embedding_dim=128)
    workload = make_workload(table, dense=make_dense())
    topology = make_topology(host=make_host(ddr_capacity_bytes=1e11))

    def fits(kind: ShardingType, kernel: ComputeKernel, ratio: float | None = None) -> bool:
        placed = make_placement(table, kind, topology, kernel=kernel, cache_load_factor_ratio=ratio)
        return CostPipeline(workload, topology).memory(Plan(placements=(placed,))).fits

    assert not fits(ShardingType.TABLE_WISE, ComputeKernel.FUSED)
    assert fits(ShardingType.ROW_WISE, ComputeKernel.FUSED)
    assert not fits(ShardingType.ROW_WISE, ComputeKernel.FUSED_UVM)
    assert not fits(ShardingType.ROW_WISE, ComputeKernel.FUSED_UVM_CACHING, 0.1)
