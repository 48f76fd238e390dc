"""The ranks that take part in a collective, and the links between them."""

from __future__ import annotations

from typing import Final, NamedTuple

from costmodels.datatypes import FloatArray
from costmodels.fabrics import FABRICS, half_size_of
from costmodels.topology import Links, Topology

TYPICAL_EFFICIENCY: Final = 0.82
"""Achieved over nominal rate of a network of no named kind: what all-gathers and all-reduces over
two hosts reach on tuned networks."""
_TYPICAL_LATENCY_S: Final = 25e-6
"""Latency of a network of no named kind. The shipped systems of GPUs with such a network have 25 or
30 us, except the one that has TorchRec's defaults."""
_FABRIC_LATENCY_S: Final = 10e-6
"""Latency of the links inside a domain where no curve tells it. The shipped systems whose hosts
have NVLink have 8 to 17 us."""


class Group(NamedTuple):
    """The ranks that take part in a collective, and the links between them.

    A *domain* is a scale-up domain: ranks on one *fabric*, such as NVLink. Ranks of different
    domains meet on the *network*, where each rank has a link of its own. Rates are those of one
    rank in one direction.

    Attributes:
        ranks: how many ranks take part.
        per_domain: how many of them share a domain.
        per_host: how many of them share a host.
        fabric_latency_s: latency of the links inside a domain.
        fabric_rate: rate of these links, in bytes per second.
        network_latency_s: latency of the network.
        network_rate: rate of the network, in bytes per second.
        network_half_bytes: size of the message that reaches half of the network's rate; 0 if not
            known.
        fabric: kind of the network (:mod:`costmodels.fabrics`); empty if not known.
        pod_ranks: how many of the ranks share a pod of the network; 0 for a network without pods.
        oversubscription: what a pod sends to other pods shares 1 / this of the full rate.
        mesh: how many ranks of a host are joined pairwise; 0 for ranks on a switch.
    """

    ranks: int
    per_domain: int
    per_host: int
    fabric_latency_s: float
    fabric_rate: float
    network_latency_s: float
    network_rate: float
    network_half_bytes: float = 0.0
    fabric: str = ""
    pod_ranks: int = 0
    oversubscription: float = 1.0
    mesh: int = 0

    @property
    def domains(self) -> int:
        """How many domains the group spans."""
        return -(-self.ranks // self.per_domain)

    @property
    def within_domain(self) -> Group:
        """The group of the members of one domain."""
        return self._replace(ranks=self.per_domain)

    @property
    def units(self) -> int:
        """How many domains the group spans; if it lies inside one domain, how many hosts."""
        return self.domains if self.domains > 1 else -(-self.ranks // self.per_host)

    def on_network_of(self, other: Group) -> Group:
        """The same ranks with their own fabric, on the network of another group."""
        return self._replace(
            network_latency_s=other.network_latency_s,
            network_rate=other.network_rate,
            network_half_bytes=other.network_half_bytes,
            fabric=other.fabric,
            pod_ranks=other.pod_ranks,
            oversubscription=other.oversubscription,
        )

    def of_units(self, units: int) -> Group:
        """A group with another number of :attr:`units`, each with as many ranks as here."""
        if self.domains > 1:
            return self._replace(ranks=units * self.per_domain)
        return self._replace(ranks=units * self.per_host, per_domain=units * self.per_host)


def group_of(topology: Topology, *, within_host: bool = False, links: Links | None = None) -> Group:
    """The group of all ranks, or of the ranks of one host.

    Args:
        topology: the system.
        within_host: whether only the ranks of one host take part.
        links: links in place of those of the system; None for its own.
    """
    local = topology.local_world_size
    ranks = local if within_host else topology.world_size
    per_domain = min(ranks, topology.domain_size)
    return _group(links or topology.links, ranks, per_domain, min(ranks, local))


def group_of_peers(send: FloatArray, topology: Topology, links: Links | None = None) -> Group:
    """The group that exchanges bytes: all ranks, or one rank of each host.

    Args:
        send: ``[..., R, NUM_LEVELS]`` bytes that each rank sends. If R is the world size, all ranks
            take part; otherwise R is the number of hosts.
        topology: the system.
        links: links in place of those of the system; None for its own.
    """
    hosts = topology.num_hosts
    if send.shape[-2] == topology.world_size:
        return group_of(topology, links=links)
    per_domain = min(hosts, topology.domain_size // topology.local_world_size)
    return _group(links or topology.links, hosts, per_domain, 1)


def _group(links: Links, ranks: int, per_domain: int, per_host: int) -> Group:
    """A group on these links; if its domain spans hosts, the slower level sets rate and latency."""
    host, domain, network = links.host, links.domain, links.network
    rate, latency = host.bandwidth_bytes_per_s, host.latency_s
    if per_domain > per_host:
        rate = min(rate, domain.bandwidth_bytes_per_s)
        latency = domain.latency_s if per_host == 1 else max(latency, domain.latency_s)
    return Group(
        ranks=ranks,
        per_domain=per_domain,
        per_host=per_host,
        fabric_latency_s=latency,
        fabric_rate=rate,
        network_latency_s=network.latency_s,
        network_rate=network.bandwidth_bytes_per_s,
        network_half_bytes=network.half_size_bytes,
        fabric=network.fabric,
        pod_ranks=network.pod_hosts * per_host,
        oversubscription=network.oversubscription_ratio,
        mesh=host.mesh_ranks if per_domain == per_host else 0,
    )


def at_typical_latency(group: Group) -> Group:
    """The group on links with the latencies that are typical of its kind of network.

    A floor that was measured for one shape is carried over to another by the ratio of the floors
    that the law gives for both shapes. This ratio is taken at typical latencies. At the latencies
    of the system, a higher latency could make the wanted shape faster: it could raise the law's
    floor of the measured shape by a larger factor than that of the wanted shape, while the measured
    floor stays as it is.
    """
    kind = FABRICS.get(group.fabric)
    startup_s = kind.startup_s if kind is not None else _TYPICAL_LATENCY_S
    return group._replace(fabric_latency_s=_FABRIC_LATENCY_S, network_latency_s=startup_s)


def on_usual_link(group: Group, nominal_rate: float) -> Group:
    """The group on the usual network link of its kind, without pods that slow it.

    Args:
        group: the group; the rate of its own network link does not matter.
        nominal_rate: nominal rate of one rank's share of the network cards, in bytes per second and
            direction.
    """
    kind = FABRICS.get(group.fabric)
    rate = nominal_rate * (kind.efficiency_ratio if kind is not None else TYPICAL_EFFICIENCY)
    return at_typical_latency(group)._replace(
        network_rate=rate,
        network_half_bytes=half_size_of(kind.protocol_s, rate) if kind is not None else 0.0,
        pod_ranks=0,
        oversubscription=1.0,
    )
