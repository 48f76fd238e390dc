"""Collectives by gloo between ranks on CPU cores, which move all bytes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.topology import Topology

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
    """

    constants: CpuConstants

    sources: ClassVar[tuple[str, ...]] = ("gloo over the loopback device, measured here",)

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
        out, arriving = send.sum(axis=-1), receive.sum(axis=-1)
        rates_s = self.constants.collective.all_to_all_s
        return np.asarray((out + arriving) * rates_s[1] + np.abs(out - arriving) * rates_s[2])

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """``[..., R]`` seconds, with what empty, large and one-sided messages add."""
        fixed = self.fixed_s(topology, ranks=send.shape[-2], across_hosts=False)
        crossing = send.sum(axis=-1) + receive.sum(axis=-1)
        rates_s = self.constants.collective.all_to_all_s
        beyond = np.maximum(crossing - LARGE_BYTES, 0.0) * rates_s[3]
        least = np.minimum(send.sum(axis=-1), receive.sum(axis=-1))
        one_sided = np.where((least <= 0) & (crossing > 0), rates_s[5], 0.0)
        return np.asarray(self.all_to_all(send, receive, topology) + beyond + one_sided + fixed)

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

    def reduce_scatter_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """``[...]`` seconds, with what empty messages, large ones and new memory add."""
        scale = self._scale(topology, within_host=within_host)
        return _seconds(self.constants.collective.reduce_scatter_s, num_bytes, scale)

    def all_gather_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """``[...]`` seconds, with what empty messages, large ones and new memory add."""
        scale = self._scale(topology, within_host=within_host)
        return _seconds(self.constants.collective.all_gather_s, num_bytes, scale)

    def all_reduce_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """``[...]`` seconds, with what empty messages, large ones and new memory add."""
        scale = self._scale(topology, within_host=within_host)
        return _seconds(self.constants.collective.all_reduce_s, num_bytes, scale)

    def _scale(self, topology: Topology, *, within_host: bool) -> float:
        """Bytes that a rank moves of a buffer, over those with the calibrated number of ranks."""
        members = topology.local_world_size if within_host else topology.world_size
        measured = max(self.constants.world_size, 2)
        return ((members - 1) / members) / ((measured - 1) / measured)


def _seconds(rates_s: tuple[float, ...], num_bytes: FloatArray, scale: float) -> FloatArray:
    """``[...]`` seconds of a collective of one buffer.

    Args:
        rates_s: seconds per count of :func:`buffer_counts`.
        num_bytes: ``[...]`` bytes of the buffer.
        scale: factor for the number of ranks; 0 for a single rank, which takes no time.
    """
    if scale <= 0:
        return np.zeros_like(num_bytes)
    beyond = np.maximum(num_bytes - LARGE_BYTES, 0.0)
    fresh = np.where(num_bytes >= FRESH_BYTES, num_bytes, 0.0)
    grown = rates_s[1] * num_bytes + rates_s[2] * beyond + rates_s[3] * fresh
    return np.asarray(rates_s[0] + scale * grown)


def buffer_counts(num_bytes: float) -> FloatArray:
    """What a collective of one buffer is priced by.

    Returns:
        1; the bytes of the buffer; its bytes beyond the caches; and its bytes if it is large enough
        to be new memory, 0 otherwise.
    """
    fresh = num_bytes if num_bytes >= FRESH_BYTES else 0.0
    return np.array([1.0, num_bytes, max(num_bytes - LARGE_BYTES, 0.0), fresh])


def all_to_all_counts(sent: float, received: float, kept: float) -> FloatArray:
    """What an all-to-all is priced by on one rank.

    Args:
        sent: bytes that the rank sends.
        received: bytes that it receives.
        kept: bytes that it keeps for itself.

    Returns:
        1; bytes sent and received; the difference of both; the bytes beyond the caches; the bytes
        kept; and 1 if the rank only sends or only receives, 0 otherwise.
    """
    crossing = sent + received
    beyond = max(crossing - LARGE_BYTES, 0.0)
    one_sided = float(min(sent, received) <= 0 < crossing)
    return np.array([1.0, crossing, abs(sent - received), beyond, kept, one_sided])
