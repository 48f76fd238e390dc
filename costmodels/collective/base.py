"""The interface of a collective model, which predicts how long ranks take to exchange bytes.

Bytes that a rank sends or receives are those that cross links; what it keeps for itself is not
counted. The last axis of such arrays is the link level (:class:`LinkLevel`).

A model has two sets of methods. Those whose names end in ``_s`` give the seconds of a whole
collective, from start to end. ``all_to_all``, ``reduce_scatter`` and ``all_reduce`` give its
*growing part*: a convex, homogeneous function of the bytes that is never above these seconds. A
search needs it to prove a bound.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.discovery import asking
from costmodels.measured.curves import Collective
from costmodels.topology import Topology


@functools.cache
def num_peers(world: int, local: int, domain: int) -> FloatArray:
    """How many ranks each rank reaches over each link level, ``[world, NUM_LEVELS]``.

    Args:
        world: number of ranks.
        local: ranks per host.
        domain: ranks per scale-up domain.
    """
    in_domain = group_sums(np.ones(world), domain)
    counts = (np.full(world, local - 1.0), in_domain - local, world - in_domain)
    return np.stack(counts, axis=-1)


def group_sums(values: FloatArray, size: int) -> FloatArray:
    """For each rank, the sum over its group of ``size`` consecutive ranks, ``[..., R]``.

    The last group is smaller if ``size`` does not divide R.
    """
    ranks, before = values.shape[-1], values.shape[:-1]
    if size == 1:
        return values
    if missing := -ranks % size:
        values = np.concatenate([values, np.zeros((*before, missing))], axis=-1)
    sums = values.reshape(*before, -1, size).sum(axis=-1)
    return np.repeat(sums, size, axis=-1)[..., :ranks]


_SPREAD: Final = 1.0
"""90 % spread of a time inside one scale-up domain if only the rates of its links are known: the
true time is within a factor of 1 + this. Nine in ten points of the shipped curves lie within a
factor of 1.8 of the law of link rates (``benchmarks/collectives.py``, links); the spread also
includes how much sites differ (``benchmarks/fabrics.py``)."""
_NETWORK_SPREAD: Final = 1.6
"""The same spread over several domains, if there is no curve inside a domain either."""


class LinkLevel(IntEnum):
    """Levels of links by which one rank reaches another, the innermost first.

    ``HOST``: both ranks are on one host. ``DOMAIN``: they are on different hosts of one scale-up
    domain. ``NETWORK``: they are in different domains.
    """

    HOST = 0
    DOMAIN = 1
    NETWORK = 2


NUM_LEVELS = len(LinkLevel)
"""How many levels of links there are: the last axis of arrays of bytes."""


class Basis(StrEnum):
    """What a predicted time rests on, the strongest basis first.

    ``MEASURED``: times that were measured on this system, in this shape and around this size.
    ``CALIBRATED``: times that were measured on a like system. ``ANALYTIC``: the rates of links
    alone. ``EXTRAPOLATED``: times that were measured in another shape, at other sizes, or over
    other links.
    """

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    ANALYTIC = "analytic"
    EXTRAPOLATED = "extrapolated"


class Confidence(NamedTuple):
    """What a time rests on, and its 90 % interval.

    Attributes:
        basis: what the time rests on.
        spread_ratio: the interval is from ``time / (1 + spread_ratio)`` to
            ``time * (1 + spread_ratio)``.
    """

    basis: Basis
    spread_ratio: float


class AbstractCollectiveModel(ABC):
    """Predicts the seconds of each rank in a collective, from when its last member has arrived.

    A collective ends when its slowest member does. The growing parts, ``all_to_all``,
    ``reduce_scatter`` and ``all_reduce``, have to be convex, homogeneous and non-decreasing in the
    bytes, and never above the seconds that the ``_s`` methods give.

    In a reduce-scatter, all-gather or all-reduce all members have the same number of bytes. Its
    members are all ranks, or the ranks of one host with ``within_host``.
    """

    __slots__ = ()

    @property
    def full_duplex(self) -> bool:
        """Whether a rank sends and receives at the same time, so that the longer of both counts."""
        return True

    @property
    def pays_for_others(self) -> bool:
        """Whether an all-to-all of a rank takes longer if others send more, up to what it sends.

        A tangent then counts each rank as if it sent alone; otherwise as if all sent as much.
        """
        return not self.full_duplex

    @abstractmethod
    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Seconds that an all-to-all without bytes takes; 0 for a single rank.

        Args:
            topology: the system.
            ranks: how many ranks take part.
            across_hosts: whether they are on several hosts.
        """

    @abstractmethod
    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Growing part of an all-to-all, ``[..., R]`` seconds.

        Args:
            send: ``[..., R, NUM_LEVELS]`` bytes that each rank sends. R is the world size if all
                ranks take part, and the number of hosts if one rank of each host does.
            receive: ``[..., R, NUM_LEVELS]`` bytes that each rank receives.
            topology: the system.
        """

    @abstractmethod
    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Growing part of a reduce-scatter, and of an all-gather, ``[...]`` seconds.

        Args:
            num_bytes: ``[...]`` bytes of the input of each member of a reduce-scatter, or of the
                output of each member of an all-gather.
            topology: the system.
            within_host: whether only the ranks of one host take part.
        """

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Growing part of an all-reduce of a buffer of ``num_bytes``, ``[...]`` seconds.

        It is that of a reduce-scatter and an all-gather.
        """
        return 2.0 * self.reduce_scatter(num_bytes, topology, within_host=within_host)

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Seconds of each rank in an all-to-all, ``[..., R]``; arguments as :meth:`all_to_all`."""
        fixed = self.fixed_s(topology, ranks=send.shape[-2], across_hosts=topology.num_hosts > 1)
        return self.all_to_all(send, receive, topology) + fixed

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds ``[...]`` of a reduce-scatter, an all-gather or an all-reduce.

        Args:
            kind: one of them.
            num_bytes: ``[...]`` bytes of a member's input of a reduce-scatter, of its output of an
                all-gather, and of its buffer of an all-reduce.
            topology: the system.
            within_host: whether only the ranks of one host take part.
        """
        is_whole = kind is Collective.ALL_REDUCE
        grown = (self.all_reduce if is_whole else self.reduce_scatter)(
            num_bytes, topology, within_host=within_host
        )
        # An empty one takes the fixed seconds once for each doubling of the domains.
        ranks = topology.local_world_size if within_host else topology.world_size
        across = not within_host and topology.num_hosts > 1
        domains = -(-topology.world_size // topology.domain_size) if across else 1
        rounds = max(1, math.ceil(math.log2(domains))) * (2.0 if is_whole else 1.0)
        return grown + rounds * self.fixed_s(topology, ranks=ranks, across_hosts=across)

    def confidence(
        self, collective: Collective, size_bytes: float, topology: Topology
    ) -> Confidence:
        """What the time of a balanced collective over all ranks rests on, and its interval.

        Args:
            collective: the collective.
            size_bytes: its size, as nccl-tests counts it.
            topology: the system.
        """
        del collective, size_bytes
        spread = _NETWORK_SPREAD if topology.world_size > topology.domain_size else _SPREAD
        spread *= topology.world_size > 1
        return Confidence(basis=Basis.ANALYTIC, spread_ratio=spread)

    def plan_spread_ratio(self, topology: Topology) -> float:
        """90 % spread of the exchanges of a plan: of an all-to-all of 16 MiB over all ranks.

        So many bytes of pooled embeddings a rank sends for some thousand samples.
        """
        return self.confidence(Collective.ALL_TO_ALL, 16.0 * 2**20, topology).spread_ratio

    def remarks(self, topology: Topology) -> tuple[str, ...]:
        """What users should know about the times on this system, in whole sentences."""
        del topology
        return ()

    def subadditive(self) -> AbstractCollectiveModel:
        """A subadditive model that is nowhere above this one; this one if it is subadditive.

        In a subadditive model two collectives never take less time than one collective with the
        bytes of both. A fixed time plus a growing part is subadditive. A model that has ``_s``
        methods of its own should override this method; otherwise its growing part alone is used,
        which is subadditive but may be far below the model.
        """
        own, base = type(self), AbstractCollectiveModel
        names = ("all_to_all_s", "buffer_s")
        plain = all(getattr(own, name) is getattr(base, name) for name in names)
        return self if plain else GrowingPart(inner=self)


@dataclass(frozen=True, slots=True)
class Wrapping(AbstractCollectiveModel):
    """A model with the growing parts of another one, ``inner``."""

    inner: AbstractCollectiveModel

    full_duplex = asking("full_duplex", is_property=True)
    pays_for_others = asking("pays_for_others", is_property=True)
    all_to_all = asking("all_to_all")
    reduce_scatter = asking("reduce_scatter")
    all_reduce = asking("all_reduce")


@final
@dataclass(frozen=True, slots=True)
class GrowingPart(Wrapping):
    """The growing part of another model, ``inner``, as a model of its own.

    Sources:
        growing part of the model it wraps
    """

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Always 0."""
        del topology, ranks, across_hosts
        return 0.0


