"""Seconds of lookups from the memory traffic that an index distribution causes."""

from dataclasses import dataclass
from typing import final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel, LookupShards, LookupWork
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology

_OFFSET_BYTES = 8.0
"""Bytes of the offset that each bag has: int64, as FBGEMM's kernels take it."""
_WEIGHT_BYTES = 4.0
"""Bytes of the fp32 weight of an index of a weighted table."""
_GRADIENT_ELEMENT_BYTES = 4.0
"""Bytes per element of gradients, which are fp32."""
_SEQUENCE_EFFICIENCY = 0.644
"""Share of the streaming bandwidth at which an unpooled lookup writes one output row per index.

This constant and those from here to ``_CACHE_UPDATE_PASSES`` are fitted to the ``calibrate`` rows
of ``configs/published/lookup_points.csv`` (FBGEMM on an H100, 128 columns, unpooled, power law).
``benchmarks/lookup_gpu.py`` prints the errors on rows that were left out of the fit.
"""
_HELD_BYTES = 112 * 1024.0
"""Bytes of rows of host memory that the chip still holds when they are read again. Fitted. The
second-level cache, which is much larger, keeps no rows of host memory."""
_BOTH_WAYS = 1.66
"""Rate of the host link when rows are read and written back, both directions together, over the
rate of one direction."""
_CACHE_PASSES = 8.0
"""Seconds to find one index in a cache in front of host memory, over those to sort it."""
_CACHE_UPDATE_PASSES = 0.7
"""The same ratio for the update, which already knows the place of each row in the cache."""
ATOMIC_PASSES = 10.6
"""Seconds to add to a row by atomic additions, over those to read it from the second-level cache.

Fitted to the ``calibrate`` rows of V100 in ``configs/published/lookup_points_v100.csv`` (the update
without deduplication that Lin et al. 2022 measured). Their hardware counters show 4 reads and 4
writes of the second-level cache for each byte of a row.
"""


