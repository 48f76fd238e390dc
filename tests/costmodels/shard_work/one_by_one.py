"""The formulas of laws, lookups and work for one shard at a time, as plain as can be.

The code proper works on columns of shards; tests hold it to these.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import live_bytes
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel
from costmodels.lookup.base import LookupWork as Lookup
from costmodels.shard_work.work import (
    EXCHANGING_TYPES,
    INPUT,
    MEMORY,
    NUM_COLUMNS,
    OUTPUT,
    PIPELINE_DEPTH,
    REPLICATED,
    Memory,
    call_column,
)
from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import Pipeline, Pooling, Table, Workload
from tests.lookups import OneShard, lookup_columns, work_of_one

# ------------------------------------------------------------------ laws


def touched(probability: FloatArray, draws: float) -> FloatArray:
    if draws < 1.0:
        return probability * draws
    return -np.expm1(draws * np.log1p(-np.minimum(probability, 1.0 - 1e-12)))


def unique_rows(law: AbstractIndexDistribution, indices: float) -> float:
    rows, probability = law.frequency_bins()
    return min(float(rows @ touched(probability, law.effective_draws(indices))), indices)


def unique_in_range(
    law: AbstractIndexDistribution, indices: float, offset: int, rows: int
) -> float:
    if law.scattered:
        return unique_rows(law, indices) * rows / law.num_embeddings
    _, probability = law.frequency_bins()
    inside = law.range_rows(offset, rows)
    return float(inside @ touched(probability, law.effective_draws(indices)))


def range_share(law: AbstractIndexDistribution, offset: int, rows: int) -> float:
    if law.scattered:
        return rows / law.num_embeddings
    _, probability = law.frequency_bins()
    return min(float(law.range_rows(offset, rows) @ probability), 1.0)


def cache(law: AbstractIndexDistribution, cached: float) -> tuple[float, float]:
    """(draws until an LRU cache is full, hit ratio then), off all 256 points of the curve."""
    rows, probability = law.frequency_bins()
    rows, probability = rows[probability > 0], probability[probability > 0]
    draws = np.geomspace(0.5, 14.0 / probability.min(), 256)
    seen = -np.expm1(-np.outer(draws, probability))
    held, hits = np.maximum.accumulate(seen @ rows), seen @ (rows * probability)
    if cached >= held[-1]:
        return np.inf, 1.0
    if cached <= held[0]:
        until = draws[0] * max(cached, 0.0) / held[0]
        return until, float(hits[0] * until / draws[0])
    until = float(np.exp(np.interp(np.log(cached), np.log(held), np.log(draws))))
    return until, float(np.interp(np.log(until), np.log(draws), hits))


def misses(law: AbstractIndexDistribution, indices: float, cached: float) -> float:
    (until, hit), draws = cache(law, cached), law.effective_draws(indices)
    unique = unique_rows(law, indices)
    if until >= draws:
        return unique
    return min(max(cached + (draws - until) * (1.0 - hit), unique), indices)


def unique_misses(law: AbstractIndexDistribution, indices: float, cached: float) -> float:
    until, _ = cache(law, cached)
    if np.isinf(until):
        return 0.0
    rows, probability = law.frequency_bins()
    cold = rows * np.exp(-probability * until)
    return float(cold @ touched(probability, law.effective_draws(indices)))


# ------------------------------------------------------------------ the roofline's work


def roofline_work(shard: OneShard, topology: Topology) -> FloatArray:
    """See :class:`costmodels.lookup.roofline.Roofline` for the formulas."""
    work = np.zeros(NUM_LOOKUP_WORK)
    if shard.num_rows <= 0 or shard.num_indices <= 0:
        return work
    device, table, law = topology.device, shard.table, shard.table.distribution
    row, half = shard.num_cols * table.dtype.num_bytes, device.row_half_bytes
    state = shard.optimizer.state_bytes_per_row(shard.num_cols)
    drawn, indices = shard.num_table_indices, shard.num_indices
    unique = unique_in_range(law, drawn, shard.row_offset, shard.num_rows)
    share = min(1.0, shard.num_rows / table.num_embeddings)
    output = shard.num_cols * shard.output_element_bytes
    output /= 0.644 if table.pooling is Pooling.NONE else 1.0
    first = min(shard.num_bags, indices)
    each = table.row_update is RowUpdate.PER_INDEX and shard.kernel is not ComputeKernel.DENSE
    if table.row_update is RowUpdate.DEDUPLICATED or shard.kernel is ComputeKernel.DENSE:
        work[Lookup.INDICES] = indices
    work[Lookup.STREAM_DRAM] = indices * (shard.index_bytes + 4.0 * table.is_weighted)
    work[Lookup.STREAM_DRAM] += shard.num_bags * (8.0 + output)
    work[Lookup.FORWARD_ROWS_L2] = indices * row
    work[Lookup.BACKWARD_GRADIENTS_L2] = (indices - first) * 4.0 * shard.num_cols * (not each)
    work[Lookup.BACKWARD_ROWS_DRAM] = first * 4.0 * shard.num_cols
    on_chip = device.l2_capacity_bytes
    if shard.kernel is ComputeKernel.FUSED_UVM:
        on_chip = min(112 * 1024.0, on_chip)
    fetched = share * misses(law, drawn, on_chip / row / share)
    fetched = min(max(fetched, unique), indices)
    added = 0.0
    if each:
        unique, added = fetched, 10.6 * indices * row
        added *= device.hbm_bandwidth_bytes_per_s / device.l2_bandwidth_bytes_per_s
    if shard.kernel is ComputeKernel.FUSED_UVM:
        work[Lookup.FORWARD_HOST_LINK] = fetched * (row + half)
        work[Lookup.BACKWARD_HOST_LINK] = 2.0 * unique * (row + state + half) / 1.66
        work[Lookup.BACKWARD_ROWS_DRAM] = np.hypot(work[Lookup.BACKWARD_ROWS_DRAM], added)
        return work
    rho = device.update_efficiency_ratio
    work[Lookup.FORWARD_ROWS_DRAM] = fetched * (row + half)
    if shard.kernel is ComputeKernel.DENSE:
        passes = 6.0 * shard.num_rows * shard.num_cols * 4.0
        work[Lookup.BACKWARD_ROWS_DRAM] += passes + unique * (row + state + half) / rho
    elif shard.kernel is ComputeKernel.FUSED:
        work[Lookup.BACKWARD_ROWS_DRAM] += 2.0 * unique * (row + state + half) / rho
    else:
        assert shard.cache_load_factor_ratio is not None
        cached = shard.cache_load_factor_ratio * table.num_embeddings
        missing = shard.num_rows / table.num_embeddings * unique_misses(law, drawn, cached)
        work[Lookup.CACHE_INDICES] = indices
        work[Lookup.FORWARD_HOST_LINK] = 2.0 * missing * (row + half) / 1.66
        work[Lookup.BACKWARD_ROWS_DRAM] += 2.0 * unique * (row + half) / rho
        work[Lookup.BACKWARD_HOST_LINK] = 2.0 * unique * (state + half) / 1.66 * (state > 0)
    work[Lookup.BACKWARD_ROWS_DRAM] = np.hypot(work[Lookup.BACKWARD_ROWS_DRAM], added)
    return work


# ------------------------------------------------------------------ caches of a CPU


def cpu_misses(
    rows: FloatArray, probability: FloatArray, draws: float, num_indices: float, capacity: float
) -> float:
    """Misses of an LRU cache of so many rows that starts empty; its filling time by bisection."""
    missed = np.log1p(-np.minimum(probability, 1.0 - 1e-12))
    distinct = min(float(rows @ -np.expm1(draws * missed)), num_indices)
    if distinct <= capacity:
        return distinct
    low, high = 0.0, draws
    for _ in range(60):
        middle = 0.5 * (low + high)
        held = float(rows @ -np.expm1(-probability * middle))
        low, high = (low, middle) if held > capacity else (middle, high)
    hits = float((rows * probability) @ -np.expm1(-probability * low))
    share = float(rows @ probability)
    return min(max(capacity + (draws - low) * (share - hits), distinct), num_indices)


# ------------------------------------------------------------------ work of a plan


def plan_work(
    plan: Plan, workload: Workload, topology: Topology, lookup: AbstractLookupModel
) -> FloatArray:
    """Work ``[W, columns]``, shard by shard."""
    work = np.zeros((topology.world_size, NUM_COLUMNS))
    for placement in plan.placements:
        for shard in placement.shards:
            work[shard.rank] += shard_work(shard, placement, workload, topology, lookup)
    return work


def share_of_accesses(shard: Shard, placement: TablePlacement, table: Table) -> float:
    """Of hashed rows, the block with the hottest row gets more than the others."""
    law, rows = table.distribution, table.num_embeddings
    block = max(s.num_rows for s in placement.shards)
    parts = math.ceil(rows / block) if block else 1
    if not law.scattered or parts == 1:
        return range_share(law, shard.row_offset, shard.num_rows)
    more = law.hottest_share(parts) - 1 / parts
    if more * parts <= 0.002:
        return shard.num_rows / rows
    hottest = zlib.crc32(table.name.encode()) % rows
    hot = next(s for s in placement.shards if 0 <= hottest - s.row_offset < s.num_rows)
    share = min(1.0, hot.num_rows / rows + more)
    if shard.row_offset == hot.row_offset and shard.num_rows:
        return share
    return (1 - share) * shard.num_rows / (rows - hot.num_rows)


def shard_work(
    shard: Shard,
    placement: TablePlacement,
    workload: Workload,
    topology: Topology,
    lookup: AbstractLookupModel,
) -> FloatArray:
    table, kernel = workload.table(placement.table), placement.kernel
    family, ratio = family_of(placement, topology), placement.cache_load_factor_ratio
    replicated = family is ShardingType.DATA_PARALLEL
    batch, sources = float(workload.batch_size_per_rank), float(topology.world_size)
    share = share_of_accesses(shard, placement, table)
    if replicated:
        sources = share = 1.0
    indices = batch * table.pooling_factor
    sent, length_bytes = indices * share, 4.0
    if table.deduplicates_indices:
        law, length_bytes = table.distribution, 8.0
        sent = min(sent, unique_in_range(law, indices, shard.row_offset, shard.num_rows))
    bags = batch * len(table.features)
    if table.pooling is Pooling.NONE:
        bags = sent
    seen = OneShard(
        table=table,
        kernel=kernel,
        row_offset=shard.row_offset,
        num_rows=shard.num_rows,
        num_cols=shard.num_cols,
        num_indices=sources * sent,
        num_table_indices=sources * indices,
        num_bags=sources * bags,
        output_element_bytes=workload.output_dtype.num_bytes,
        index_bytes=workload.index_bytes,
        optimizer=workload.optimizer_of(table),
        cache_load_factor_ratio=ratio,
    )
    work = np.zeros(NUM_COLUMNS)
    work[lookup_columns(kernel)] = work_of_one(lookup, seen, topology)
    is_torchrec = workload.pipeline is not Pipeline.HUGECTR
    if table.pooling is Pooling.NONE and is_torchrec and shard.num_rows and not replicated:
        work[lookup_columns(kernel)] += reordered(seen, family, topology, indices)
    work[call_column(family, kernel)] = 1.0
    index_bytes = workload.index_bytes + 4.0 * table.is_weighted
    arriving = sent * index_bytes + batch * len(table.features) * length_bytes
    leaving = bags * shard.num_cols * workload.output_dtype.num_bytes
    if replicated:
        work[REPLICATED] = 4.0 * table.num_embeddings * table.embedding_dim
    else:
        work[INPUT + EXCHANGING_TYPES.index(family)] = arriving
        work[OUTPUT + EXCHANGING_TYPES.index(family)] = leaving
    depth = PIPELINE_DEPTH[workload.pipeline]
    passing = 52.0 * sent + (0.0 if replicated or topology.world_size == 1 else leaving)
    offsets = 12.0 * batch * len(table.features)
    held = depth * arriving + offsets + excess_ratio(workload, topology) * passing
    work[MEMORY + Memory.BUFFERS] = sources * held
    work[MEMORY:] += table_memory(shard, table, workload, kernel, ratio)
    return work


def reordered(
    shard: OneShard, family: ShardingType, topology: Topology, indices: float
) -> FloatArray:
    """Permuting and selecting unpooled vectors around their exchange."""
    work = np.zeros(NUM_LOOKUP_WORK)
    if topology.world_size == 1 or topology.compute_device == "cpu":
        return work
    vector = shard.num_cols * shard.output_element_bytes
    work[Lookup.STREAM_DRAM] = work[Lookup.BACKWARD_ROWS_DRAM] = 2 * shard.num_indices * vector
    if family is ShardingType.ROW_WISE:
        own = (shard.num_indices if shard.table.deduplicates_indices else indices) * vector
        device = topology.device
        slower = device.hbm_bandwidth_bytes_per_s / device.l2_bandwidth_bytes_per_s
        work[Lookup.STREAM_DRAM] += 2 * own
        work[Lookup.BACKWARD_ROWS_DRAM] += math.hypot(3, 10.6 * slower) * own
    return work


def excess_ratio(workload: Workload, topology: Topology) -> float:
    world, batch, live = topology.world_size, workload.batch_size_per_rank, live_bytes(workload)
    room = live.peak_bytes - live.beside_lookups_bytes
    most = 0.0
    for table in workload.tables:
        vector = table.embedding_dim * workload.output_dtype.num_bytes
        most += 52.0 * world * batch * table.pooling_factor
        most += (world if world > 1 else 0) * batch * table.outputs_per_sample * vector
    return max(0.0, 1.0 - room / most) if most else 1.0


def table_memory(
    shard: Shard, table: Table, workload: Workload, kernel: ComputeKernel, ratio: float | None
) -> FloatArray:
    memory = np.zeros(len(Memory))
    weights = float(shard.num_rows) * shard.num_cols * table.dtype.num_bytes
    state = shard.num_rows * workload.optimizer_of(table).state_bytes_per_row(shard.num_cols)
    if kernel in (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING):
        memory[Memory.HOST] = weights + state
        if ratio is not None:
            memory[Memory.CACHE] = ratio * (weights + state)
            memory[Memory.CACHE] += shard.num_rows * (4.0 + 16.0 * ratio)
        return memory
    memory[Memory.WEIGHTS], memory[Memory.OPTIMIZER] = weights, state
    if kernel is ComputeKernel.DENSE:
        memory[Memory.GRADIENTS] = shard.num_rows * shard.num_cols * 4.0
    return memory


def family_of(placement: TablePlacement, topology: Topology) -> ShardingType:
    """Row splits over some ranks exchange like table-wise shards."""
    kind, ranks, local = placement.sharding_type, placement.ranks, topology.local_world_size
    if kind is ShardingType.ROW_WISE:
        return kind if ranks == tuple(range(topology.world_size)) else ShardingType.TABLE_WISE
    if kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
        blocks = [ranks[i : i + local] for i in range(0, len(ranks), local)]
        if any(b != tuple(range(b[0], b[0] + local)) or b[0] % local for b in blocks):
            return ShardingType.TABLE_WISE
    return kind
