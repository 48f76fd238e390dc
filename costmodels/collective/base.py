"""The interface of a collective model.

Bytes are what crosses links: what a rank keeps for itself is not counted. They are split by link
level, last axis: ``HOST`` (same host), ``DOMAIN`` (same scale-up domain, other host), ``NETWORK``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from costmodels.topology import Topology

FloatArray = NDArray[np.float64]


class Level(IntEnum):
    """Link levels, innermost first."""

    HOST = 0
    DOMAIN = 1
    NETWORK = 2


NUM_LEVELS = len(Level)


class AbstractCollectiveModel(ABC):
    """Predicts how long a rank is busy in a collective once every member has arrived.

    The collective ends when its slowest member does. ``fixed_s`` is the size-independent part;
    the other methods give the part that grows with bytes: convex, homogeneous, non-decreasing.
    """

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Seconds an empty collective takes; 0 for a single rank."""

    @abstractmethod
    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds per rank for bytes sent and received per level, ``[..., R, NUM_LEVELS]`` each."""

    @abstractmethod
    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds for an input of ``num_bytes`` on each member (all-gather: its output)."""

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Reduce-scatter, then all-gather, of a buffer of ``num_bytes``."""
        return 2.0 * self.reduce_scatter(num_bytes, topology, within_host=within_host)


def spread_by_level(
    per_peer: FloatArray, *, local: int, domain: int
) -> tuple[FloatArray, FloatArray]:
    """Bytes by level when rank r exchanges ``per_peer[r]`` with every other rank.

    Args:
        per_peer: ``[..., R]`` bytes between rank r and each other rank.
        local: ranks per host.
        domain: ranks per scale-up domain.

    Returns:
        ``(own, others)``, each ``[..., R, NUM_LEVELS]``: ``per_peer[r]`` times the peers of r, and
        the sum of the peers' ``per_peer``. For bytes sent the first is what r sends and the second
        what it receives; for bytes received the other way round.
    """
    world = per_peer.shape[-1]
    domain = min(domain, world)
    in_domain = group_sums(np.ones(world), domain)
    counts = np.stack([np.full(world, local - 1.0), in_domain - local, world - in_domain], axis=-1)
    own = per_peer[..., None] * counts
    same_host = group_sums(per_peer, local)
    same_domain = group_sums(per_peer, domain)
    total = per_peer.sum(axis=-1, keepdims=True)
    others = np.stack([same_host - per_peer, same_domain - same_host, total - same_domain], axis=-1)
    return own, np.maximum(others, 0.0)


def group_sums(values: FloatArray, size: int) -> FloatArray:
    """For each rank, the sum over its group of ``size`` consecutive ranks; ``[..., R]``."""
    ranks = values.shape[-1]
    whole = ranks - ranks % size
    grouped = values[..., :whole].reshape(*values.shape[:-1], -1, size)
    sums = np.repeat(grouped.sum(axis=-1), size, axis=-1)
    if whole == ranks:
        return sums
    rest = values[..., whole:]
    tail = np.broadcast_to(rest.sum(axis=-1, keepdims=True), rest.shape)
    return np.concatenate([sums, tail], axis=-1)


def matrix_by_level(matrix: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
    """Bytes by level of any all-to-all.

    Args:
        matrix: ``[R, R]`` bytes from row rank to column rank; the diagonal is ignored.
        topology: gives hosts and domains.

    Returns:
        ``(send, receive)``, each ``[R, NUM_LEVELS]``.
    """
    ranks = np.arange(topology.world_size)
    host = ranks // topology.local_world_size
    domain = ranks // topology.domain_size
    same_host = host[:, None] == host[None, :]
    same_domain = domain[:, None] == domain[None, :]
    masks = (same_host, same_domain & ~same_host, ~same_domain)
    moved = matrix * (ranks[:, None] != ranks[None, :])
    send = np.stack([(moved * m).sum(axis=1) for m in masks], axis=-1)
    receive = np.stack([(moved * m).sum(axis=0) for m in masks], axis=-1)
    return send, receive
