"""``alpha_beta``: latency plus bytes over bandwidth, per link level."""

from dataclasses import dataclass
from typing import final

import numpy as np

from costmodels.collective._law import crowding, group_of, group_of_peers, is_pcie
from costmodels.collective.base import AbstractCollectiveModel, LinkLevel
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective
from costmodels.topology import Topology


@final
@dataclass(frozen=True, slots=True)
class AlphaBeta(AbstractCollectiveModel):
    """t = latency + max(host / b_host + domain / b_domain, network / b_network) for an all-to-all.

    Host, domain and network stand for the bytes on these levels of links, and the b are bandwidths
    of links in bytes per second. Links are full duplex, so that on each level the larger of sent
    and received bytes counts. The links inside a domain are one fabric, so that their times add up.
    The network works beside the fabric. If the fabric is PCIe, over which the network cards are
    reached too, the network bytes are also added to the fabric's time.

    In a reduce-scatter or all-gather of S bytes, each of n members moves S (n - 1) / n bytes. Over
    several domains with d ranks each, every rank of a domain uses its own network link, so that
    rings run at min(b_fabric, d * b_network), with one latency for each doubling of the domains.

    Valid for messages that reach the bandwidth of the links (from some MiB on). Smaller messages
    take longer than this model says, because they reach less than the bandwidth.

    Sources:
        Thakur, Rabenseifner, Gropp 2005: alpha-beta cost of collectives
        nccl-tests doc/PERFORMANCE.md: bus bandwidth factors
    """

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """The latency of the outermost level of links that the ranks cross, in seconds."""
        if ranks <= 1:
            return 0.0
        if not across_hosts:
            return topology.host_link.latency_s
        if topology.world_size <= topology.domain_size:
            return topology.domain_link.latency_s
        return topology.network_link.latency_s

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """The seconds of each rank's busiest link."""
        host, busiest = topology.host_link, np.maximum(send, receive)
        reached = host.bandwidth_bytes_per_s * host.reached_ratio(topology.local_world_size)
        fabric_s = busiest[..., LinkLevel.HOST] / reached
        fabric_s += busiest[..., LinkLevel.DOMAIN] / topology.domain_link.bandwidth_bytes_per_s
        network = busiest[..., LinkLevel.NETWORK]
        network_s = network / topology.network_link.bandwidth_bytes_per_s
        network_s = network_s * crowding(Collective.ALL_TO_ALL, group_of_peers(send, topology))
        if is_pcie(host.bandwidth_bytes_per_s):
            fabric_s = fabric_s + network / host.bandwidth_bytes_per_s
        return np.maximum(fabric_s, network_s)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """The seconds of a ring over the members."""
        local, domain = topology.local_world_size, topology.domain_size
        members = local if within_host else topology.world_size
        host = topology.host_link
        bandwidth = host.bandwidth_bytes_per_s * host.reached_ratio(local)
        if min(members, domain) > local:
            bandwidth = min(bandwidth, topology.domain_link.bandwidth_bytes_per_s)
        if members > domain:
            slower = crowding(Collective.REDUCE_SCATTER, group_of(topology))
            network_rate = topology.network_link.bandwidth_bytes_per_s / slower
            bandwidth = min(bandwidth, domain * network_rate)
        return np.asarray(num_bytes * ((members - 1) / members) / bandwidth)
