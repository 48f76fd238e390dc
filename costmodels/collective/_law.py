"""What links allow: latency and rate of a collective, and how time grows from one to the other.

A collective of x bytes on its busiest link takes

    t = (floor^q + (x / rate)^q)^(1/q),  q = 0.6.

With q = 1 this is alpha-beta. Real collectives reach their rate far later: with messages in the
middle they run in small chunks and cheaper protocols. Of 170 measured curves (NVLink 3 to 5, PCIe,
xGMI, InfiniBand) the best q lies between 0.55 and 0.66 for half, and q = 0.6 follows them within
6 % on either side of 1 MiB once floor and rate are right.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from costmodels.collective.base import Collective, Level
from costmodels.datatypes import FloatArray
from costmodels.fabrics import FABRICS, half_size_of, protocol_of
from costmodels.topology import Links, Topology

_SOFTNESS: Final = 0.6
RATIO: Final = (0.8, 1.3)
"""Reduce-scatter plus all-gather over the all-reduce of the same buffer, inside a domain."""
_REFERENCE_RANKS: Final = 8
_RATE_LOSS_PER_INVERSE_RANK: Final = 0.77
"""ln of the bus bandwidth against 1 / ranks: 2 ranks reach 0.75 of what 8 do (NVSwitch hosts)."""
_ALL_REDUCE_GAIN: Final = 1.2
"""Bus bandwidth of an all-reduce over that of an all-to-all: 1.06 to 1.48 on NVSwitch hosts."""
_FLOORS: Final = {
    Collective.ALL_TO_ALL: (1.0, 0.0),
    Collective.ALL_GATHER: (0.45, 0.5),
    Collective.REDUCE_SCATTER: (0.45, 0.5),
    Collective.ALL_REDUCE: (0.5, 0.67),
}
"""Empty collective over n ranks: a n^b latencies of the fabric, up to 8 ranks."""
_SMALLEST_FLOOR_S: Final = 1e-7
_PCIE_BYTES_PER_S: Final = 64e9
"""Rate of PCIe 5.0 with 16 lanes, in bytes per second and direction. Among the shipped systems a
fabric on PCIe reaches 9 to 18 GB/s, and one on NVLink or its like 120 GB/s and more."""
_FLOOR_PER_DOUBLING: Final = 0.35
"""Growth of the floor per doubling beyond 8 ranks, where trees take over."""
_ALL_REDUCE_HOPS: Final = 0.6
"""Hops over an unnamed network that each doubling of the domains adds to an all-reduce."""
_HOP: Final = 0.67
"""Share of a network's latency that a hop takes, since the latency is that of a whole small
collective, start to end. With it all-reduces below 1 MiB over 2 to 32 hosts with A100 and V100 have
the smallest mean logarithmic error; A100 alone gives 0.75, V100 alone 0.58
(``benchmarks/collectives.py``, hosts, prints the errors)."""

_FIRST_CROSSING: Final = 2.0
"""Start-ups of a network's kind from one domain to two."""
_PEERS_PER_STARTUP: Final = 3.0
"""Messages of an all-to-all to ranks of other domains that take as long as one start-up; a rank
posts them one after the other. Small all-to-alls over 2 to 540 hosts show 1 to 6 (ALCF Polaris
with libfabric and with sockets, ALCF Sophia, Vultr B200, MI355X;
configs/calibrations/collectives.csv)."""
_STEPS_RATIO: Final = 0.5
"""Share of a small ring's time inside a domain that its steps take; the rest is that of a kernel.
A ring of several domains takes these steps in each. Small all-gathers of ALCF Polaris and Sophia
over 2 to 540 hosts show 0.3 to 0.8."""
UNNAMED_RATIO: Final = 0.5
"""Hops over an unnamed network, each of ``_HOP`` of its latency, for a start-up of a named one."""
TYPICAL_EFFICIENCY: Final = 0.82
"""Achieved over nominal rate of tuned fabrics: all-gather and all-reduce of two hosts."""
_TYPICAL_LATENCY_S: Final = 25e-6
"""Latency of networks whose kind is not named: 25 or 30 us among the shipped systems."""
_FABRIC_LATENCY_S: Final = 10e-6
"""Latency inside a domain where no curve tells it: 8 to 17 us among hosts with NVLink."""
_RINGS: Final = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
_PIPELINES: Final = {
    Collective.ALL_TO_ALL: 1.0,
    Collective.ALL_GATHER: 2.5,
    Collective.REDUCE_SCATTER: 2.5,
    Collective.ALL_REDUCE: 2.5,
}
"""Protocol times of one message that a collective over two domains loses: rings and trees pass a
message on in pieces, each of which waits for the one before (B200 and MI355X, all-to-all beside the
others). Trees and all-to-alls lose as much with each doubling, rings with every two domains."""


