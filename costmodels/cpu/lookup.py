"""Lookup time on a CPU core, from this machine's own measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from costmodels.cpu.constants import CpuConstants, Residual
from costmodels.cpu.features import Access, features
from costmodels.lookup.base import (
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    FloatArray,
    LookupShard,
    LookupWork,
)
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology

TOGETHER: Final = ("table", "bags", "elements", "indices")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLookup(AbstractLookupModel):
    """Counts times calibrated seconds per count, times a learned factor.

    A core takes the tables of a call one after the other, so here times add up over tables. The
    counts (:mod:`costmodels.cpu.features`) are those of FBGEMM's CPU kernels: forward
    follows cache misses (Che's approximation per cache level), backward follows distinct rows and
    the passes of the index sort. The factor is a kernel regression on indices, distinct rows,
    columns, rows, bags, reuse, repeats and cache misses, cut to a given range so that it can only
    correct.

    The work columns hold the seconds as effective bytes of device memory. The cost of the call
    itself is the device's ``kernel_latency_s``.
    """

    constants: CpuConstants

    sources: ClassVar[tuple[str, ...]] = (
        "FBGEMM CPU lookups, measured on this machine",
        "Che, Tung, Wang 2002: characteristic time of an LRU cache",
    )

    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """Seconds of the shard, forward and backward, as effective bytes."""
        work = np.zeros(NUM_LOOKUP_WORK)
        if shard.num_rows <= 0 or shard.num_indices <= 0:
            return work
        forward_s, backward_s = self.shard_seconds(
            _access(shard), replicated=shard.kernel is ComputeKernel.DENSE
        )
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        work[LookupWork.INDICES] = shard.num_indices
        work[LookupWork.FORWARD_ROWS_DRAM] = forward_s * bandwidth
        work[LookupWork.BACKWARD_ROWS_DRAM] = backward_s * bandwidth
        return work

    def shard_seconds(self, access: Access, *, replicated: bool) -> tuple[float, float]:
        """(forward, backward) seconds of one shard beyond the cost of its call."""
        machine = self.constants
        counts = features(
            access, l2_bytes=machine.l2_bytes, l3_bytes=machine.l3_bytes, dense=replicated
        )
        constants = machine.replicated if replicated else machine.fused
        forward = float(counts.forward[1:] @ np.array(constants.forward_s[1:]))
        backward = float(counts.backward[1:] @ np.array(constants.backward_s[1:]))
        forward *= factor(constants.forward_residual, counts.shape)
        backward *= factor(constants.backward_residual, counts.shape)
        group = machine.replicated_group if replicated else machine.group
        return (
            float(np.dot(group.forward_s, (forward, *together(access)))),
            float(np.dot(group.backward_s, (backward, *together(access)))),
        )

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Effective bytes over bandwidth."""
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        return np.asarray(work[..., LookupWork.FORWARD_ROWS_DRAM] / bandwidth)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Effective bytes over bandwidth."""
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        return np.asarray(work[..., LookupWork.BACKWARD_ROWS_DRAM] / bandwidth)

    def prefers_device(self, topology: Topology) -> bool:
        """All memory of a CPU is the same, so it is never slower there."""
        del topology
        return True


def together(access: Access) -> tuple[float, ...]:
    """Counts in the order of TOGETHER: what a table costs beyond its time alone."""
    bags = access.num_bags
    return (1.0, bags, bags * access.num_cols, access.num_indices)


def factor(residual: Residual, shape: FloatArray) -> float:
    """The learned factor at a shape; 1 far from every measured point."""
    if not residual.points_ratio:
        return 1.0
    away = (np.array(residual.points_ratio) - shape) / np.array(residual.lengths_ratio)
    closeness = np.exp(-0.5 * (away * away).sum(axis=1))
    value = float(closeness @ np.array(residual.weights_ratio))
    return math.exp(min(max(value, -residual.limit_ratio), residual.limit_ratio))


def _access(shard: LookupShard) -> Access:
    law = shard.table.distribution
    _, probability = law.frequency_bins()
    return Access(
        rows=law.range_rows(shard.row_offset, shard.num_rows),
        probability=probability,
        draws=law.effective_draws(shard.num_table_indices),
        num_indices=shard.num_indices,
        num_bags=shard.num_bags,
        num_cols=shard.num_cols,
        num_rows=shard.num_rows,
    )
