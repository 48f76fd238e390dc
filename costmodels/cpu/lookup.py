"""The time of lookups on a CPU core, from measurements on the same machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from costmodels.cpu.features import Access, Accesses, many_features
from costmodels.datatypes import FloatArray
from costmodels.errors import require
from costmodels.lookup.base import (
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    LookupShard,
    LookupShards,
    LookupWork,
)
from costmodels.measured.cpu_constants import CpuConstants, CpuKernel, Residual
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate

_AT_ONCE: Final = 64
"""Shards that are priced in one call. Each has some hundred frequency bins, so that the arrays of
so many shards stay in the caches."""
TOGETHER: Final = ("table", "bags", "elements", "indices")
"""The counts by which a table in a step takes longer than alone (:class:`GroupConstants`)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLookup(AbstractLookupModel):
    """Seconds of a shard: counts times calibrated seconds per count, times a learned factor.

    A core looks up the tables of a call one after the other, so that their times add up. The counts
    (:mod:`costmodels.cpu.features`) are those of FBGEMM's CPU kernels. Those of the forward lookup
    are mostly cache misses (Che's approximation for each level of caches); those of the backward
    lookup are mostly distinct rows and passes of the index sort. The factor is a kernel regression
    on the shape of the shard (:data:`costmodels.measured.cpu_constants.SHAPE`). It is limited to a
    range, so
    that it can correct the counts but not replace them.

    The interface wants bytes, so that the work columns hold these seconds times the bandwidth of
    device memory. The cost of a call itself is the device's ``kernel_latency_s``.

    Args:
        constants: the constants of the machine.
    """

    constants: CpuConstants

    sources: ClassVar[tuple[str, ...]] = (
        "FBGEMM CPU lookups, measured on this machine",
        "Che, Tung, Wang 2002: characteristic time of an LRU cache",
    )

    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """``[NUM_LOOKUP_WORK]`` seconds of the shard as bytes, forward and backward."""
        return np.asarray(self.shards_work(LookupShards.of(shard), topology)[0])

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """``[n, NUM_LOOKUP_WORK]``: as :meth:`shard_work`, for many shards.

        Raises:
            InvalidValueError: tables use an update or a deduplication that CPU kernels lack.
        """
        require(
            all(t.row_update is RowUpdate.DEDUPLICATED for t in shards.tables.tables),
            "row_update is not deduplicated: on CPU cores FBGEMM always sorts the indices and "
            "updates each row once; remove row_update from the workload",
        )
        require(
            not shards.tables.deduplicates_indices.any(),
            "deduplicate_indices needs GPUs: FBGEMM has no kernel on CPU cores that finds distinct "
            "indices, so that TorchRec stops there; remove deduplicate_indices from the workload",
        )
        work = np.zeros((len(shards), NUM_LOOKUP_WORK))
        dense = shards.runs(ComputeKernel.DENSE)
        pooled = dense | shards.tables.is_pooled[shards.table]
        chosen = {
            CpuKernel.FUSED: ~dense & pooled,
            CpuKernel.DENSE: dense,
            CpuKernel.SEQUENCE: ~pooled,
        }
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        for kernel, of_kernel in chosen.items():
            used = np.flatnonzero(shards.is_used & of_kernel)
            for part in np.array_split(used, -(-len(used) // _AT_ONCE) or 1):
                if not len(part):
                    continue
                seen = Accesses(_accesses(shards.chosen(part)))
                forward_s, backward_s = self.seconds(seen, kernel)
                work[part, LookupWork.INDICES] = seen.num_indices
                work[part, LookupWork.FORWARD_ROWS_DRAM] = forward_s * bandwidth
                work[part, LookupWork.BACKWARD_ROWS_DRAM] = backward_s * bandwidth
        return work

    def shard_seconds(self, access: Access, kernel: CpuKernel) -> tuple[float, float]:
        """Forward and backward seconds of one shard, without the cost of its call."""
        forward, backward = self.seconds(Accesses((access,)), kernel)
        return float(forward[0]), float(backward[0])

    def seconds(self, seen: Accesses, kernel: CpuKernel) -> tuple[FloatArray, FloatArray]:
        """Forward and backward seconds, ``[n]`` each, of shards of one kernel; without calls."""
        machine = self.constants
        counts = many_features(
            seen, l2_bytes=machine.l2_bytes, l3_bytes=machine.l3_bytes, kernel=kernel
        )
        constants = machine.lookups(kernel)
        forward = (counts.forward[:, 1:] * np.array(constants.forward_s[1:])).sum(axis=-1)
        backward = (counts.backward[:, 1:] * np.array(constants.backward_s[1:])).sum(axis=-1)
        forward *= factor(constants.forward_residual, counts.shape)
        backward *= factor(constants.backward_residual, counts.shape)
        group = machine.replicated_group if kernel is CpuKernel.DENSE else machine.group
        others = _together(seen)
        return (
            _joined(forward, others, group.forward_s),
            _joined(backward, others, group.backward_s),
        )

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """``[...]`` seconds of forward lookups from work ``[..., NUM_LOOKUP_WORK]``."""
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        return np.asarray(work[..., LookupWork.FORWARD_ROWS_DRAM] / bandwidth)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """``[...]`` seconds of backward lookups from work ``[..., NUM_LOOKUP_WORK]``."""
        bandwidth = topology.device.hbm_bandwidth_bytes_per_s
        return np.asarray(work[..., LookupWork.BACKWARD_ROWS_DRAM] / bandwidth)

    def prefers_device(self, topology: Topology) -> bool:
        """Always: a CPU has one kind of memory, so that device memory is never slower."""
        del topology
        return True


def together(access: Access) -> tuple[float, ...]:
    """The counts of a shard in the order of :data:`TOGETHER`."""
    bags = access.num_bags
    return (1.0, bags, bags * access.num_cols, access.num_indices)


def _together(seen: Accesses) -> FloatArray:
    """``[n, 4]`` counts of many shards, as :func:`together`."""
    bags = seen.num_bags
    return np.stack([np.ones(len(bags)), bags, bags * seen.num_cols, seen.num_indices], axis=-1)


def _joined(alone_s: FloatArray, others: FloatArray, group_s: tuple[float, ...]) -> FloatArray:
    """``[n]`` seconds of shards in a step.

    Args:
        alone_s: ``[n]`` seconds of each shard alone.
        others: ``[n, 4]`` counts in the order of :data:`TOGETHER`.
        group_s: the factor on the seconds alone, and seconds per count.
    """
    return np.asarray(alone_s * group_s[0] + (others * np.array(group_s[1:])).sum(axis=-1))


def factor(residual: Residual, shape: FloatArray) -> FloatArray:
    """Learned factors ``[...]`` for shapes ``[..., len(SHAPE)]``; 1 far from measured points."""
    if not residual.points_ratio:
        return np.ones(shape.shape[:-1])
    points = np.array(residual.points_ratio)
    away = (points - shape[..., None, :]) / np.array(residual.lengths_ratio)
    closeness = np.exp(-0.5 * (away * away).sum(axis=-1))
    value = (closeness * np.array(residual.weights_ratio)).sum(axis=-1)
    return np.asarray(np.exp(np.clip(value, -residual.limit_ratio, residual.limit_ratio)))


def _accesses(shards: LookupShards) -> list[Access]:
    """How each of the shards is accessed."""
    laws, effective = shards.laws, shards.laws.effective_draws(shards.law, shards.num_table_indices)
    bins = {at: laws.laws[at].frequency_bins()[1] for at in set(shards.law.tolist())}
    every = [shards.shard(i) for i in range(len(shards))]
    return [
        Access(
            rows=shard.table.distribution.range_rows(shard.row_offset, shard.num_rows),
            probability=bins[at],
            draws=draws,
            num_indices=shard.num_indices,
            num_bags=shard.num_bags,
            num_cols=shard.num_cols,
            num_rows=shard.num_rows,
        )
        for shard, at, draws in zip(every, shards.law.tolist(), effective.tolist(), strict=True)
    ]
