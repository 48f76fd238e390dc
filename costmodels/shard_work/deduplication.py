"""Distinct indices instead of all indices: TorchRec's ``use_index_dedup`` for unpooled tables.

Before the index exchange each rank sorts the indices of its batch and keeps every row of a table
once. Distinct indices travel, distinct rows are looked up, and their vectors come back. The rank
then expands them to one vector for each index; in the backward pass it adds up the gradients of
equal indices. This module has the part that is the same for every plan. Lookups and exchanges get
fewer indices in :mod:`costmodels.shard_work.work`.

References:
    TorchRec 1.8, ``ShardedEmbeddingCollection._dedup_indices`` and ``construct_jagged_tensors``;
    FBGEMM's ``jagged_unique_indices``; RecD (Zhao et al. 2023, arXiv 2211.05239).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.dense.base import DenseTimes
from costmodels.lookup.roofline import ATOMIC_PASSES
from costmodels.topology import Topology
from costmodels.workload import Table, Workload

_PASS_BYTES: Final = 56.0
"""Device bytes per index that FBGEMM's kernels read and write beside the sort. They number the ids
of all tables, find where sorted ids change, count runs of equal ids, add up these counts, and write
for each index which distinct id it is. Counted from the kernels; not measured."""
_INVERSE_BYTES: Final = 16.0
"""An id and its place among the distinct ones, both of 8 bytes, per index."""


def exchanged_indices(table: Table, batch_size: float) -> float:
    """Indices of a rank's batch that travel: all, or the distinct ones that are expected."""
    indices = batch_size * table.pooling_factor
    if not table.deduplicates_indices:
        return indices
    return min(indices, table.distribution.expected_unique_rows(indices))


def distinct_s(workload: Workload, topology: Topology) -> float:
    """Seconds that a rank needs to find the distinct indices of its batch."""
    device = topology.device
    per_index_s = 1.0 / device.sort_rate_per_s + _PASS_BYTES / device.hbm_bandwidth_bytes_per_s
    return sum(_indices(workload, t) for t in _deduplicated(workload)) * per_index_s


def with_expansion(times: DenseTimes, workload: Workload, topology: Topology) -> DenseTimes:
    """The dense part with the kernels that expand distinct vectors, before and after its top.

    Forward, every distinct vector is read, and one vector is written for each index. Backward, the
    gradients are read and added to those of the distinct vectors by atomic additions, as in an
    update per index.
    """
    device = topology.device
    forward_bytes = backward_bytes = added_bytes = 0.0
    for table in _deduplicated(workload):
        vector = table.embedding_dim * workload.output_dtype.num_bytes
        every = vector * _indices(workload, table)
        distinct = vector * exchanged_indices(table, workload.batch_size_per_rank)
        forward_bytes += every + distinct
        backward_bytes += every + 2.0 * distinct
        added_bytes += ATOMIC_PASSES * every
    backward_s = np.hypot(
        backward_bytes / device.hbm_bandwidth_bytes_per_s,
        added_bytes / device.l2_bandwidth_bytes_per_s,
    )
    return replace(
        times,
        top_forward_s=times.top_forward_s + forward_bytes / device.hbm_bandwidth_bytes_per_s,
        top_backward_s=times.top_backward_s + float(backward_s),
    )


def kept_bytes(workload: Workload) -> float:
    """Device bytes of a rank: distinct vectors with their gradients, and two numbers per index."""
    element = workload.output_dtype.num_bytes
    return sum(
        2.0 * element * t.embedding_dim * exchanged_indices(t, workload.batch_size_per_rank)
        + _INVERSE_BYTES * _indices(workload, t)
        for t in _deduplicated(workload)
    )


def _deduplicated(workload: Workload) -> list[Table]:
    """The tables whose indices are exchanged once for each distinct row."""
    return [t for t in workload.tables if t.deduplicates_indices]


def _indices(workload: Workload, table: Table) -> float:
    """Indices of a rank's batch for a table."""
    return workload.batch_size_per_rank * table.pooling_factor
