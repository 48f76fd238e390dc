"""Gloo between ranks on CPU cores: the core itself moves every byte, out and in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel
from costmodels.cpu.constants import CpuConstants
from costmodels.datatypes import FloatArray
from costmodels.topology import Topology

LARGE_BYTES: Final = 4.0 * 1024**2
"""Beyond this a message leaves the second-level cache between its copies."""
FRESH_BYTES: Final = 32.0 * 1024**2
"""The C library asks the operating system for buffers of this size, and gives them back."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gloo(AbstractCollectiveModel):
    """t = c0 + c1 (out + in) + c2 |out - in| for all-to-all; c0 + c1 bytes for the others.

    A rank that only sends or only receives waits for the other's empty message and pays c5. Bytes
    beyond 4 MiB no longer find room in the caches and pay c3 more. Buffers of 32 MiB and more come
    fresh from the operating system every time, page by page, and cost more per byte again.

    Not the larger of both directions as on a full-duplex link: sending and receiving both take
    processor time of the same core. What a rank keeps is a copy in memory, cheaper by far.

    Valid between ranks of one host, for the number of ranks that was calibrated.
    """

    constants: CpuConstants

    sources: ClassVar[tuple[str, ...]] = ("gloo over the loopback device, measured here",)

    @property
    def full_duplex(self) -> bool:
        """Never: the core moves the bytes of both directions."""
        return False

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """An empty all-to-all."""
        del topology, across_hosts
        return self.constants.collective.all_to_all_s[0] if ranks > 1 else 0.0

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Both directions, over all levels."""
        del topology
        out, arriving = send.sum(axis=-1), receive.sum(axis=-1)
        rates_s = self.constants.collective.all_to_all_s
        return np.asarray((out + arriving) * rates_s[1] + np.abs(out - arriving) * rates_s[2])

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Including an empty one and what large messages cost more."""
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
        """Per byte of the whole buffer, scaled from the calibrated number of ranks."""
        rate = self.constants.collective.reduce_scatter_s[1]
        return np.asarray(num_bytes * rate * self._scale(topology, within_host=within_host))

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Measured as such; gloo does better than its reduce-scatter and all-gather."""
        rate = self.constants.collective.all_reduce_s[1]
        return np.asarray(num_bytes * rate * self._scale(topology, within_host=within_host))

    def reduce_scatter_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Including what an empty one and fresh memory cost."""
        scale = self._scale(topology, within_host=within_host)
        return _seconds(self.constants.collective.reduce_scatter_s, num_bytes, scale)

    def all_gather_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Including what an empty one and fresh memory cost."""
        scale = self._scale(topology, within_host=within_host)
        return _seconds(self.constants.collective.all_gather_s, num_bytes, scale)

    def all_reduce_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Including what an empty one and fresh memory cost."""
        scale = self._scale(topology, within_host=within_host)
        return _seconds(self.constants.collective.all_reduce_s, num_bytes, scale)

    def _scale(self, topology: Topology, *, within_host: bool) -> float:
        members = topology.local_world_size if within_host else topology.world_size
        measured = max(self.constants.world_size, 2)
        return ((members - 1) / members) / ((measured - 1) / measured)


def _seconds(rates_s: tuple[float, ...], num_bytes: FloatArray, scale: float) -> FloatArray:
    if scale <= 0:
        return np.zeros_like(num_bytes)
    beyond = np.maximum(num_bytes - LARGE_BYTES, 0.0)
    fresh = np.where(num_bytes >= FRESH_BYTES, num_bytes, 0.0)
    grown = rates_s[1] * num_bytes + rates_s[2] * beyond + rates_s[3] * fresh
    return np.asarray(rates_s[0] + scale * grown)


def buffer_counts(num_bytes: float) -> FloatArray:
    """1, bytes of the whole buffer, those beyond the caches, all of them if fresh memory."""
    fresh = num_bytes if num_bytes >= FRESH_BYTES else 0.0
    return np.array([1.0, num_bytes, max(num_bytes - LARGE_BYTES, 0.0), fresh])


def all_to_all_counts(sent: float, received: float, kept: float) -> FloatArray:
    """1, bytes both ways, their difference, those beyond the caches, those kept; 1 if one-sided."""
    crossing = sent + received
    beyond = max(crossing - LARGE_BYTES, 0.0)
    one_sided = float(min(sent, received) <= 0 < crossing)
    return np.array([1.0, crossing, abs(sent - received), beyond, kept, one_sided])
