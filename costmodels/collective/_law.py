"""The time of a collective from the links of its group.

The *floor* of a collective is the seconds that it takes without bytes. Its *rate* is what large
messages reach on the busiest link of a rank, in bytes per second. With x bytes on that link it
takes

    t = (floor^q + (x / rate)^q)^(1/q),  q = 0.6.

With q = 1 this is the alpha-beta model: latency plus bytes over bandwidth. Real collectives need
larger messages to reach their rate, because messages of medium size travel in small chunks and by
cheaper protocols. For half of 170 measured curves (NVLink 3 to 5, PCIe, xGMI, InfiniBand) the best
q is between 0.55 and 0.66. With q = 0.6 and the right floor and rate, the law follows the curves
within 6 %, both below and above 1 MiB. Networks of a named kind have a law of their own
(:mod:`costmodels.fabrics`).

A :class:`Group` is the ranks that take part in a collective, and the links between them.
"""

import functools
import math
from typing import Final, NamedTuple, Self

import numpy as np

from costmodels.collective.base import LinkLevel
from costmodels.datatypes import FloatArray
from costmodels.fabrics import FABRICS, UNNAMED, half_size_of
from costmodels.measured.curves import Collective
from costmodels.topology import Links, Topology

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
    def within_domain(self) -> Self:
        """The group of the members of one domain."""
        return self._replace(ranks=self.per_domain)

    @property
    def units(self) -> int:
        """How many domains the group spans; if it lies inside one domain, how many hosts."""
        return self.domains if self.domains > 1 else -(-self.ranks // self.per_host)

    def on_network_of(self, other: Self) -> Self:
        """The same ranks with their own fabric, on the network of another group."""
        network = ("fabric", "pod_ranks", "oversubscription")
        names = [n for n in self._fields if n.startswith("network_") or n in network]
        return self._replace(**{name: getattr(other, name) for name in names})

    def of_units(self, units: int) -> Self:
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
    startup_s = FABRICS.get(group.fabric, UNNAMED).startup_s
    return group._replace(fabric_latency_s=_FABRIC_LATENCY_S, network_latency_s=startup_s)


def on_usual_link(group: Group, nominal_rate: float) -> Group:
    """The group on the usual network link of its kind, without pods that slow it.

    Args:
        group: the group; the rate of its own network link does not matter.
        nominal_rate: nominal rate of one rank's share of the network cards, in bytes per second and
            direction.
    """
    kind = FABRICS.get(group.fabric, UNNAMED)
    rate = nominal_rate * kind.efficiency_ratio
    return at_typical_latency(group)._replace(
        network_rate=rate,
        network_half_bytes=half_size_of(kind.protocol_s, rate),
        pod_ranks=0,
        oversubscription=1.0,
    )


# ------------------ laws

_SOFTNESS: Final = 0.6
"""The exponent q of the law."""
RATIO: Final = (0.8, 1.3)
"""Inside a domain, a reduce-scatter and an all-gather of a buffer together take at least and at
most this many times as long as the all-reduce of the same buffer."""
_REFERENCE_RANKS: Final = 8
"""The number of ranks in a domain at which a link reaches the rate that the system states."""
_RATE_LOSS_PER_INVERSE_RANK: Final = 0.77
"""How much ln(rate) falls per unit of 1 / ranks - 1 / 8 with fewer ranks than 8. On NVSwitch hosts
2 ranks reach 0.75 of the bus bandwidth of 8."""
_ALL_REDUCE_GAIN: Final = 1.2
"""Bus bandwidth of an all-reduce over that of an all-to-all. NVSwitch hosts show 1.06 to 1.48."""
_FLOORS: Final = {
    Collective.ALL_TO_ALL: (1.0, 0.0),
    Collective.ALL_GATHER: (0.45, 0.5),
    Collective.REDUCE_SCATTER: (0.45, 0.5),
    Collective.ALL_REDUCE: (0.5, 0.67),
}
"""(a, b) of each collective: an empty one between n ranks of a domain takes a * n^b latencies of
the fabric, for n up to 8."""
_SMALLEST_FLOOR_S: Final = 1e-7
"""The floor in seconds on links without latency. It is above 0, because measured curves are carried
over to other shapes by the ratio of two floors."""
_PCIE_BYTES_PER_S: Final = 64e9
"""A fabric with at most this rate, in bytes per second and direction, is taken for PCIe: it is the
rate of PCIe 5.0 with 16 lanes. Among the shipped systems of GPUs, fabrics on PCIe reach 9 to 18
GB/s, and fabrics on NVLink or its like 120 GB/s and more."""
_FLOOR_PER_DOUBLING: Final = 0.35
"""Beyond 8 ranks, where trees take over, each doubling of the ranks in a domain adds this many
times b of ``_FLOORS`` to the floor, as a multiple of the floor of 8 ranks."""
_ALL_REDUCE_HOPS: Final = 0.6
"""Hops over a network of no named kind that each doubling of the domains adds to an all-reduce.
With more hops, small all-reduces over many hosts are predicted to take longer."""
_HOP: Final = 0.67
"""Share of the latency of a network of no named kind that one hop takes; the latency is that of a
whole small collective from start to end. With this share, all-reduces below 1 MiB over 2 to 32
hosts with A100 and V100 have the smallest mean logarithmic error. A100 alone gives 0.75, V100 alone
0.58 (``benchmarks/collectives.py``, hosts, prints the errors)."""

_FIRST_CROSSING: Final = 2.0
"""Start-ups of the network that a small collective over two domains takes."""
_PEERS_PER_STARTUP: Final = 3.0
"""A rank posts the messages of an all-to-all one after the other. So many messages to ranks of
other domains take as long as one start-up of the network. Small all-to-alls over 2 to 540 hosts
show 1 to 6 (ALCF Polaris with libfabric and with sockets, ALCF Sophia, Vultr B200, MI355X;
configs/calibrations/collectives.csv)."""
_STEPS_RATIO: Final = 0.5
"""Share of the time of a small ring inside one domain that its steps take; the rest is the time of
the kernel. A ring over several domains takes these steps once in each domain. Small all-gathers of
ALCF Polaris and Sophia over 2 to 540 hosts show 0.3 to 0.8."""
UNNAMED_RATIO: Final = 0.5
"""Hops over a network of no named kind that stand for one start-up of a network of a named kind."""
HALVES: Final = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
"""The collectives that together do what an all-reduce does."""
_PIPELINES: Final = {
    Collective.ALL_TO_ALL: 1.0,
    Collective.ALL_GATHER: 2.5,
    Collective.REDUCE_SCATTER: 2.5,
    Collective.ALL_REDUCE: 2.5,
}
"""How many times the protocol time of one message (:mod:`costmodels.fabrics`) a large collective
over two domains loses. Rings and trees lose more, because they pass a message on in pieces and each
piece waits for the one before (curves of B200 and MI355X, all-to-alls beside the other
collectives). Trees and all-to-alls lose this again with each doubling of the domains, rings with
every two domains."""


class Law(NamedTuple):
    """Floor, rate, and how fast time grows from one to the other.

    Attributes:
        floor_s: seconds without bytes.
        rate: bytes per second that large messages reach on the busiest link.
        protocol_s: seconds that large messages lose until their pipeline is full; small messages
            lose less, because they are sent by cheaper protocols. None if the kind of network is
            not known: the time then follows the law with q = 0.6.
    """

    floor_s: float
    rate: float
    protocol_s: float | None = None

    def time_s(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds ``[...]`` for bytes ``[...]`` on the busiest link of a rank.

        Bytes that are left when all shards were taken away again may be rounded to below 0.
        """
        x = np.maximum(np.asarray(num_bytes, dtype=float), 0.0) / self.rate
        if self.protocol_s is not None:
            lost = np.divide(x, x + self.protocol_s, out=np.zeros_like(x), where=x > 0.0)
            return np.asarray(self.floor_s + x + self.protocol_s * np.sqrt(lost))
        return np.asarray((self.floor_s**_SOFTNESS + x**_SOFTNESS) ** (1.0 / _SOFTNESS))

    @property
    def law(self) -> Self:
        """The law itself."""
        return self


def crowding(collective: Collective, group: Group) -> float:
    """How many times longer a rank's bytes take because pods share links above them; at least 1.

    The part of an all-to-all that leaves its pod shares the links above the pod. A ring or a tree
    crosses from one pod to the next with the network cards of one domain: it is slower only if the
    links above a pod carry less than these cards.
    """
    pod, above = group.pod_ranks, group.oversubscription
    if not pod or group.ranks <= pod:
        return 1.0
    if collective is Collective.ALL_TO_ALL:
        beyond = (group.ranks - pod) / (group.ranks - min(group.per_domain, pod))
        return max(1.0, above * beyond)
    return max(1.0, above * group.per_domain / pod)


def busiest_bytes(
    send: FloatArray, receive: FloatArray, topology: Topology, group: Group
) -> tuple[FloatArray, FloatArray]:
    """Bytes of each rank on the fabric and on the network, ``[..., R]`` each.

    Of sent and received bytes, the larger number counts on each level. Bytes inside the host and
    bytes to other hosts of the domain share the fabric. Each of them is first scaled from the rate
    of its own link to the rate of the fabric, and a byte to another host counts at least as much as
    one inside the host. If the fabric is PCIe (:func:`is_pcie`), the bytes on the network count on
    the fabric as well.

    Args:
        send: ``[..., R, NUM_LEVELS]`` bytes that each rank sends.
        receive: ``[..., R, NUM_LEVELS]`` bytes that each rank receives.
        topology: has the rates of the links.
        group: the ranks that take part.
    """
    busiest = np.maximum(send, receive)
    inside = group.fabric_rate / topology.host_link.bandwidth_bytes_per_s
    across = max(group.fabric_rate / topology.domain_link.bandwidth_bytes_per_s, inside)
    fabric = busiest[..., LinkLevel.HOST] * inside + busiest[..., LinkLevel.DOMAIN] * across
    network = busiest[..., LinkLevel.NETWORK]
    shares = group.per_domain > 1 and is_pcie(group.fabric_rate)
    return (fabric + network if shares else fabric), network


def is_pcie(fabric_rate: float) -> bool:
    """Whether a fabric of this rate, in bytes per second, is PCIe.

    Over PCIe a rank reaches its network card too. This is decided without the rate of the network:
    otherwise a faster network could make the bytes that leave a host count on the fabric as well,
    and so take longer.
    """
    return fabric_rate <= _PCIE_BYTES_PER_S


def bus_factor(collective: Collective, ranks: int) -> float:
    """Bytes on a rank's busiest link per byte of size (nccl-tests doc/PERFORMANCE.md)."""
    passes = 2.0 if collective is Collective.ALL_REDUCE else 1.0
    return passes * (ranks - 1) / ranks


def busiest_factor(collective: Collective, group: Group) -> float:
    """Bytes on the link that limits a collective, per byte of size.

    For an all-to-all over several domains these are the bytes between domains; for all other
    collectives they are those of :func:`bus_factor`.
    """
    if collective is Collective.ALL_TO_ALL and group.domains > 1:
        return (group.ranks - group.per_domain) / group.ranks
    return bus_factor(collective, group.ranks)


def num_steps(collective: Collective, domains: int) -> int:
    """The least number of network hops from domain to domain that follow one another.

    An all-to-all sends everything at once, in one hop. With the other collectives each hop can at
    most double the number of domains that have been reached.
    """
    if domains <= 1:
        return 0
    return 1 if collective is Collective.ALL_TO_ALL else math.ceil(math.log2(domains))


def longer_s(collective: Collective, there: Group, here: Group) -> float:
    """Seconds that the longer latencies of ``here`` add to a collective of any size; at least 0.

    They are those of one hop on the fabric, and of one hop for each step over the network.

    Args:
        collective: the collective.
        there: the group on the links that were measured.
        here: the same ranks on the links that are asked for.
    """
    fabric_s = max(here.fabric_latency_s - there.fabric_latency_s, 0.0) * (here.per_domain > 1)
    network_s = max(here.network_latency_s - there.network_latency_s, 0.0)
    return fabric_s + network_s * num_steps(collective, here.domains)


def fabric_law(collective: Collective, group: Group) -> Law:
    """The law of a collective between the members of one domain of the group."""
    ranks = group.per_domain
    floor, rate = fabric_scale(collective, ranks, group.mesh)
    return Law(max(floor * group.fabric_latency_s, _SMALLEST_FLOOR_S), group.fabric_rate * rate)


def fabric_scale(collective: Collective, ranks: int, mesh: int) -> tuple[float, float]:
    """Floor over the latency of the fabric, and rate over the rate of the fabric.

    Some ranks of a mesh reach only the links between them.
    """
    scale, power = _FLOORS[collective]
    floor = scale * min(ranks, _REFERENCE_RANKS) ** power
    floor *= 1.0 + _FLOOR_PER_DOUBLING * power * max(0.0, math.log2(ranks / _REFERENCE_RANKS))
    lost = max(0.0, 1.0 / ranks - 1.0 / _REFERENCE_RANKS) * _RATE_LOSS_PER_INVERSE_RANK
    gain = _ALL_REDUCE_GAIN if collective is Collective.ALL_REDUCE else 1.0
    if mesh:
        return floor, gain * min(1.0, max(ranks - 1, 1) / (mesh - 1))
    return floor, gain * math.exp(-lost)


def network_law(collective: Collective, group: Group, fabric: Law | None = None) -> Law:
    """The law of a collective over several domains.

    A ring (all-gather, reduce-scatter) runs at the rate of the fabric, or at that of all network
    links of a domain together if these are slower. An all-reduce reduces inside each domain,
    exchanges the result over the network, and spreads it inside each domain; these steps overlap.
    In an all-to-all each rank sends over its own link what leaves the domain.

    Args:
        collective: the collective.
        group: ranks in at least two domains.
        fabric: the law of the same collective inside a domain, for example from a measured curve;
            None to take it from the links.
    """
    fabric = fabric or fabric_law(collective, group)
    floor, protocol = _network_floor_s(collective, group, fabric)
    rate = group.network_rate / crowding(collective, group)
    if collective is not Collective.ALL_TO_ALL:
        rate, domains = group.per_domain * rate, group.domains
        if collective is Collective.ALL_REDUCE:
            rate *= bus_factor(collective, group.ranks) * domains / (2.0 * (domains - 1))
        rate = min(fabric.rate if group.per_domain > 1 else math.inf, rate)
    return Law(floor, rate, protocol)


def _network_floor_s(
    collective: Collective, group: Group, fabric: Law
) -> tuple[float, float | None]:
    """Floor, and seconds lost to protocols (``Law.protocol_s``), over several domains.

    Args:
        collective: the collective.
        group: ranks in at least two domains.
        fabric: the law of the collective inside a domain.
    """
    inside = fabric.floor_s
    if collective in HALVES:
        inside *= 1.0 + _STEPS_RATIO * (group.domains - 1.0)
    startups = crossings(collective, group)
    if not group.fabric:
        hops = UNNAMED_RATIO * startups
        if collective is Collective.ALL_REDUCE:
            hops = _ALL_REDUCE_HOPS * math.log2(group.domains)
        if group.per_domain == 1:
            inside = 0.5 * group.network_latency_s
        return max(inside + hops * _HOP * group.network_latency_s, _SMALLEST_FLOOR_S), None
    if group.per_domain == 1:
        inside = 0.0
    floor = max(inside + startups * group.network_latency_s, _SMALLEST_FLOOR_S)
    message_s = group.network_half_bytes / half_size_of(1.0, group.network_rate)
    rounds = 0.5 * group.domains if collective in HALVES else math.ceil(math.log2(group.domains))
    return floor, rounds * _PIPELINES[collective] * message_s


def crossings(collective: Collective, group: Group) -> float:
    """How many start-ups of the network follow one another in a small collective.

    A ring crosses from each domain to the next. In an all-to-all a rank sends a message to every
    rank of another domain. An all-reduce runs along a tree, which becomes one step deeper with each
    doubling of the domains.
    """
    if collective in HALVES:
        return float(group.domains)
    if collective is Collective.ALL_TO_ALL:
        return max(_FIRST_CROSSING, (group.ranks - group.per_domain) / _PEERS_PER_STARTUP)
    return _FIRST_CROSSING + math.ceil(math.log2(group.domains)) - 1.0


@functools.lru_cache(maxsize=4096)
def law_of(collective: Collective, group: Group) -> Law:
    """The law of a collective in a group, of which nothing was measured."""
    if group.domains == 1:
        return fabric_law(collective, group)
    law = network_law(collective, group)
    if group.fabric:
        return law
    # No curve says how much of the latency one hop takes: here each hop takes all of it, and there
    # are at least as many hops as rounds in which every domain can be reached.
    inside_s = 0.5 * group.network_latency_s
    if group.per_domain > 1:
        inside_s = fabric_law(collective, group).floor_s
    hops = max(num_steps(collective, group.domains), UNNAMED_RATIO * crossings(collective, group))
    return law._replace(floor_s=inside_s + hops * group.network_latency_s)
