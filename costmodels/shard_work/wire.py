"""What travels: distinct indices instead of all, and compressed vectors.

Distinct indices are TorchRec's ``use_index_dedup`` for unpooled tables. Before the index exchange
each rank sorts the indices of its batch and keeps every row of a table once. Distinct indices
travel, distinct rows are looked up, and their vectors come back. The rank then expands them to one
vector for each index; in the backward pass it adds up the gradients of equal indices. The part that
is the same for every plan is here. Lookups and exchanges get fewer indices in
:mod:`costmodels.shard_work.work`.

References:
    TorchRec 1.8, ``ShardedEmbeddingCollection._dedup_indices`` and ``construct_jagged_tensors``;
    FBGEMM's ``jagged_unique_indices``; RecD (Zhao et al. 2023, arXiv 2211.05239).
"""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import DenseTimes
from costmodels.lookup.roofline import ATOMIC_PASSES
from costmodels.sharding import BY_HOSTS, BY_ROWS, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Pooling, Table, Workload

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


EXCHANGING_TYPES: Final = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.GRID_SHARD,
    ShardingType.ROW_WISE,
)
"""Sharding types that exchange vectors; TorchRec runs one set of collectives for each type.

The order is also that of the collectives on a stream. Types that give the same shards stand beside
each other, so that the order is the same whichever of their names a plan uses: the first five types
on hosts of one rank, the last three on a single host."""

FORWARD, BACKWARD = range(2)
"""Positions of the directions of an exchange: vectors, and their gradients."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wire:
    """Bytes of exchanges and codecs, by sharding type ("family"), direction and table.

    Attributes:
        element_bytes: ``[families, 2, 2, T]`` bytes per element between ranks. The second axis is
            the first exchange of a type and (for types by hosts) its second one; the third axis is
            the direction.
        source_bytes: ``[families, 2, T]`` device bytes that the codecs of a rank read and write for
            each element that one of its shards sends to one rank, in each direction.
        received_bytes: ``[families, 2]`` device bytes that the codecs of a rank read and write for
            all vectors that it receives in an iteration, in each direction, if all tables were of
            that type.
    """

    element_bytes: FloatArray
    source_bytes: FloatArray
    received_bytes: FloatArray

    @classmethod
    def of(cls, workload: Workload, topology: Topology) -> Self | None:
        """The bytes of a workload's tables; None where no exchange is compressed."""
        tables, size = workload.tables, float(workload.output_dtype.num_bytes)
        if not any(t.codecs.compresses for t in tables):
            return None
        shape = (len(EXCHANGING_TYPES), 2, 2, len(tables))
        wire = np.full(shape, size)
        encode, decode = np.zeros(shape), np.zeros(shape)
        for f, family in enumerate(EXCHANGING_TYPES):
            for step in range(2):
                sums = family in BY_ROWS and step == 0
                for i, table in enumerate(tables):
                    pooled = table.pooling is not Pooling.NONE
                    codecs = table.codecs.exchange(sums=sums, is_pooled=pooled)
                    for way, codec in ((FORWARD, codecs.forward), (BACKWARD, codecs.backward)):
                        if codec.compresses:
                            wire[f, step, way, i] = codec.wire_bytes
                        encode[f, step, way, i] = codec.encode_bytes(size)
                        decode[f, step, way, i] = codec.decode_bytes(size)
        if topology.world_size == 1:
            encode, decode = np.zeros(shape), np.zeros(shape)
        batch = workload.batch_size_per_rank
        arriving = [
            exchanged_indices(t, batch) if t.pooling is Pooling.NONE else len(t.features) * batch
            for t in tables
        ]
        vectors = np.array([t.embedding_dim for t in tables]) * arriving
        return cls(
            element_bytes=wire,
            source_bytes=_sources(encode, decode, topology),
            received_bytes=_received(encode, decode, topology) @ vectors,
        )

    @property
    def least_shares(self) -> FloatArray:
        """``[families, 2, 2]`` bytes of a direction over the mean of both, the least of all tables.

        The axes are those of ``element_bytes``.
        """
        mean = self.element_bytes.mean(axis=2, keepdims=True)
        return np.asarray((self.element_bytes / mean).min(axis=-1))


def _sources(encode: FloatArray, decode: FloatArray, topology: Topology) -> FloatArray:
    """Codec bytes of a rank per element that it sends to each rank, ``[families, 2, T]``.

    A rank encodes what it sends to all others. For types by hosts it also decodes the sums of its
    host, and encodes them again for the other hosts. In the backward pass encoding and decoding
    change places.
    """
    out = np.stack([encode[:, 0, FORWARD], decode[:, 0, BACKWARD]], axis=1) * topology.world_size
    if topology.num_hosts > 1:
        inside = [EXCHANGING_TYPES.index(f) for f in BY_HOSTS]
        adds = float(topology.local_world_size > 1)
        again = (
            encode[:, 1, FORWARD] + adds * decode[:, 0, FORWARD],
            decode[:, 1, BACKWARD] + adds * encode[:, 0, BACKWARD],
        )
        out[inside] *= adds
        out[inside] += np.stack(again, axis=1)[inside] * topology.num_hosts
    return out


def _received(encode: FloatArray, decode: FloatArray, topology: Topology) -> FloatArray:
    """Codec bytes per element of the vectors that arrive by the last exchange of each type."""
    ends = np.stack([decode[:, :, FORWARD], encode[:, :, BACKWARD]], axis=2)
    last = [int(f in BY_HOSTS and topology.num_hosts > 1) for f in EXCHANGING_TYPES]
    return np.asarray(ends[np.arange(len(EXCHANGING_TYPES)), last])
