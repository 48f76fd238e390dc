"""Exchanges between CPU ranks, from measurements of each of TorchRec's own modules.

Where compute and communication share one processor, permuting indices, packing and unpacking cost
as much as the transfer. :class:`CpuExchange` prices the whole; :class:`Gloo` prices single
collectives of ranks on CPU cores, which move all bytes themselves. At the end are the stages of a
step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.estimates import Source, StageTime
from costmodels.measured.cpu_constants import CpuConstants, ExchangeConstants
from costmodels.measured.curves import Collective
from costmodels.sharding import BY_ROWS, ShardingType
from costmodels.topology import Topology

_LENGTH_BYTES = 4.0
"""Bytes of the length of a bag."""
_SHUFFLED = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE)
"""Sharding types that are priced as column-wise."""

CACHED_BYTES: Final = 8e6
"""Bytes of vectors that stay in the caches of a core between two copies. Bytes beyond take
longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one sharding type exchanges, ``[..., R]`` each.

    ``arriving_bytes`` of indices and lengths from each source, ``leaving_bytes`` of pooled vectors
    to each destination, and the number of shards on the rank.
    """

    arriving_bytes: FloatArray
    leaving_bytes: FloatArray
    num_shards: FloatArray

    def index_counts(self, batch_size_per_rank: float) -> FloatArray:
        """What the exchange of indices is priced by on each rank, ``[..., R, 5]``.

        They are 1; bytes of the lengths of the shards of all ranks, and of this rank; and bytes of
        indices and lengths that arrive at all ranks, and at this rank, from each source.
        """
        lengths = self.num_shards * (_LENGTH_BYTES * batch_size_per_rank)
        each = (lengths, self.arriving_bytes)
        parts = [part for x in each for part in (x.sum(axis=-1, keepdims=True), x)]
        return np.stack(np.broadcast_arrays(np.array(1.0), *parts), axis=-1)

    @property
    def vector_counts(self) -> FloatArray:
        """What the exchange of vectors is priced by on each rank, ``[..., R, 4]``.

        They are 1; bytes of the vectors that the rank has looked up for all ranks; bytes of the
        vectors that it joins; and those bytes of both that the caches cannot hold.
        """
        leaving = self.leaving_bytes
        produced, joined = leaving * leaving.shape[-1], leaving.sum(axis=-1, keepdims=True)
        beyond = np.maximum(produced + joined - CACHED_BYTES, 0.0)
        return np.stack(np.broadcast_arrays(np.array(1.0), produced, joined, beyond), axis=-1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuExchange:
    """Seconds that are linear in bytes, with separate rates for bytes of one rank and of all ranks.

    Let a, l and n be the arriving bytes, the leaving bytes and the number of shards of a rank; A, L
    and N their sums over ranks; B the local batch size; and W the number of ranks. With constants c
    of the machine and of the exchange, a rank takes:

    - for indices c0 + c1 N 4 B + c2 n 4 B + c3 A + c4 a;
    - for pooled vectors c0 + c1 W l + c2 L + c3 max(0, W l + L - 8 MB), as the mean of the exchange
      of vectors and that of their gradients. The last term counts bytes that the caches cannot
      hold; it is not part of the growing part;
    - for gradients of replicated tables c0 + c1 times their bytes.

    Both directions count, because gloo sends and receives with the rank's own core. Bytes of all
    ranks count, because each rank permutes all of its indices and joins all of its vectors,
    wherever the tables are.

    Valid for the number of ranks of the calibration; other numbers are extrapolated.

    Growing parts are convex, homogeneous and non-decreasing in the traffic.

    Args:
        constants: the constants of the machine.
        factor_ratio: a factor on all seconds, from ``shardplan fit``.

    Sources:
        microbenchmarks of TorchRec's dist modules on this machine
    """

    constants: CpuConstants
    factor_ratio: float = 1.0

    def seconds(
        self, kind: ShardingType, traffic: Traffic, batch_size_per_rank: float, *, whole: bool
    ) -> tuple[FloatArray, FloatArray]:
        """``[..., W]`` seconds of the exchanges of vectors, and of that of indices.

        The former are the mean of the exchanges of vectors and of their gradients. The latter are
        those to permute, bucket, pack, send and unpack indices and lengths.

        Args:
            kind: the sharding type.
            traffic: what ranks exchange.
            batch_size_per_rank: samples.
            whole: whether with what is fixed and what bytes beyond the caches take longer.
        """
        counts, output_s = traffic.vector_counts, self._output_s(kind)
        indices = traffic.index_counts(batch_size_per_rank)
        vectors_s = self._seconds(counts[..., 1:3], output_s[1:3])
        indices_s = self._seconds(indices[..., 1:], self._of(kind).input_s[1:])
        if whole:
            fixed_s = self.fixed_s(kind)
            vectors_s = vectors_s + self._seconds(counts[..., 3:], output_s[3:]) + fixed_s[1]
            indices_s = indices_s + fixed_s[0]
        return vectors_s, indices_s

    def fixed_s(self, sharding_type: ShardingType) -> tuple[float, float]:
        """Seconds without bytes of the exchanges of indices and of vectors.

        They are those of three collectives of a few bytes, and of the Python code around them.
        """
        input_s, output_s = self._of(sharding_type).input_s[0], self._output_s(sharding_type)[0]
        return input_s * self.factor_ratio, float(output_s) * self.factor_ratio

    @property
    def once_s(self) -> float:
        """Seconds that the exchanges of indices, vectors and gradients take once in a step."""
        return sum(self.constants.exchange_s) * self.factor_ratio

    def gradient_growth(self, num_bytes: FloatArray) -> FloatArray:
        """``[...]`` seconds of copies into and out of buckets, all-reduce and optimizer."""
        return np.asarray(num_bytes * self.constants.gradient.per_byte_s * self.factor_ratio)

    @property
    def gradient_fixed_s(self) -> float:
        """Seconds of a DistributedDataParallel module and of passing on the replicated vectors."""
        return self.constants.gradient.fixed_s * self.factor_ratio

    def _seconds(self, counts: FloatArray, each_s: FloatArray | Sequence[float]) -> FloatArray:
        """Seconds ``[...]`` of counts ``[..., n]`` with seconds for each of them."""
        return np.asarray((counts * each_s).sum(axis=-1) * self.factor_ratio)

    def _output_s(self, sharding_type: ShardingType) -> FloatArray:
        """The mean of the constants of vectors and of their gradients."""
        known = self._of(sharding_type)
        return np.asarray(0.5 * (np.array(known.output_s) + np.array(known.gradient_s)))

    def _of(self, sharding_type: ShardingType) -> ExchangeConstants:
        """The constants by which a sharding type is priced."""
        if sharding_type in BY_ROWS:
            return self.constants.row_wise
        if sharding_type in _SHUFFLED:
            return self.constants.column_wise
        return self.constants.table_wise


LARGE_BYTES: Final = 4.0 * 1024**2
"""Bytes beyond this no longer stay in the second-level cache between the copies of a message, so
that each of them takes longer."""
FRESH_BYTES: Final = 32.0 * 1024**2
"""Buffers of at least this size come new from the operating system each time, page by page, because
the C library gives them back to it after use."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gloo(AbstractCollectiveModel):
    """Seconds of a rank, linear in the bytes that it moves, with constants c of the machine.

    An all-to-all takes c0 + c1 (out + in) + c2 |out - in| + c3 beyond. Here ``out`` and ``in`` are
    the bytes that the rank sends and receives, and ``beyond`` is what out + in exceeds 4 MiB by. A
    rank that only sends or only receives takes c5 longer, because it waits for an empty message.
    (c4 is per byte that a rank keeps for itself. This is a copy in memory, which is far cheaper and
    not counted here.)

    All other collectives of a buffer of S bytes take c0 + c1 S + c2 (S - 4 MiB, at least 0), and c3
    S more from 32 MiB on, where buffers are new memory. The parts with S are scaled by (n - 1) / n
    for n ranks, over the same for the calibrated number of ranks.

    Both directions count, instead of the longer of them as on a full-duplex link, because the same
    core sends and receives.

    Valid between ranks of one host, for the number of ranks that was calibrated.

    Args:
        constants: the constants of the machine.

    Sources:
        gloo over the loopback device, measured here
    """

    constants: CpuConstants

    @property
    def full_duplex(self) -> bool:
        """False: one core moves the bytes of both directions."""
        return False

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Seconds of an all-to-all without bytes."""
        del topology, across_hosts
        return self.constants.collective.all_to_all_s[0] if ranks > 1 else 0.0

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """``[..., R]`` seconds that grow with the bytes of both directions, over all levels."""
        del topology
        counts = all_to_all_counts(send.sum(axis=-1), receive.sum(axis=-1))
        return np.asarray(counts[..., 1:3] @ np.array(self.constants.collective.all_to_all_s[1:3]))

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """``[..., R]`` seconds, with what empty, large and one-sided messages add."""
        fixed = self.fixed_s(topology, ranks=send.shape[-2], across_hosts=False)
        counts = all_to_all_counts(send.sum(axis=-1), receive.sum(axis=-1))
        return np.asarray(
            fixed + counts[..., 1:] @ np.array(self.constants.collective.all_to_all_s[1:])
        )

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """``[...]`` seconds per byte of the whole buffer, scaled to the number of ranks."""
        rate = self.constants.collective.reduce_scatter_s[1]
        return np.asarray(num_bytes * rate * self._scale(topology, within_host=within_host))

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """``[...]`` seconds, as measured: less than those of reduce-scatter and all-gather."""
        rate = self.constants.collective.all_reduce_s[1]
        return np.asarray(num_bytes * rate * self._scale(topology, within_host=within_host))

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """``[...]`` seconds, with what empty messages, large ones and new memory add.

        A single rank takes no time.
        """
        scale = self._scale(topology, within_host=within_host)
        if scale <= 0:
            return np.zeros_like(num_bytes)
        fixed, *rates_s = getattr(self.constants.collective, f"{kind}_s")
        return np.asarray(fixed + scale * (buffer_counts(num_bytes)[..., 1:] @ np.array(rates_s)))

    def _scale(self, topology: Topology, *, within_host: bool) -> float:
        """Bytes that a rank moves of a buffer, over those with the calibrated number of ranks."""
        members = topology.local_world_size if within_host else topology.world_size
        measured = max(self.constants.world_size, 2)
        return ((members - 1) / members) / ((measured - 1) / measured)


def buffer_counts(num_bytes: FloatArray | float) -> FloatArray:
    """What collectives of one buffer each are priced by, ``[..., 4]``.

    Returns:
        1; the bytes of the buffer; its bytes beyond the caches; and its bytes if it is large enough
        to be new memory, 0 otherwise.
    """
    size = np.asarray(num_bytes, dtype=float)
    fresh = np.where(size >= FRESH_BYTES, size, 0.0)
    return np.stack([np.ones_like(size), size, np.maximum(size - LARGE_BYTES, 0.0), fresh], axis=-1)


def all_to_all_counts(
    sent: FloatArray | float, received: FloatArray | float, kept: float = 0.0
) -> FloatArray:
    """What all-to-alls are priced by on single ranks, ``[..., 6]``.

    Args:
        sent: ``[...]`` bytes that the rank sends.
        received: ``[...]`` bytes that it receives.
        kept: bytes that it keeps for itself.

    Returns:
        1; bytes sent and received; the difference of both; the bytes beyond the caches; the bytes
        kept; and 1 if the rank only sends or only receives, 0 otherwise.
    """
    crossing = np.asarray(sent, dtype=float) + received
    beyond, one = np.maximum(crossing - LARGE_BYTES, 0.0), np.ones_like(crossing)
    one_sided = ((np.minimum(sent, received) <= 0) & (crossing > 0)).astype(float)
    found = [one, crossing, np.abs(np.subtract(sent, received)), beyond, one * kept, one_sided]
    return np.stack(found, axis=-1)


# ------------------------------------------------------------------ stages of a step


_UNUSED: Final = (
    *("device.l2_", "device.flops", "device.row_half", "device.update_efficiency"),
    *("device.sort_rate", "host.ddr_bandwidth", "host.device_link_bandwidth", "links."),
)
"""How their names begin. Launches, memories and the rate of device memory are used: the last one by
codecs of exchanges."""


def unused_remark(topology: Topology) -> str | None:
    """A remark on numbers that the user gave and that change nothing; None if there are none.

    Args:
        topology: a system whose ranks are priced by a calibration.
    """
    given = (p.name for p in topology.provenance if p.source is Source.USER)
    names = [name for name in given if name.startswith(_UNUSED)]
    if not names:
        return None
    return (
        f"calibrated cores are priced by their calibration, so that {', '.join(names)} of the "
        "system change nothing; correct times with 'shardplan fit', or calibrate again"
    )


STAGES: Final = (
    *("dense_forward", "indices", "lookup_forward", "vectors"),
    *("dense_backward", "gradients", "lookup_backward", "update"),
)
"""``indices``, ``vectors`` and ``gradients`` (those of vectors) are exchanges. ``dense_backward``
is the backward pass of the top MLP. ``update`` is the backward pass of the bottom MLP, the
reduction of the gradients of what every rank holds, and the optimizer."""

_STARTS: Final = (
    ("input", "indices"),
    ("lookup forward", "lookup_forward"),
    ("output", "vectors"),
    ("gradient all-reduce", "update"),
    ("gradient", "gradients"),
    ("lookup backward", "lookup_backward"),
    ("last gradient", "update"),
    ("dense optimizer", "update"),
)
"""How the names of predicted steps begin, and the stage of such steps; the first that fits counts.
The names of dense layers differ from model to model: all steps that nothing else fits are their
forward pass."""


def predicted_stages(steps: Sequence[StageTime], dense_names: tuple[str, str]) -> tuple[float, ...]:
    """Seconds of each stage on its slowest rank, in the order of ``STAGES``.

    Args:
        steps: the predicted steps of an iteration.
        dense_names: names of the dense layers before and after the tables
            (:func:`costmodels.dense.base.dense_names`).
    """
    before, after = dense_names
    starts = (*_STARTS, (f"{before} backward", "update"), (f"{after} backward", "dense_backward"))
    found = dict.fromkeys(STAGES, 0.0)
    for step in steps:
        stage = next((s for start, s in starts if step.name.startswith(start)), STAGES[0])
        found[stage] += max(step.duration_s)
    return tuple(found[stage] for stage in STAGES)
