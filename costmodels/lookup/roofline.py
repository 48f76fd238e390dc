"""Lookup time from the traffic that the index distribution causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from costmodels.lookup.base import (
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    FloatArray,
    LookupShard,
    LookupWork,
)
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.workload import Pooling

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

    Valid for batches that fill the device (more than some 10^4 rows per call).
    """

    sources: ClassVar[tuple[str, ...]] = (
        "Lin et al. 2022 (arXiv 2201.07821): traffic per lookup, second-level cache",
        "Che, Tung, Wang 2002: characteristic time of an LRU cache",
        "FBGEMM table-batched embedding: exact updates touch distinct rows once",
    )

    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """Traffic of one shard; see the class for the formulas."""
        work = np.zeros(NUM_LOOKUP_WORK)
        if shard.num_rows <= 0 or shard.num_indices <= 0:
            return work
        device, law = topology.device, shard.table.distribution
        row = shard.num_cols * shard.table.dtype.num_bytes
        unique = law.unique_rows_in_range(shard.num_table_indices, shard.row_offset, shard.num_rows)
        share = min(1.0, shard.num_rows / shard.table.num_embeddings)
        cache_rows = device.l2_capacity_bytes / row / share
        misses = share * law.expected_misses(shard.num_table_indices, cache_rows)
        misses = min(max(misses, unique), shard.num_indices)
        weight = 4.0 if shard.table.is_weighted else 0.0
        pooled = shard.table.pooling is not Pooling.NONE
        output = (
            shard.num_cols * shard.output_element_bytes / (1.0 if pooled else _SEQUENCE_EFFICIENCY)
        )
        work[LookupWork.INDICES] = shard.num_indices
        work[LookupWork.STREAM_DRAM] = shard.num_indices * (
            shard.index_bytes + weight
        ) + shard.num_bags * (_OFFSET_BYTES + output)
        work[LookupWork.FORWARD_ROWS_L2] = shard.num_indices * row
        gradient = shard.num_cols * _GRADIENT_ELEMENT_BYTES
        first = min(shard.num_bags, shard.num_indices)
        work[LookupWork.BACKWARD_GRADIENTS_L2] = (shard.num_indices - first) * gradient
        work[LookupWork.BACKWARD_ROWS_DRAM] = first * gradient
        if shard.kernel is ComputeKernel.FUSED_UVM:
            _add_host_rows(work, shard, topology, unique, row)
        else:
            work[LookupWork.FORWARD_ROWS_DRAM] = misses * (row + device.row_half_bytes)
            _add_updates(work, shard, topology, unique, row)
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


def _add_host_rows(
    work: FloatArray, shard: LookupShard, topology: Topology, unique: float, row: float
) -> None:
    """Rows that stay in host memory: read over the link, updated in place over the link."""
    device, table = topology.device, shard.table
    share = min(1.0, shard.num_rows / table.num_embeddings)
    held = min(_HELD_BYTES, device.l2_capacity_bytes) / row / share
    misses = share * table.distribution.expected_misses(shard.num_table_indices, held)
    state = shard.optimizer.state_bytes_per_row(shard.num_cols)
    half = device.row_half_bytes
    work[LookupWork.FORWARD_HOST_LINK] = min(max(misses, unique), shard.num_indices) * (row + half)
    work[LookupWork.BACKWARD_HOST_LINK] = 2.0 * unique * (row + state + half) / _BOTH_WAYS


def _add_updates(
    work: FloatArray, shard: LookupShard, topology: Topology, unique: float, row: float
) -> None:
    """Updates of rows in device memory; with a cache, also what moves between it and the host."""
    device = topology.device
    half, rho = device.row_half_bytes, device.update_efficiency_ratio
    state = shard.optimizer.state_bytes_per_row(shard.num_cols)
    whole = unique * (row + state + half)
    if shard.kernel is ComputeKernel.DENSE:
        passes = _DENSE_PASSES * shard.num_rows * shard.num_cols * _GRADIENT_ELEMENT_BYTES
        work[LookupWork.BACKWARD_ROWS_DRAM] += passes + whole / rho
        return
    if shard.kernel is not ComputeKernel.FUSED_UVM_CACHING:
        work[LookupWork.BACKWARD_ROWS_DRAM] += 2.0 * whole / rho
        return
    table = shard.table
    cached = (shard.cache_load_factor_ratio or 0.0) * table.num_embeddings
    share = shard.num_rows / table.num_embeddings
    missing = share * table.distribution.expected_unique_misses(shard.num_table_indices, cached)
    work[LookupWork.CACHE_INDICES] = shard.num_indices
    work[LookupWork.FORWARD_HOST_LINK] = 2.0 * missing * (row + half) / _BOTH_WAYS
    work[LookupWork.BACKWARD_ROWS_DRAM] += 2.0 * unique * (row + half) / rho
    if state > 0:
        work[LookupWork.BACKWARD_HOST_LINK] = 2.0 * unique * (state + half) / _BOTH_WAYS
