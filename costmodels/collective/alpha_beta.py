"""Latency plus bytes over bandwidth, per link level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from costmodels.collective._law import crowding, group_of, group_of_peers, is_pcie
from costmodels.collective.base import (
    AbstractCollectiveModel,
    Collective,
    Level,
    analytic_spread_ratio,
)
from costmodels.datatypes import FloatArray
from costmodels.topology import Topology


@final
@dataclass(frozen=True, slots=True)
class AlphaBeta(AbstractCollectiveModel):
    """t = alpha + max(scale-up bytes / b, network bytes / b_network) on the busiest direction.

    Scale-up links (host and domain) are one fabric, so their times add; the network works beside
    them, unless the fabric is PCIe, through which network cards are reached as well. Links are full
    duplex: the larger of sent and received counts.
    Reduce-scatter and all-gather of S bytes over n members move S (n - 1) / n per rank; across
    domains every rank of a domain of d ranks drives its own network link, so the rings run at
    min(b_fabric, d b_network), with one latency per doubling of the domains.

    Valid for messages large enough to reach the achieved bandwidth (some MiB); below that the
    latency term dominates and carries the interval.
    """

    sources: ClassVar[tuple[str, ...]] = (
        "Thakur, Rabenseifner, Gropp 2005: alpha-beta cost of collectives",
        "nccl-tests doc/PERFORMANCE.md: bus bandwidth factors",
    )

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Latency of the outermost level crossed."""
        if ranks <= 1:
            return 0.0
        if not across_hosts:
            return topology.host_link.latency_s
        if topology.world_size <= topology.domain_size:
            return topology.domain_link.latency_s
        return topology.network_link.latency_s

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Busiest link of each rank."""
        busiest = np.maximum(send, receive)
        fabric_s = (
            busiest[..., Level.HOST] / topology.host_link.bandwidth_bytes_per_s
            + busiest[..., Level.DOMAIN] / topology.domain_link.bandwidth_bytes_per_s
        )
        network, fabric_rate = busiest[..., Level.NETWORK], topology.host_link.bandwidth_bytes_per_s
        network_s = network / topology.network_link.bandwidth_bytes_per_s
        network_s = network_s * crowding(Collective.ALL_TO_ALL, group_of_peers(send, topology))
        if is_pcie(fabric_rate):
            fabric_s = fabric_s + network / fabric_rate
        return np.maximum(fabric_s, network_s)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Ring over the members."""
        local, domain = topology.local_world_size, topology.domain_size
        members = local if within_host else topology.world_size
        bandwidth = topology.host_link.bandwidth_bytes_per_s
        if min(members, domain) > local:
            bandwidth = min(bandwidth, topology.domain_link.bandwidth_bytes_per_s)
        if members > domain:
            slower = crowding(Collective.REDUCE_SCATTER, group_of(topology))
            network_rate = topology.network_link.bandwidth_bytes_per_s / slower
            bandwidth = min(bandwidth, domain * network_rate)
        return np.asarray(num_bytes * ((members - 1) / members) / bandwidth)

    def plan_spread_ratio(self, topology: Topology) -> float:
        """That of link rates alone."""
        return analytic_spread_ratio(topology)