def balanced_s(
    model: AbstractCollectiveModel,
    collective: Collective,
    size_bytes: FloatArray,
    topology: Topology,
) -> FloatArray:
    """Seconds ``[...]`` of balanced collectives over all ranks.

    Args:
        model: predicts the seconds.
        collective: the collective.
        size_bytes: ``[...]`` sizes as nccl-tests counts them.
        topology: the system.
    """
    if collective is Collective.ALL_TO_ALL:
        world = topology.world_size
        per_peer = np.repeat(np.asarray(size_bytes)[..., None] / world, world, axis=-1)
        own, others = spread_by_level(
            per_peer, local=topology.local_world_size, domain=topology.domain_size
        )
        return np.asarray(model.all_to_all_s(own, others, topology).max(axis=-1))
    return model.buffer_s(collective, size_bytes, topology, within_host=False)


def spread_by_level(
    per_peer: FloatArray, *, local: int, domain: int
) -> tuple[FloatArray, FloatArray]:
    """Bytes by link level if each rank r sends ``per_peer[r]`` bytes to every other rank.

    If instead rank r receives ``per_peer[r]`` bytes from every other rank, the two results change
    places.

    Args:
        per_peer: ``[..., R]`` bytes from rank r to each other rank.
        local: ranks per host.
        domain: ranks per scale-up domain.

    Returns:
        ``(own, others)``, ``[..., R, NUM_LEVELS]`` each: the bytes that each rank sends over each
        level, and the bytes that it receives over each level.
    """
    world = per_peer.shape[-1]
    domain = min(domain, world)
    own = per_peer[..., None] * num_peers(world, local, domain)
    others = np.zeros((*per_peer.shape, NUM_LEVELS))
    inside = group_sums(per_peer, local)
    np.subtract(inside, per_peer, out=others[..., LinkLevel.HOST])
    if domain > local:
        same_host, inside = inside, group_sums(per_peer, domain)
        np.subtract(inside, same_host, out=others[..., LinkLevel.DOMAIN])
    if world > domain:
        total = per_peer.sum(axis=-1, keepdims=True)
        np.subtract(total, inside, out=others[..., LinkLevel.NETWORK])
    return own, np.maximum(others, 0.0, out=others)