class Group(NamedTuple):
    """Who takes part, and over which links; rates in bytes per second, per rank and direction.

    ``per_domain`` ranks of the group share a fabric, ``per_host`` of them a host. Those of
    different domains meet on the network, where every rank has a link of its own. ``pod_ranks`` of
    them share a pod, 0 where there are none.
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

    @property
    def domains(self) -> int:
        """Scale-up domains that the group spans."""
        return -(-self.ranks // self.per_domain)

    @property
    def within_domain(self) -> Group:
        """The members of one domain as a group."""
        return self._replace(ranks=self.per_domain)

    @property
    def units(self) -> int:
        """Domains that the group spans, or hosts where there is one domain."""
        return self.domains if self.domains > 1 else -(-self.ranks // self.per_host)

    def on_network_of(self, other: Group) -> Group:
        """The members, with their own fabric, on the network of another group."""
        return self._replace(
            network_latency_s=other.network_latency_s,
            network_rate=other.network_rate,
            network_half_bytes=other.network_half_bytes,
            fabric=other.fabric,
            pod_ranks=other.pod_ranks,
            oversubscription=other.oversubscription,
        )

    def of_units(self, units: int) -> Group:
        """A group of so many of them, each as large."""
        if self.domains > 1:
            return self._replace(ranks=units * self.per_domain)
        return self._replace(ranks=units * self.per_host, per_domain=units * self.per_host)


class Law(NamedTuple):
    """Floor in seconds, and rate in bytes per second on the busiest link.

    ``protocol_s`` says how slowly the rate is reached where the kind of network tells it: the
    seconds that large messages lose to filling the pipeline, of which small ones, which are sent
    by cheaper protocols, lose a part.
    """

    floor_s: float
    rate: float
    protocol_s: float | None = None

    def time_s(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds for bytes on the busiest link."""
        x = np.asarray(num_bytes, dtype=float) / self.rate
        if self.protocol_s is not None:
            lost = np.divide(x, x + self.protocol_s, out=np.zeros_like(x), where=x > 0.0)
            return np.asarray(self.floor_s + x + self.protocol_s * np.sqrt(lost))
        return np.asarray((self.floor_s**_SOFTNESS + x**_SOFTNESS) ** (1.0 / _SOFTNESS))


def group_of(topology: Topology, *, within_host: bool = False, links: Links | None = None) -> Group:
    """All ranks, or those of one host; on other links than the system's if given."""
    local = topology.local_world_size
    ranks = local if within_host else topology.world_size
    per_domain = min(ranks, topology.domain_size)
    return _group(links or topology.links, ranks, per_domain, min(ranks, local))


def group_of_peers(send: FloatArray, topology: Topology, links: Links | None = None) -> Group:
    """Who exchanges ``send``, ``[..., R, levels]``: all ranks, or one rank of each host."""
    hosts = topology.num_hosts
    if send.shape[-2] == topology.world_size:
        return group_of(topology, links=links)
    per_domain = min(hosts, topology.domain_size // topology.local_world_size)
    return _group(links or topology.links, hosts, per_domain, 1)


def _group(links: Links, ranks: int, per_domain: int, per_host: int) -> Group:
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
    )


