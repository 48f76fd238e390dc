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

_OFFSET_BYTES = 8.0
_GRADIENT_ELEMENT_BYTES = 4.0
_DENSE_PASSES = 6.0


@final
@dataclass(frozen=True, slots=True)
class Roofline(AbstractLookupModel):
    """DRAM and L2 roofline over expected misses and unique rows.

    With N indices, U distinct rows, M misses of an LRU second-level cache (Che's approximation),
    row bytes R, and row efficiency R / (R + h) where h is the device's ``row_half_bytes``:

    - forward: t = ((D / b_dram)^4 + (N R / b_l2)^4)^(1/4) + host link bytes / b_link, where
      D = M (R + h) + index bytes + output bytes;
    - backward with fused update: t = N / sort rate + N R_grad / b_l2
      + 2 U (R + s + h) / (rho b_dram) + host link bytes / b_link, with s optimizer bytes per row
      and rho the device's ``update_efficiency_ratio``.

    ``dense`` (replicated tables) instead writes, reduces and applies a gradient of the whole table:
    six passes over it. ``fused_uvm`` moves rows over the host link; ``fused_uvm_caching`` moves the
    distinct rows of a batch that the cache does not hold, in and back out.

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
        state = shard.optimizer.state_bytes_per_row(shard.num_cols)
        weight = 4.0 if shard.table.is_weighted else 0.0
        work[LookupWork.INDICES] = shard.num_indices
        work[LookupWork.STREAM_DRAM] = shard.num_indices * (
            shard.index_bytes + weight
        ) + shard.num_bags * (_OFFSET_BYTES + shard.num_cols * shard.output_element_bytes)
        work[LookupWork.BACKWARD_GRADIENTS_L2] = (
            shard.num_indices * shard.num_cols * _GRADIENT_ELEMENT_BYTES
        )
        touched = row + state + device.row_half_bytes
        self._add_rows(work, shard, topology, unique, misses, row, touched)
        return work

    @staticmethod
    def _add_rows(
        work: FloatArray,
        shard: LookupShard,
        topology: Topology,
        unique: float,
        misses: float,
        row: float,
        touched: float,
    ) -> None:
        device = topology.device
        lookups = shard.num_indices * row
        read = misses * (row + device.row_half_bytes)
        update = 2.0 * unique * touched / device.update_efficiency_ratio
        work[LookupWork.FORWARD_ROWS_L2] = lookups
        if shard.kernel is ComputeKernel.FUSED_UVM:
            work[LookupWork.FORWARD_HOST_LINK] = read
            work[LookupWork.BACKWARD_HOST_LINK] = 2.0 * unique * touched
            return
        work[LookupWork.FORWARD_ROWS_DRAM] = read
        if shard.kernel is ComputeKernel.DENSE:
            passes = _DENSE_PASSES * shard.num_rows * shard.num_cols * _GRADIENT_ELEMENT_BYTES
            work[LookupWork.BACKWARD_ROWS_DRAM] = passes + update / 2
            return
        work[LookupWork.BACKWARD_ROWS_DRAM] = update
        if shard.kernel is ComputeKernel.FUSED_UVM_CACHING:
            table = shard.table
            cached = (shard.cache_load_factor_ratio or 0.0) * table.num_embeddings
            share = shard.num_rows / table.num_embeddings
            missing = share * table.distribution.expected_unique_misses(
                shard.num_table_indices, cached
            )
            moved = missing * touched
            work[LookupWork.FORWARD_HOST_LINK] = 2.0 * moved
            work[LookupWork.BACKWARD_ROWS_DRAM] += 2.0 * moved

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Smooth maximum of DRAM and L2 time, plus the host link."""
        device = topology.device
        dram = work[..., LookupWork.STREAM_DRAM] + work[..., LookupWork.FORWARD_ROWS_DRAM]
        dram_s = dram / device.hbm_bandwidth_bytes_per_s
        cached_s = work[..., LookupWork.FORWARD_ROWS_L2] / device.l2_bandwidth_bytes_per_s
        both_s = np.sqrt(np.hypot(dram_s * dram_s, cached_s * cached_s))
        link = work[..., LookupWork.FORWARD_HOST_LINK]
        return np.asarray(both_s + link / topology.host.device_link_bandwidth_bytes_per_s)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Sort, gradient reads, row updates and the host link, one after the other."""
        device = topology.device
        return np.asarray(
            work[..., LookupWork.INDICES] / device.sort_rate_per_s
            + work[..., LookupWork.BACKWARD_GRADIENTS_L2] / device.l2_bandwidth_bytes_per_s
            + work[..., LookupWork.BACKWARD_ROWS_DRAM] / device.hbm_bandwidth_bytes_per_s
            + work[..., LookupWork.BACKWARD_HOST_LINK]
            / topology.host.device_link_bandwidth_bytes_per_s
        )
