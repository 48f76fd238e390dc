"""All-to-all in two steps: inside the scale-up domain, then between domains."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import numpy as np

from costmodels.collective.base import (
    AbstractCollectiveModel,
    Collective,
    Confidence,
    Level,
    default_model,
)
from costmodels.datatypes import FloatArray
from costmodels.topology import Topology


@final
@dataclass(frozen=True, slots=True)
class Hierarchical(AbstractCollectiveModel):
    """t = t_domain(all bytes) + t_network(bytes that leave the domain, one rank per domain).

    First every rank hands what is meant for rank j of any domain to rank j of its own; then equal
    ranks of all domains exchange. Of what leaves the domain, (D - 1) / D crosses the fabric first.
    The network sees few large messages instead of many small ones. Bytes are taken as even over
    the destinations inside a domain, so in the second step each rank sends its part of what the
    whole domain sends, and receives what is meant for it.
    Other collectives are those of ``inner``. With one domain so is the all-to-all.

    Args:
        inner: prices each step.
    """

    inner: AbstractCollectiveModel = field(default_factory=default_model)

    sources: ClassVar[tuple[str, ...]] = (
        "Luo et al. 2024 (arXiv 2403.00877): disaggregated multi-tower, hierarchical exchange",
    )

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Both steps."""
        whole = self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)
        if ranks != topology.world_size or not _has_two_steps(topology):
            return whole
        one, domains = _one_domain(topology), _domains_as_hosts(topology)
        inside = self.inner.fixed_s(one, ranks=one.world_size, across_hosts=one.num_hosts > 1)
        across = self.inner.fixed_s(domains, ranks=domains.num_hosts, across_hosts=True)
        return inside + across

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Sum of the growing parts."""
        if send.shape[-2] != topology.world_size or not _has_two_steps(topology):
            return self.inner.all_to_all(send, receive, topology)
        one, domains = _one_domain(topology), _domains_as_hosts(topology)
        inside = self.inner.all_to_all(_inside(send, one), _inside(receive, one), one)
        across = self.inner.all_to_all(_lanes(send, one), _across(receive, one), domains)
        return _flat(inside, across)

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """One step after the other."""
        if send.shape[-2] != topology.world_size or not _has_two_steps(topology):
            return self.inner.all_to_all_s(send, receive, topology)
        one, domains = _one_domain(topology), _domains_as_hosts(topology)
        inside = self.inner.all_to_all_s(_inside(send, one), _inside(receive, one), one)
        across = self.inner.all_to_all_s(_lanes(send, one), _across(receive, one), domains)
        return _flat(inside, across)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """As the inner model."""
        return self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)

    def reduce_scatter_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """As the inner model."""
        return self.inner.reduce_scatter_s(num_bytes, topology, within_host=within_host)

    def all_gather_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """As the inner model."""
        return self.inner.all_gather_s(num_bytes, topology, within_host=within_host)

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """As the inner model."""
        return self.inner.all_reduce(num_bytes, topology, within_host=within_host)

    def all_reduce_s(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """As the inner model."""
        return self.inner.all_reduce_s(num_bytes, topology, within_host=within_host)

    def confidence(
        self, collective: Collective, size_bytes: float, topology: Topology
    ) -> Confidence:
        """As the inner model."""
        return self.inner.confidence(collective, size_bytes, topology)

    def plan_spread_ratio(self, topology: Topology) -> float | None:
        """As the inner model."""
        return self.inner.plan_spread_ratio(topology)

    def remarks(self, topology: Topology) -> tuple[str, ...]:
        """As the inner model."""
        return self.inner.remarks(topology)


def _has_two_steps(topology: Topology) -> bool:
    """Several whole domains of more than one rank."""
    domain, world = topology.domain_size, topology.world_size
    return 1 < domain < world and world % domain == 0


def _one_domain(topology: Topology) -> Topology:
    hosts = topology.domain_size // topology.local_world_size
    return topology.resized(hosts, topology.local_world_size)


def _domains_as_hosts(topology: Topology) -> Topology:
    link, local = topology.network_link, topology.local_world_size
    pods = -(-link.pod_hosts * local // topology.domain_size)
    whole = topology.resized(topology.world_size // topology.domain_size, topology.domain_size)
    return replace(whole, network_link=replace(link, pod_hosts=pods))


def _inside(moved: FloatArray, one: Topology) -> FloatArray:
    """First step, ``[..., domains, D, levels]``: what stays, and what is handed on."""
    size, local = one.world_size, one.local_world_size
    by_domain = moved.reshape(*moved.shape[:-2], -1, size, moved.shape[-1])
    leaving = by_domain[..., Level.NETWORK]
    host = by_domain[..., Level.HOST] + leaving * ((local - 1) / size)
    domain = by_domain[..., Level.DOMAIN] + leaving * ((size - local) / size)
    return np.stack([host, domain, np.zeros_like(leaving)], axis=-1)


def _across(moved: FloatArray, one: Topology) -> FloatArray:
    """Second step, ``[..., D, domains, levels]``: equal ranks of all domains."""
    by_domain = moved[..., Level.NETWORK].reshape(*moved.shape[:-2], -1, one.world_size)
    leaving = np.moveaxis(by_domain, -1, -2)
    zero = np.zeros_like(leaving)
    return np.stack([zero, zero, leaving], axis=-1)


def _lanes(send: FloatArray, one: Topology) -> FloatArray:
    """As :func:`_across` after the first step has shared what a domain sends among its ranks."""
    leaving = _across(send, one)
    return np.broadcast_to(leaving.mean(axis=-3, keepdims=True), leaving.shape)


def _flat(inside: FloatArray, across: FloatArray) -> FloatArray:
    """Sum of ``[..., domains, D]`` and ``[..., D, domains]`` as ``[..., R]``."""
    seconds = inside + np.moveaxis(across, -1, -2)
    return seconds.reshape(*seconds.shape[:-2], -1)