def at_typical_latency(group: Group) -> Group:
    """The group on links with the latencies that are typical of its kind of network.

    How much a measured floor changes with the shape is the ratio of two floors of the law at these
    latencies. With those of the system's links instead, a shape would become faster when a latency
    rises that the measured shape feels more, because the measured floor stays as it is.
    """
    kind = FABRICS.get(group.fabric)
    startup_s = kind.startup_s if kind is not None else _TYPICAL_LATENCY_S
    return group._replace(fabric_latency_s=_FABRIC_LATENCY_S, network_latency_s=startup_s)


def on_usual_link(group: Group, nominal_rate: float) -> Group:
    """The group on the link that its kind of network has, over cards that nothing else slows.

    Args:
        group: its own link to the network does not matter.
        nominal_rate: of a rank's part of the cards, in bytes per second and direction.
    """
    kind = FABRICS.get(group.fabric)
    rate = nominal_rate * (kind.efficiency_ratio if kind is not None else TYPICAL_EFFICIENCY)
    return at_typical_latency(group)._replace(
        network_rate=rate,
        network_half_bytes=half_size_of(kind.protocol_s, rate) if kind is not None else 0.0,
        pod_ranks=0,
        oversubscription=1.0,
    )


def crowding(collective: Collective, group: Group) -> float:
    """How many times longer a rank's bytes take on the network because of links above pods.

    What an all-to-all sends beyond the pod goes through its share of those. A ring or tree crosses
    from pod to pod with the cards of one domain, which slows it where the links above a pod carry
    less than these.
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
    """Bytes on the fabric and on the network in the busier direction, ``[..., R]`` each.

    Those to other hosts of a domain share the fabric with those inside the host; each counts by
    the time of its own link, and those to other hosts as much as those inside at least. Where the
    fabric is PCIe, see :func:`is_pcie`, all bytes count there.
    """
    busiest = np.maximum(send, receive)
    inside = group.fabric_rate / topology.host_link.bandwidth_bytes_per_s
    across = max(group.fabric_rate / topology.domain_link.bandwidth_bytes_per_s, inside)
    fabric = busiest[..., Level.HOST] * inside + busiest[..., Level.DOMAIN] * across
    network = busiest[..., Level.NETWORK]
    shares = group.per_domain > 1 and is_pcie(group.fabric_rate)
    return (fabric + network if shares else fabric), network


def is_pcie(fabric_rate: float) -> bool:
    """Whether a fabric of this rate, in bytes per second, is PCIe, which leads to the network too.

    The rate of the network does not matter: with a faster network the bytes that leave a host would
    otherwise begin to count on the fabric as well, and take longer.
    """
    return fabric_rate <= _PCIE_BYTES_PER_S


def bus_factor(collective: Collective, ranks: int) -> float:
    """Bytes on the busiest link per byte of size (nccl-tests doc/PERFORMANCE.md)."""
    passes = 2.0 if collective is Collective.ALL_REDUCE else 1.0
    return passes * (ranks - 1) / ranks


def busiest_factor(collective: Collective, group: Group) -> float:
    """Bytes that set the pace per byte of size: of an all-to-all over domains, those between."""
    if collective is Collective.ALL_TO_ALL and group.domains > 1:
        return (group.ranks - group.per_domain) / group.ranks
    return bus_factor(collective, group.ranks)


def num_steps(collective: Collective, domains: int) -> int:
    """Network hops that follow one another at least, from domain to domain.

    An all-to-all sends everything at once; the others reach every domain in as many rounds as it
    doubles from one to all.
    """
    if domains <= 1:
        return 0
    return 1 if collective is Collective.ALL_TO_ALL else math.ceil(math.log2(domains))


def longer_s(collective: Collective, there: Group, here: Group) -> float:
    """Seconds that longer latencies add to every collective, whatever its size; at least 0.

    One hop of the fabric, and one of the network for each step over it.
    """
    fabric_s = max(here.fabric_latency_s - there.fabric_latency_s, 0.0) * (here.per_domain > 1)
    network_s = max(here.network_latency_s - there.network_latency_s, 0.0)
    return fabric_s + network_s * num_steps(collective, here.domains)


def fabric_law(collective: Collective, group: Group) -> Law:
    """A group inside one domain."""
    ranks = group.per_domain
    floor, rate = _fabric_scale(collective, ranks)
    return Law(max(floor * group.fabric_latency_s, _SMALLEST_FLOOR_S), group.fabric_rate * rate)


def fabric_growth(collective: Collective, known: int, ranks: int) -> tuple[float, float]:
    """Factors on floor and rate from one number of ranks in a domain to another."""
    floor, rate = _fabric_scale(collective, ranks)
    known_floor, known_rate = _fabric_scale(collective, known)
    return floor / known_floor, rate / known_rate


def _fabric_scale(collective: Collective, ranks: int) -> tuple[float, float]:
    scale, power = _FLOORS[collective]
    floor = scale * min(ranks, _REFERENCE_RANKS) ** power
    floor *= 1.0 + _FLOOR_PER_DOUBLING * power * max(0.0, math.log2(ranks / _REFERENCE_RANKS))
    lost = max(0.0, 1.0 / ranks - 1.0 / _REFERENCE_RANKS) * _RATE_LOSS_PER_INVERSE_RANK
    gain = _ALL_REDUCE_GAIN if collective is Collective.ALL_REDUCE else 1.0
    return floor, gain * math.exp(-lost)


def network_law(collective: Collective, group: Group, fabric: Law | None = None) -> Law:
    """A group over several domains.

    Rings (all-gather, reduce-scatter) run at the pace of the fabric or of a domain's network links
    together. An all-reduce reduces inside, exchanges over the network, and spreads inside; the
    steps overlap. An all-to-all sends what leaves the domain over each rank's own link.

    Args:
        collective: which.
        group: spans at least two domains.
        fabric: the same collective inside a domain, where that is known better than from links.
    """
    if fabric is None:
        fabric = fabric_law(collective, group)
    floor, protocol = _network_floor_s(collective, group, fabric)
    if collective is Collective.ALL_TO_ALL:
        return Law(floor, group.network_rate / crowding(collective, group), protocol)
    together = group.per_domain * group.network_rate / crowding(collective, group)
    inner = fabric.rate if group.per_domain > 1 else math.inf
    if collective is Collective.ALL_REDUCE:
        domains = group.domains
        outer = together * bus_factor(collective, group.ranks) * domains / (2.0 * (domains - 1))
        return Law(floor, min(inner, outer), protocol)
    return Law(floor, min(inner, together), protocol)


def _network_floor_s(
    collective: Collective, group: Group, fabric: Law
) -> tuple[float, float | None]:
    """Floor, and the protocol's time where the kind of network is known."""
    inside = fabric.floor_s
    if collective in _RINGS:
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
    message_s = protocol_of(group.network_half_bytes, group.network_rate)
    rounds = 0.5 * group.domains if collective in _RINGS else math.ceil(math.log2(group.domains))
    return floor, rounds * _PIPELINES[collective] * message_s


def crossings(collective: Collective, group: Group) -> float:
    """Start-ups of the network that follow one another in a small collective.

    A ring crosses from every domain to the next. An all-to-all has a message for every rank of
    another domain. A tree, which an all-reduce takes, becomes one step deeper with each doubling.
    """
    if collective in _RINGS:
        return float(group.domains)
    if collective is Collective.ALL_TO_ALL:
        return max(_FIRST_CROSSING, (group.ranks - group.per_domain) / _PEERS_PER_STARTUP)
    return _FIRST_CROSSING + math.ceil(math.log2(group.domains)) - 1.0