@final
@dataclass(frozen=True, slots=True)
class Roofline(AbstractLookupModel):
    """A roofline of device memory and second-level cache, over expected misses and distinct rows.

    The work of a call is described by N indices, U expected distinct rows, M expected misses of the
    second-level cache, taken as LRU (Che's approximation), R bytes of a row, R_grad bytes of its
    gradient, s bytes of its optimizer state, and G gradient bytes of all bags. The device has the
    bandwidths b_dram and b_l2, h = ``row_half_bytes`` (so that an access of a row has the
    efficiency R / (R + h)), and rho = ``update_efficiency_ratio``; b_link is the bandwidth of the
    link to the host. Then ``fused`` takes the following seconds:

    - forward: t = ((D / b_dram)^4 + (N R / b_l2)^4)^(1/4), where D = M (R + h) + index bytes +
      output bytes, those of unpooled lookups divided by 0.644;
    - backward: t = N / sort rate + G / b_dram + (N R_grad - G) / b_l2
      + 2 U (R + s + h) / (rho b_dram).

    Other kernels differ from it as follows:

    - ``dense`` (replicated tables) adds a gradient of the whole table instead of updating rows in
      place: six passes over the table, and one access of the U rows instead of two.
    - ``fused_uvm`` reads rows over the host link, M' (R + h) bytes at b_link, where M' are the
      misses of a cache of 112 KiB. Updates move 2 U (R + s + h) bytes at 1.66 b_link, both
      directions together.
    - ``fused_uvm_caching`` has rows in a cache on the device, and their optimizer state in host
      memory. Before the forward pass, rows that the cache lacks come in and others go out, 2 (R +
      h) bytes for each at 1.66 b_link, and finding an index takes as long as sorting it 8 times.
      The update moves 2 U (s + h) bytes of state at 1.66 b_link, and takes 0.7 sorts more.

    The ``row_update`` of a table may change the backward pass:

    - ``per_index`` sorts nothing and updates M rows instead of U. Besides, the row of every index
      costs 10.6 reads from the second-level cache. The seconds of device memory and of that cache
      are joined as the square root of the sum of their squares.
    - ``deduplicated_without_sort`` leaves out the sort.

    Valid for batches that fill the device (more than some 10^4 rows per call).

    Sources:
        Lin et al. 2022 (arXiv 2201.07821): traffic per lookup, second-level cache
        Che, Tung, Wang 2002: characteristic time of an LRU cache
        FBGEMM table-batched embedding: exact updates touch distinct rows once
    """

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """The traffic of many shards, ``[n, NUM_LOOKUP_WORK]``."""
        work, device = np.zeros((len(shards), NUM_LOOKUP_WORK)), topology.device
        indices, row, state = shards.num_indices, shards.row_bytes, shards.state_bytes_per_row
        half, rho = device.row_half_bytes, device.update_efficiency_ratio
        dense, on_host = shards.runs(ComputeKernel.DENSE), shards.runs(ComputeKernel.FUSED_UVM)
        cached, unique = shards.runs(ComputeKernel.FUSED_UVM_CACHING), shards.unique_rows()
        # The kernel of replicated tables adds to a gradient of the whole table, never to each row.
        each = shards.tables.updates_each_index[shards.table] & ~dense
        # The first read of a bag's gradient is one of device memory, further ones hit the cache.
        first = np.minimum(shards.num_bags, indices)
        gradient, l2_bytes = shards.num_cols * _GRADIENT_ELEMENT_BYTES, device.l2_capacity_bytes
        held = np.where(on_host, min(_HELD_BYTES, l2_bytes), l2_bytes)
        misses = shards.misses(unique, held)
        read, updated = misses * (row + half), np.where(each, misses, unique)
        whole, in_cache = updated * (row + state + half), 2.0 * updated * (row + half) / rho
        updates = np.select(
            [on_host, dense, cached],
            [np.zeros(len(shards)), shards.whole_gradient_bytes + whole / rho, in_cache],
            2.0 * whole / rho,
        )
        slower = device.hbm_bandwidth_bytes_per_s / device.l2_bandwidth_bytes_per_s
        atomics = np.where(each, ATOMIC_PASSES * indices * row * slower, 0.0)
        sorts = shards.tables.sorts[shards.table] | dense
        work[:, LookupWork.INDICES] = np.where(sorts, indices, 0.0)
        work[:, LookupWork.STREAM_DRAM] = _streamed(shards)
        work[:, LookupWork.FORWARD_ROWS_DRAM] = np.where(on_host, 0.0, read)
        work[:, LookupWork.FORWARD_ROWS_L2] = indices * row
        work[:, LookupWork.FORWARD_HOST_LINK] = np.where(on_host, read, 0.0)
        work[:, LookupWork.BACKWARD_GRADIENTS_L2] = np.where(each, 0.0, indices - first) * gradient
        work[:, LookupWork.BACKWARD_ROWS_DRAM] = np.hypot(first * gradient + updates, atomics)
        work[:, LookupWork.BACKWARD_HOST_LINK] = np.where(on_host, 2.0 * whole / _BOTH_WAYS, 0.0)
        if cached.any():
            outside = np.where(state > 0, 2.0 * updated * (state + half) / _BOTH_WAYS, 0.0)
            moved = 2.0 * shards.chosen(cached).missing_rows() * (row[cached] + half) / _BOTH_WAYS
            work[cached, LookupWork.CACHE_INDICES] = indices[cached]
            work[cached, LookupWork.FORWARD_HOST_LINK] = moved
            work[cached, LookupWork.BACKWARD_HOST_LINK] = outside[cached]
        return work

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Smooth maximum of device memory and second-level cache, plus host link and cache search.

        The host link and the search for indices in a cache are not overlapped with the rest.
        """
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
        """Sort, reads of gradients, row updates and the host link, one after the other."""
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
        """Whether device memory is faster than the host link, for reads and for updates of rows.

        Then no lookup gets faster by a move to host memory. Forward, the call loses at most the
        seconds that the rows of the shard take in device memory alone, because a smooth maximum
        grows by no more than what is added to one of its parts; the rows take longer over the link.
        Backward, seconds add up.
        """
        device, link = topology.device, topology.host.device_link_bandwidth_bytes_per_s
        update = device.update_efficiency_ratio * device.hbm_bandwidth_bytes_per_s
        return device.hbm_bandwidth_bytes_per_s >= link and update >= _BOTH_WAYS * link


def _streamed(shards: LookupShards) -> FloatArray:
    """Device bytes ``[n]`` of indices, weights, offsets and outputs in a forward pass."""
    weight = np.where(shards.tables.is_weighted[shards.table], _WEIGHT_BYTES, 0.0)
    reached = np.where(shards.tables.is_pooled[shards.table], 1.0, _SEQUENCE_EFFICIENCY)
    output = shards.num_cols * shards.output_element_bytes / reached
    indices = shards.num_indices * (shards.index_bytes + weight)
    return np.asarray(indices + shards.num_bags * (_OFFSET_BYTES + output))
