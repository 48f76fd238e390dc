"""Iterations priced by the formulas of ``docs/cost_model.md``, without any code of the product.

This holds for plans that need few formulas: one host, nothing beside the tables, no pipeline, a
captured graph, links without measured curves, evenly likely rows, a second-level cache that holds
nothing or everything, and tables that are replicated, whole, or cut by rows into even blocks. All
steps then follow one another: the copy of the batch, the exchange of split sizes, indices, the
slowest forward lookup, vectors and their gradients, the slowest backward lookup, and the gradients
of replicated tables. Only where nothing is exchanged do lookups not wait for one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.workload import Table, Workload

_Q = 0.6
_LEAST_FLOOR_S = 1e-7
_KERNELS_BACKWARD = 3


def iteration_s(workload: Workload, topology: Topology, plan: Plan) -> float:
    """Seconds of one iteration of a plan."""
    forward, backward = _lookups_s(workload, topology, plan)
    copy_s = _batch_bytes(workload) / topology.host.device_link_bandwidth_bytes_per_s
    exchanges_s = sum(
        _exchanged_s(workload, topology, list(_placed(workload, plan, kind)))
        for kind in (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)
    )
    lookups_s = forward.max() + backward.max() if exchanges_s else (forward + backward).max()
    gradients = sum(
        4.0 * t.num_embeddings * t.embedding_dim
        for t, _ in _placed(workload, plan, ShardingType.DATA_PARALLEL)
    )
    reduced_s = _ring_s(topology, gradients)[1] if gradients else 0.0
    return float(copy_s + _empty_s(topology) + exchanges_s + lookups_s + reduced_s)


def _placed(
    workload: Workload, plan: Plan, kind: ShardingType
) -> Iterator[tuple[Table, TablePlacement]]:
    for table in workload.tables:
        placement = plan.placement(table.name)
        if placement.sharding_type is kind:
            yield table, placement


def _batch_bytes(workload: Workload) -> float:
    """A label for each sample; indices, lengths and weights of each feature, counted once."""
    features = {f.name: (f, t.is_weighted) for t in workload.tables for f in t.features}
    index = workload.index_bytes
    each = (f.pooling_factor * (index + 4 * w) + index for f, w in features.values())
    return workload.batch_size_per_rank * (4.0 + sum(each))


# ------------------------------------------------------------------ lookups


def _lookups_s(workload: Workload, topology: Topology, plan: Plan) -> tuple[FloatArray, FloatArray]:
    """Seconds of the lookups of each rank, forward and backward; one formula for each kernel."""
    world, device = topology.world_size, topology.device
    forward, backward = np.zeros(world), np.zeros(world)
    replicated = (ShardingType.DATA_PARALLEL,)
    for kinds in (replicated, (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)):
        work = np.zeros((world, 5))
        for kind in kinds:
            called = np.zeros(world, dtype=bool)
            for table, placement in _placed(workload, plan, kind):
                for shard in placement.shards:
                    called[shard.rank] = True
                    work[shard.rank] += _traffic(workload, topology, table, placement)
            forward += device.kernel_latency_s * called
            backward += _KERNELS_BACKWARD * device.kernel_latency_s * called
        dram_s = work[:, 0] / device.hbm_bandwidth_bytes_per_s
        cached_s = work[:, 1] / device.l2_bandwidth_bytes_per_s
        forward += (dram_s**4 + cached_s**4) ** 0.25
        backward += work[:, 2] / device.sort_rate_per_s
        backward += work[:, 3] / device.hbm_bandwidth_bytes_per_s
        backward += work[:, 4] / device.l2_bandwidth_bytes_per_s
    return forward, backward


def _traffic(
    workload: Workload, topology: Topology, table: Table, placement: TablePlacement
) -> FloatArray:
    """What a rank's shard adds: D, N R, sorted indices, bytes of memory and of the cache backward.

    A block of a table that is cut by rows gets its share of the indices and distinct rows.
    """
    device, parts = topology.device, len(placement.shards)
    is_copy = placement.sharding_type is ShardingType.DATA_PARALLEL
    batch = workload.batch_size_per_rank * (1 if is_copy else topology.world_size)
    share = 1.0 if is_copy else 1.0 / parts
    per_sample = sum(f.pooling_factor for f in table.features)
    indices, bags = share * batch * per_sample, float(batch * len(table.features))
    if not indices:
        return np.zeros(5)
    cols, rows = table.embedding_dim, table.num_embeddings
    row, half = cols * table.dtype.num_bytes, device.row_half_bytes
    distinct = share * -rows * math.expm1(batch * per_sample * math.log1p(-1.0 / rows))
    misses = indices if device.l2_capacity_bytes == 0 else distinct
    weight = 4.0 if table.is_weighted else 0.0
    streamed = indices * (workload.index_bytes + weight)
    streamed += bags * (8.0 + cols * workload.output_dtype.num_bytes)
    first = min(bags, indices)
    state = workload.optimizer_of(table).state_bytes_per_row(cols)
    update = distinct * (row + state + half) / device.update_efficiency_ratio
    update = 6.0 * 4.0 * rows * cols + update if is_copy else 2.0 * update
    gradients = first * cols * 4.0
    return np.array(
        [
            streamed + misses * (row + half),
            indices * row,
            indices,
            gradients + update,
            (indices - first) * cols * 4.0,
        ]
    )


# ------------------------------------------------------------------ exchanges


def _exchanged_s(
    workload: Workload, topology: Topology, placed: list[tuple[Table, TablePlacement]]
) -> float:
    """Seconds of the exchanges of one sharding type: indices, vectors and gradients."""
    if not placed:
        return 0.0
    world, batch = topology.world_size, workload.batch_size_per_rank
    arriving, leaving = np.zeros(world), np.zeros(world)
    for table, placement in placed:
        index = workload.index_bytes + (4.0 if table.is_weighted else 0.0)
        per_sample = sum(f.pooling_factor for f in table.features)
        for shard in placement.shards:
            count = len(table.features) * batch
            arriving[shard.rank] += per_sample * batch * index / len(placement.shards) + 4.0 * count
            leaving[shard.rank] += count * table.embedding_dim * workload.output_dtype.num_bytes
    indices_s = _empty_s(topology) + _all_to_all_s(topology, arriving)
    if placed[0][1].sharding_type is ShardingType.ROW_WISE:
        return indices_s + 2.0 * max(_ring_s(topology, world * x)[0] for x in leaving)
    return indices_s + 2.0 * _all_to_all_s(topology, leaving)


def _empty_s(topology: Topology) -> float:
    """Seconds of an empty all-to-all."""
    alone = topology.world_size == 1
    return 0.0 if alone else max(topology.host_link.latency_s, _LEAST_FLOOR_S)


def _rate(topology: Topology) -> float:
    """Bytes per second of a rank in a host of fewer ranks than eight."""
    lost = 0.77 * max(0.0, 1.0 / topology.world_size - 1.0 / 8.0)
    return topology.host_link.bandwidth_bytes_per_s * math.exp(-lost)


def _soft(floor_s: float, seconds: float) -> float:
    return float((floor_s**_Q + seconds**_Q) ** (1.0 / _Q))


def _all_to_all_s(topology: Topology, per_peer: FloatArray) -> float:
    """Seconds until the busiest rank has sent and received."""
    world = topology.world_size
    if world == 1:
        return 0.0
    busiest = max(max((world - 1) * x, per_peer.sum() - x) for x in per_peer.tolist())
    return _soft(_empty_s(topology), busiest / _rate(topology))


def _ring_s(topology: Topology, size: float) -> tuple[float, float]:
    """Seconds of a reduce-scatter and of an all-reduce of a buffer, which have to agree."""
    world = topology.world_size
    if world == 1:
        return 0.0, 0.0
    moved, latency_s = size * (world - 1) / world, topology.host_link.latency_s
    half_s, whole_s = (max(a * world**b * latency_s, _LEAST_FLOOR_S) for a, b in _FLOORS)
    half_s = _soft(half_s, moved / _rate(topology))
    whole_s = _soft(whole_s, 2.0 * moved / (1.2 * _rate(topology)))
    return max(half_s, 0.4 * whole_s), max(whole_s, 2.0 / 1.3 * half_s)


_FLOORS = ((0.45, 0.5), (0.5, 0.67))
"""Latencies a n^b of an empty reduce-scatter and an empty all-reduce among n ranks."""
