"""Lookup time from the traffic that the index distribution causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.lookup.base import (
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    LookupShard,
    LookupShards,
    LookupWork,
)
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology

_OFFSET_BYTES = 8.0
_GRADIENT_ELEMENT_BYTES = 4.0
_DENSE_PASSES = 6.0
_SEQUENCE_EFFICIENCY = 0.644
"""Share of streaming bandwidth at which an unpooled lookup writes one output row per index.

This and those below are fitted to the ``calibrate`` rows of ``configs/published/lookup_points.csv``
(FBGEMM on an H100, dim 128, unpooled, power law); ``benchmarks/lookup_gpu.py`` prints what is left.
"""
_HELD_BYTES = 112 * 1024.0
"""Rows read from host memory that are still on the chip: the second-level cache keeps none."""
_BOTH_WAYS = 1.66
"""Bytes in and out together, over those of one direction, when rows are read and written back."""
_CACHE_PASSES = 8.0
"""Looking an index up in a cache in front of host memory takes as long as sorting it 8 times."""
_CACHE_UPDATE_PASSES = 0.7
"""The same for the update, which finds rows by their place in the cache."""
ATOMIC_PASSES = 10.6
"""Reads of a row from the second-level cache that adding to it atomically takes as long as.

Fitted to the ``calibrate`` rows of V100 (Lin et al.'s update without deduplication). Their counters
see 4 reads and 4 writes of that cache for each byte of a row.
"""


@final
@dataclass(frozen=True, slots=True)
class Roofline(AbstractLookupModel):
    """DRAM and L2 roofline over expected misses and unique rows.

    With N indices, U distinct rows, M misses of an LRU second-level cache (Che's approximation),
    row bytes R, and row efficiency R / (R + h) where h is the device's ``row_half_bytes``:

    - forward: t = ((D / b_dram)^4 + (N R / b_l2)^4)^(1/4) + host link bytes / b_link, where
      D = M (R + h) + index bytes + output bytes (those of unpooled lookups over 0.644);
    - backward with fused update: t = N / sort rate + G / b_dram + (N R_grad - G) / b_l2
      + 2 U (R + s + h) / (rho b_dram) + host link bytes / b_link, with G the gradient bytes of all
      bags, s optimizer bytes per row and rho the device's ``update_efficiency_ratio``.

    ``dense`` (replicated tables) instead writes, reduces and applies a gradient of the whole table:
    six passes over it. ``fused_uvm`` reads rows over the host link, M' of them, the misses of a
    cache of 112 KiB; updates read and write 2 U (R + s + h) at 1.66 times the link's rate, both
    directions at once. ``fused_uvm_caching`` keeps optimizer state in host memory; missing rows
    come in and evicted ones go out before the forward, and every index costs eight times its sort.

    A table whose ``row_update`` is ``per_index`` sorts nothing and updates M rows instead of U,
    while every index's row is read 10.6 times from the second-level cache: the root of the sum of
    squares of the times of device memory and of that cache. ``deduplicated_without_sort`` leaves
    out the sort.

    Valid for batches that fill the device (more than some 10^4 rows per call).
    """

    sources: ClassVar[tuple[str, ...]] = (
        "Lin et al. 2022 (arXiv 2201.07821): traffic per lookup, second-level cache",
        "Che, Tung, Wang 2002: characteristic time of an LRU cache",
        "FBGEMM table-batched embedding: exact updates touch distinct rows once",
    )

    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """Traffic of one shard; see the class for the formulas."""
        return np.asarray(self.shards_work(LookupShards.of(shard), topology)[0])

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """Traffic of many shards."""
        work = np.zeros((len(shards), NUM_LOOKUP_WORK))
        used = shards.is_used
        work[used] = _traffic(shards.chosen(used), topology)
        return work

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Smooth maximum of DRAM and L2 time, plus the host link and the cache in front of it."""
        device = topology.device
        dram = work[..., LookupWork.STREAM_DRAM] + work[..., LookupWork.FORWARD_ROWS_DRAM]
        dram_s = dram / device.hbm_bandwidth_bytes_per_s
        cached_s = work[..., LookupWork.FORWARD_ROWS_L2] / device.l2_bandwidth_bytes_per_s
        both_s = np.sqrt(np.hypot(dram_s * dram_s, cached_s * cached_s))
        link = work[..., LookupWork.FORWARD_HOST_LINK]
        link_s = link / topology.host.device_link_bandwidth_bytes_per_s
        passes_s = _CACHE_PASSES * work[..., LookupWork.CACHE_INDICES] / device.sort_rate_per_s
        return np.asarray(both_s + link_s + passes_s)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Sort, gradient reads, row updates and the host link, one after the other."""
        device = topology.device
        return np.asarray(
            work[..., LookupWork.INDICES] / device.sort_rate_per_s
            + _CACHE_UPDATE_PASSES * work[..., LookupWork.CACHE_INDICES] / device.sort_rate_per_s
            + work[..., LookupWork.BACKWARD_GRADIENTS_L2] / device.l2_bandwidth_bytes_per_s
            + work[..., LookupWork.BACKWARD_ROWS_DRAM] / device.hbm_bandwidth_bytes_per_s
            + work[..., LookupWork.BACKWARD_HOST_LINK]
            / topology.host.device_link_bandwidth_bytes_per_s
        )

    def prefers_device(self, topology: Topology) -> bool:
        """Where rows come faster from device memory than over the host link, read and updated.

        What a shard saves in the smooth maximum of a forward call is no more than its rows take in
        device memory, which is less than they take over the link; backward times just add up.
        """
        device, link = topology.device, topology.host.device_link_bandwidth_bytes_per_s
        update = device.update_efficiency_ratio * device.hbm_bandwidth_bytes_per_s
        return device.hbm_bandwidth_bytes_per_s >= link and update >= _BOTH_WAYS * link


def _traffic(shards: LookupShards, topology: Topology) -> FloatArray:
    """Work of shards that are looked up, ``[n, NUM_LOOKUP_WORK]``."""
    work = np.zeros((len(shards), NUM_LOOKUP_WORK))
    indices, bags = shards.num_indices, shards.num_bags
    gradient = shards.num_cols * _GRADIENT_ELEMENT_BYTES
    first = np.minimum(bags, indices)
    each = _updates_each(shards)
    sorts = shards.tables.sorts[shards.table] | shards.runs(ComputeKernel.DENSE)
    work[:, LookupWork.INDICES] = np.where(sorts, indices, 0.0)
    work[:, LookupWork.STREAM_DRAM] = _streamed(shards)
    work[:, LookupWork.FORWARD_ROWS_L2] = indices * shards.row_bytes
    work[:, LookupWork.BACKWARD_GRADIENTS_L2] = np.where(each, 0.0, indices - first) * gradient
    work[:, LookupWork.BACKWARD_ROWS_DRAM] = first * gradient
    unique = shards.laws.unique_rows_in_range(
        shards.law, shards.num_table_indices, shards.row_offset, shards.num_rows
    )
    in_host_memory = shards.runs(ComputeKernel.FUSED_UVM)
    for where, add in ((in_host_memory, _add_host_rows), (~in_host_memory, _add_device_rows)):
        if where.any():
            part = work[where]
            add(part, shards.chosen(where), topology, unique[where])
            work[where] = part
    return work


def _streamed(shards: LookupShards) -> FloatArray:
    """Bytes of indices, weights, offsets and outputs."""
    weight = np.where(shards.tables.is_weighted[shards.table], 4.0, 0.0)
    pooled = shards.tables.is_pooled[shards.table]
    output = (
        shards.num_cols * shards.output_element_bytes / np.where(pooled, 1.0, _SEQUENCE_EFFICIENCY)
    )
    indices = shards.num_indices * (shards.index_bytes + weight)
    return np.asarray(indices + shards.num_bags * (_OFFSET_BYTES + output))


def _misses(shards: LookupShards, unique: FloatArray, cache_bytes: float) -> FloatArray:
    """Rows that a cache of the device fetches, at least once each."""
    share = shards.rows_ratio
    held = cache_bytes / shards.row_bytes / share
    misses = share * shards.laws.expected_misses(shards.law, shards.num_table_indices, held)
    return np.minimum(np.maximum(misses, unique), shards.num_indices)


def _updates_each(shards: LookupShards) -> BoolArray:
    """Shards whose rows are updated once per index; replicated tables add into a gradient."""
    each = shards.tables.updates_each_index[shards.table]
    return np.asarray(each & ~shards.runs(ComputeKernel.DENSE))


def _atomics(shards: LookupShards, topology: Topology) -> FloatArray:
    """Effective bytes of atomic additions to one row per index; 0 where rows are deduplicated."""
    device = topology.device
    slower = device.hbm_bandwidth_bytes_per_s / device.l2_bandwidth_bytes_per_s
    added = ATOMIC_PASSES * shards.num_indices * shards.row_bytes * slower
    return np.where(_updates_each(shards), added, 0.0)


def _add_host_rows(
    work: FloatArray, shards: LookupShards, topology: Topology, unique: FloatArray
) -> None:
    """Rows that stay in host memory: read over the link, updated in place over the link."""
    device, row = topology.device, shards.row_bytes
    half = device.row_half_bytes
    misses = _misses(shards, unique, min(_HELD_BYTES, device.l2_capacity_bytes))
    whole = row + shards.state_bytes_per_row + half
    updated = np.where(_updates_each(shards), misses, unique)
    work[:, LookupWork.FORWARD_HOST_LINK] = misses * (row + half)
    gradients = work[:, LookupWork.BACKWARD_ROWS_DRAM]
    work[:, LookupWork.BACKWARD_ROWS_DRAM] = np.hypot(gradients, _atomics(shards, topology))
    work[:, LookupWork.BACKWARD_HOST_LINK] = 2.0 * updated * whole / _BOTH_WAYS


def _add_device_rows(
    work: FloatArray, shards: LookupShards, topology: Topology, unique: FloatArray
) -> None:
    """Rows in device memory, read and updated; with a cache, what it exchanges with the host."""
    device, row, state = topology.device, shards.row_bytes, shards.state_bytes_per_row
    half, rho = device.row_half_bytes, device.update_efficiency_ratio
    misses = _misses(shards, unique, device.l2_capacity_bytes)
    work[:, LookupWork.FORWARD_ROWS_DRAM] = misses * (row + half)
    updated = np.where(_updates_each(shards), misses, unique)
    whole = updated * (row + state + half)
    updates = 2.0 * whole / rho
    dense = shards.runs(ComputeKernel.DENSE)
    cells = shards.num_rows.astype(float) * shards.num_cols
    passes = _DENSE_PASSES * cells * _GRADIENT_ELEMENT_BYTES
    updates = np.where(dense, passes + whole / rho, updates)
    cached = shards.runs(ComputeKernel.FUSED_UVM_CACHING)
    updates = np.where(cached, 2.0 * updated * (row + half) / rho, updates)
    moved = work[:, LookupWork.BACKWARD_ROWS_DRAM] + updates
    work[:, LookupWork.BACKWARD_ROWS_DRAM] = np.hypot(moved, _atomics(shards, topology))
    if cached.any():
        outside = np.where(state > 0, 2.0 * updated * (state + half) / _BOTH_WAYS, 0.0)
        moved = 2.0 * _missing(shards.chosen(cached)) * (row[cached] + half) / _BOTH_WAYS
        work[cached, LookupWork.CACHE_INDICES] = shards.num_indices[cached]
        work[cached, LookupWork.FORWARD_HOST_LINK] = moved
        work[cached, LookupWork.BACKWARD_HOST_LINK] = outside[cached]


def _missing(shards: LookupShards) -> FloatArray:
    """Rows of a batch that a cache in front of host memory does not hold."""
    tables = shards.tables
    cached = shards.cache_load_factor_ratio * tables.num_embeddings[shards.table]
    share = shards.num_rows / tables.num_embeddings[shards.table]
    misses = shards.laws.expected_unique_misses(
        shards.law, shards.num_table_indices, cached, shards.lookahead_batches
    )
    return np.asarray(share * misses)
