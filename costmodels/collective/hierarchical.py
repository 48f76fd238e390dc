"""``hierarchical``: an all-to-all in two steps, inside the scale-up domains and between them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from costmodels.collective._curve import LinkModel
from costmodels.collective.base import AbstractCollectiveModel, LinkLevel, Wrapping
from costmodels.datatypes import FloatArray
from costmodels.discovery import asking
from costmodels.topology import Topology


@final
@dataclass(frozen=True, slots=True)
class Hierarchical(Wrapping):
    """All-to-all: t = t_domain(all bytes) + t_network(bytes that leave the domain).

    In the first step, every rank hands the bytes for the j-th rank of any domain to the j-th rank
    of its own domain. In the second step, the j-th ranks of all domains exchange these bytes. The
    network therefore carries few large messages instead of many small ones. With D ranks per
    domain, (D - 1) / D of the bytes that leave a domain cross its fabric in the first step.

    Bytes are taken to be spread evenly over the ranks of the domain that receives them. In the
    second step, each rank therefore sends an equal part of what leaves its domain, and receives
    what is meant for it. All other collectives are those of ``inner``. So is the all-to-all, unless
    there are several whole domains of more than one rank.

    Args:
        inner: prices each step.

    Sources:
        Luo et al. 2024 (arXiv 2403.00877): disaggregated multi-tower, hierarchical exchange
    """

    inner: AbstractCollectiveModel = field(default_factory=LinkModel)

    buffer_s = asking("buffer_s")
    confidence = asking("confidence")
    plan_spread_ratio = asking("plan_spread_ratio")
    remarks = asking("remarks")

    @property
    def pays_for_others(self) -> bool:
        """True: in the second step a rank also carries what other ranks of its domain send."""
        return True

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Seconds of both steps without bytes."""
        whole = self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)
        if ranks != topology.world_size or not _has_two_steps(topology):
            return whole
        one, domains = _one_domain(topology), _domains_as_hosts(topology)
        inside = self.inner.fixed_s(one, ranks=one.world_size, across_hosts=one.num_hosts > 1)
        across = self.inner.fixed_s(domains, ranks=domains.num_hosts, across_hosts=True)
        return inside + across

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """The sum of the growing parts of both steps."""
        return self._summed(self.inner.all_to_all, send, receive, topology)

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """The seconds of both steps, one after the other."""
        return self._summed(self.inner.all_to_all_s, send, receive, topology)

    @staticmethod
    def _summed(
        price: Callable[[FloatArray, FloatArray, Topology], FloatArray],
        send: FloatArray,
        receive: FloatArray,
        topology: Topology,
    ) -> FloatArray:
        """What both steps cost by ``price``, or the whole all-to-all if it has no steps."""
        if send.shape[-2] != topology.world_size or not _has_two_steps(topology):
            return price(send, receive, topology)
        one, domains = _one_domain(topology), _domains_as_hosts(topology)
        inside = price(_inside(send, one), _inside(receive, one), one)
        # The first step has spread the bytes of a domain evenly over its ranks.
        leaving = _across(send, one)
        even = np.broadcast_to(leaving.mean(axis=-3, keepdims=True), leaving.shape)
        seconds = inside + np.moveaxis(price(even, _across(receive, one), domains), -1, -2)
        return seconds.reshape(*seconds.shape[:-2], -1)


def _has_two_steps(topology: Topology) -> bool:
    """Whether there are several domains, all of the same size and of more than one rank."""
    domain, world = topology.domain_size, topology.world_size
    return 1 < domain < world and world % domain == 0


def _one_domain(topology: Topology) -> Topology:
    """One domain of a system, in which the first step runs."""
    hosts = topology.domain_size // topology.local_world_size
    return topology.resized(hosts, topology.local_world_size)


def _domains_as_hosts(topology: Topology) -> Topology:
    """A system whose hosts are the domains of another, between which the second step runs."""
    link, local = topology.network_link, topology.local_world_size
    pods = -(-link.pod_hosts * local // topology.domain_size)
    whole = topology.resized(topology.world_size // topology.domain_size, topology.domain_size)
    return replace(whole, network_link=replace(link, pod_hosts=pods))


def _inside(moved: FloatArray, one: Topology) -> FloatArray:
    """Bytes of each rank in the first step, ``[..., domains, D, NUM_LEVELS]``.

    They are those that stay in the domain, and those that leave it and are first handed to another
    rank of the domain.

    Args:
        moved: ``[..., R, NUM_LEVELS]`` bytes of the whole all-to-all.
        one: one domain of D ranks.
    """
    size, local = one.world_size, one.local_world_size
    by_domain = moved.reshape(*moved.shape[:-2], -1, size, moved.shape[-1])
    leaving = by_domain[..., LinkLevel.NETWORK]
    host = by_domain[..., LinkLevel.HOST] + leaving * ((local - 1) / size)
    domain = by_domain[..., LinkLevel.DOMAIN] + leaving * ((size - local) / size)
    return np.stack([host, domain, np.zeros_like(leaving)], axis=-1)


def _across(moved: FloatArray, one: Topology) -> FloatArray:
    """Bytes that leave the domain, ``[..., D, domains, NUM_LEVELS]``, by rank inside the domain.

    Args:
        moved: ``[..., R, NUM_LEVELS]`` bytes of the whole all-to-all.
        one: one domain of D ranks.
    """
    by_domain = moved[..., LinkLevel.NETWORK].reshape(*moved.shape[:-2], -1, one.world_size)
    leaving = np.moveaxis(by_domain, -1, -2)
    zero = np.zeros_like(leaving)
    return np.stack([zero, zero, leaving], axis=-1)
