"""The interface of a collective model.

Bytes are what crosses links: what a rank keeps for itself is not counted. They are split by link
level, last axis: ``HOST`` (same host), ``DOMAIN`` (same scale-up domain, other host), ``NETWORK``.

Two sets of methods. Those that end in ``_s`` give the time of a collective, start to end. Those
without (``all_to_all``, ``reduce_scatter``, ``all_reduce``) give a convex, homogeneous part of it
that is never above it: what a search needs to prove a bound.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar, final

import numpy as np

from costmodels import discovery
from costmodels.datatypes import FloatArray
from costmodels.errors import require
from costmodels.topology import Topology

ANALYTIC_SPREAD = 1.0
"""Within 1.8 times the law of link rates alone lie nine in ten points of the shipped curves; joined
with what sites differ by (``benchmarks/collectives.py``, links; ``benchmarks/fabrics.py``)."""
ANALYTIC_NETWORK_SPREAD = 1.6
"""The same over several domains, where no curve inside one helps either."""


class Level(IntEnum):
    """Link levels, innermost first."""

    HOST = 0
    DOMAIN = 1
    NETWORK = 2


NUM_LEVELS = len(Level)


class Collective(StrEnum):
    """What the ranks do together. Sizes follow nccl-tests.

    Bytes each rank sends in all (all-to-all), gets in all (all-gather), gives in all
    (reduce-scatter), or holds (all-reduce).
    """

    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"


class Basis(StrEnum):
    """What a predicted time rests on, strongest first.

    Measured on this system in this shape and at this size; calibrated: carried over from measured
    figures of a like system; analytic: from link rates alone; extrapolated: measured figures of
    another shape or size.
    """

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    ANALYTIC = "analytic"
    EXTRAPOLATED = "extrapolated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """Basis of a time and its 90 % interval, ``time * (1 + spread)`` to either side."""

    basis: Basis
    spread_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCurve:
    """Time of one collective against size (as nccl-tests states it) for one shape.

    ``domains`` scale-up domains take part with ``ranks / domains`` ranks each.
    ``network_bytes_per_s`` is the nominal rate of a rank's network link, 0 where none is used or
    it is not known. ``priority`` 0 is the system's own curve; curves of like systems have 1 and
    more and serve only where there is none of a lower number. ``fabric`` is the kind of network
    (:mod:`costmodels.fabrics`), empty where none is used or it is not known.
    """

    collective: Collective
    ranks: int
    domains: int
    size_bytes: tuple[float, ...]
    time_s: tuple[float, ...]
    network_bytes_per_s: float = 0.0
    version: str = ""
    source: str = ""
    priority: int = 0
    fabric: str = ""

    def __post_init__(self) -> None:
        """Check shape, sizes and times."""
        sizes = self.size_bytes
        require(self.ranks >= 2, f"a collective curve needs at least 2 ranks, got {self.ranks}")
        require(
            self.domains >= 1 and self.ranks % self.domains == 0,
            f"{self.ranks} ranks do not divide over {self.domains} domains",
        )
        require(
            len(sizes) == len(self.time_s) and len(sizes) >= 2,
            f"a curve needs as many sizes as times and at least 2, "
            f"got {len(sizes)} and {len(self.time_s)}",
        )
        rising = all(a < b for a, b in itertools.pairwise(sizes))
        require(rising and sizes[0] > 0, "sizes of a curve must be above 0 and rise")
        require(all(math.isfinite(t) and t > 0 for t in self.time_s), "times must be above 0")

    @property
    def shape(self) -> tuple[int, int]:
        """(ranks, domains)."""
        return self.ranks, self.domains


class AbstractCollectiveModel(ABC):
    """Predicts how long a rank is busy in a collective once every member has arrived.

    The collective ends when its slowest member does. ``fixed_s`` is the time of an empty one;
    ``all_to_all``, ``reduce_scatter`` and ``all_reduce`` grow with bytes: convex, homogeneous,
    non-decreasing, and never above the time that the ``_s`` methods give.
    """

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @property
    def full_duplex(self) -> bool:
        """Whether sending and receiving at once takes no longer than the longer of both."""
        return True

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

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds each rank takes, ``[..., R]``; arguments as in :meth:`all_to_all`.

        R is the world size, or the number of hosts for one rank of each.
        """
        fixed = self.fixed_s(topology, ranks=send.shape[-2], across_hosts=topology.num_hosts > 1)
        return self.all_to_all(send, receive, topology) + fixed

    def reduce_scatter_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds to reduce and scatter an input of ``num_bytes`` on each member."""
        fixed = self._ring_fixed_s(topology, within_host=within_host)
        return self.reduce_scatter(num_bytes, topology, within_host=within_host) + fixed

    def all_gather_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds to gather an output of ``num_bytes``."""
        return self.reduce_scatter_s(num_bytes, topology, within_host=within_host)

    def all_reduce_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Seconds to add up a buffer of ``num_bytes`` over all members."""
        fixed = 2.0 * self._ring_fixed_s(topology, within_host=within_host)
        return self.all_reduce(num_bytes, topology, within_host=within_host) + fixed

    def confidence(
        self, collective: Collective, size_bytes: float, topology: Topology
    ) -> Confidence:
        """How far to trust the time of a balanced collective over all ranks."""
        del collective, size_bytes
        return Confidence(basis=Basis.ANALYTIC, spread_ratio=analytic_spread_ratio(topology))

    def plan_spread_ratio(self, topology: Topology) -> float | None:
        """90 % spread of a plan's exchanges where measured curves tell it; None otherwise."""
        del topology
        return None

    def remarks(self, topology: Topology) -> tuple[str, ...]:
        """What people should know about the times on this system, in whole sentences."""
        del topology
        return ()

    def subadditive(self) -> AbstractCollectiveModel:
        """This model, or one nowhere above it in which two collectives never take less than one.

        One stands for a collective with the bytes of both. A fixed time plus a growing part is so;
        a model with ``_s`` methods of its own should say which one is, or its growing part has to
        do.
        """
        own, base = type(self), AbstractCollectiveModel
        names = ("all_to_all_s", "reduce_scatter_s", "all_gather_s", "all_reduce_s")
        plain = all(getattr(own, name) is getattr(base, name) for name in names)
        return self if plain else GrowingPart(inner=self)

    def _ring_fixed_s(self, topology: Topology, *, within_host: bool) -> float:
        ranks = topology.local_world_size if within_host else topology.world_size
        across = not within_host and topology.num_hosts > 1
        domains = -(-topology.world_size // topology.domain_size) if across else 1
        rounds = max(1, math.ceil(math.log2(domains)))
        return rounds * self.fixed_s(topology, ranks=ranks, across_hosts=across)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingPart(AbstractCollectiveModel):
    """The growing part of another model alone: what is known of every model's times."""

    inner: AbstractCollectiveModel
    sources: ClassVar[tuple[str, ...]] = ("growing part of the model it wraps",)

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Nothing."""
        del topology, ranks, across_hosts
        return 0.0

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """That of the model."""
        return self.inner.all_to_all(send, receive, topology)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """That of the model."""
        return self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """That of the model."""
        return self.inner.all_reduce(num_bytes, topology, within_host=within_host)


def analytic_spread_ratio(topology: Topology) -> float:
    """90 % spread of collectives over all ranks where nothing was measured; 0 for one rank."""
    if topology.world_size == 1:
        return 0.0
    crosses = topology.world_size > topology.domain_size
    return ANALYTIC_NETWORK_SPREAD if crosses else ANALYTIC_SPREAD


def default_model() -> AbstractCollectiveModel:
    """The model that needs nothing but link rates."""
    package = importlib.import_module("costmodels.collective")
    return discovery.load(package, "ramp", AbstractCollectiveModel)()


def balanced_s(
    model: AbstractCollectiveModel,
    collective: Collective,
    size_bytes: FloatArray,
    topology: Topology,
) -> FloatArray:
    """Seconds of balanced collectives over all ranks; sizes ``[...]`` as in nccl-tests."""
    if collective is Collective.ALL_TO_ALL:
        world = topology.world_size
        per_peer = np.repeat(np.asarray(size_bytes)[..., None] / world, world, axis=-1)
        own, others = spread_by_level(
            per_peer, local=topology.local_world_size, domain=topology.domain_size
        )
        return np.asarray(model.all_to_all_s(own, others, topology).max(axis=-1))
    if collective is Collective.ALL_REDUCE:
        return model.all_reduce_s(size_bytes, topology)
    if collective is Collective.ALL_GATHER:
        return model.all_gather_s(size_bytes, topology, within_host=False)
    return model.reduce_scatter_s(size_bytes, topology, within_host=False)


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
    own = per_peer[..., None] * _num_peers(world, local, domain)
    others = np.zeros((*per_peer.shape, NUM_LEVELS))
    inside = group_sums(per_peer, local)
    np.subtract(inside, per_peer, out=others[..., Level.HOST])
    if domain > local:
        same_host, inside = inside, group_sums(per_peer, domain)
        np.subtract(inside, same_host, out=others[..., Level.DOMAIN])
    if world > domain:
        total = per_peer.sum(axis=-1, keepdims=True)
        np.subtract(total, inside, out=others[..., Level.NETWORK])
    return own, np.maximum(others, 0.0, out=others)


@functools.cache
def _num_peers(world: int, local: int, domain: int) -> FloatArray:
    """How many ranks each rank reaches over each level, ``[world, NUM_LEVELS]``."""
    in_domain = group_sums(np.ones(world), domain)
    counts = (np.full(world, local - 1.0), in_domain - local, world - in_domain)
    return np.stack(counts, axis=-1)


def group_sums(values: FloatArray, size: int) -> FloatArray:
    """For each rank, the sum over its group of ``size`` consecutive ranks; ``[..., R]``."""
    ranks = values.shape[-1]
    if size == 1:
        return values
    whole = ranks - ranks % size
    grouped = values[..., :whole].reshape(*values.shape[:-1], -1, size)
    sums = np.repeat(grouped.sum(axis=-1), size, axis=-1)
    if whole == ranks:
        return sums
    rest = values[..., whole:]
    tail = np.broadcast_to(rest.sum(axis=-1, keepdims=True), rest.shape)
    return np.concatenate([sums, tail], axis=-1)
