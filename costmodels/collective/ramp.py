"""``ramp``: latency and bandwidth, with a slow rise from one to the other."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import final

import numpy as np

from costmodels.collective import _law
from costmodels.collective._law import Group, Law, bus_factor, group_of, group_of_peers
from costmodels.collective.base import AbstractCollectiveModel, analytic_spread_ratio
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective
from costmodels.topology import Topology

_HALF = Collective.REDUCE_SCATTER


@final
@dataclass(frozen=True, slots=True)
class Ramp(AbstractCollectiveModel):
    """t = (floor^q + (bytes / rate)^q)^(1/q) with q = 0.6, on the busiest link of each rank.

    Floor (seconds) and rate (bytes per second) follow from the levels of links, the collective and
    the number of ranks (``_law.py``). Over a network of a named kind, t follows the law of that
    kind instead (:mod:`costmodels.fabrics`). The growing part is bytes / rate, which is never above
    t.

    Valid for all sizes, also for empty messages. It is within 6 % of measured curves if floor and
    rate are right, and within some 10 to 30 % if they come from data sheets.

    Sources:
        Thakur, Rabenseifner, Gropp 2005: alpha-beta cost of collectives
        Softness q = 0.6: fit to the curves of configs/calibrations/collectives.csv
    """

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """The floor of an all-to-all, in seconds."""
        if ranks <= 1:
            return 0.0
        within = not across_hosts and ranks == topology.local_world_size
        return _law_of(Collective.ALL_TO_ALL, group_of(topology, within_host=within)).floor_s

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Bytes over rate on each rank's busiest link; the network works beside the fabric."""
        group = group_of_peers(send, topology)
        fabric, network = _law.busiest_bytes(send, receive, topology, group)
        fabric_s = fabric / _law_of(Collective.ALL_TO_ALL, group.within_domain).rate
        rate = group.network_rate / _law.crowding(Collective.ALL_TO_ALL, group)
        return np.maximum(fabric_s, network / rate)

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Bytes over the rate of a ring over the members."""
        group = group_of(topology, within_host=within_host)
        moved = num_bytes * bus_factor(_HALF, group.ranks)
        return np.asarray(moved / _law_of(_HALF, group).rate)

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Bytes over the rate of an all-reduce over the members."""
        group = group_of(topology, within_host=within_host)
        moved = num_bytes * bus_factor(Collective.ALL_REDUCE, group.ranks)
        return np.asarray(moved / _law_of(Collective.ALL_REDUCE, group).rate)

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """The slower of fabric and network, which work side by side."""
        group = group_of_peers(send, topology)
        fabric, network = _law.busiest_bytes(send, receive, topology, group)
        seconds = np.zeros_like(fabric)
        if group.per_domain > 1:
            seconds = _law_of(Collective.ALL_TO_ALL, group.within_domain).time_s(fabric)
        if group.domains > 1:
            law = _law_of(Collective.ALL_TO_ALL, group)
            seconds = np.maximum(seconds + group.network_latency_s, law.time_s(network))
        return seconds

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """No less than inside one domain, where both halves of an all-reduce agree with it.

        A ring over a single domain takes at least two fifths of the all-reduce of the same buffer,
        and the all-reduce at least 1 / 1.3 times as long as the reduce-scatter and the all-gather.
        """
        group, whole = group_of(topology, within_host=within_host), Collective.ALL_REDUCE
        is_whole = kind is whole
        own, other = (whole, _HALF) if is_whole else (_HALF, whole)
        own_s = _least_s(own, num_bytes, group)
        if group.domains > 1:
            return own_s
        least_ratio = 2.0 / _law.RATIO[1] if is_whole else 0.5 * _law.RATIO[0]
        return np.maximum(own_s, least_ratio * _least_s(other, num_bytes, group))

    def plan_spread_ratio(self, topology: Topology) -> float:
        """The spread of a time that follows from the rates of links alone."""
        return analytic_spread_ratio(topology)

    def subadditive(self) -> Ramp:
        """The model itself, because under its laws the time per byte never rises with size."""
        return self


def _least_s(collective: Collective, num_bytes: FloatArray, group: Group) -> FloatArray:
    """Seconds ``[...]`` of buffers in a group; no less than inside one domain."""
    parts = [part for part in (group.within_domain, group) if part.ranks > 1]
    times = (
        _law_of(collective, p).time_s(num_bytes * bus_factor(collective, p.ranks)) for p in parts
    )
    return functools.reduce(np.maximum, times, np.zeros_like(num_bytes))


@functools.lru_cache(maxsize=4096)
def _law_of(collective: Collective, group: Group) -> Law:
    """The law of a collective in a group, of which nothing was measured."""
    if group.domains > 1:
        law = _law.network_law(collective, group)
        if group.fabric:
            return law
        # No curve says how much of the latency one hop takes: here each hop takes all of it, and
        # there are at least as many hops as rounds in which every domain can be reached.
        inside_s = 0.5 * group.network_latency_s
        if group.per_domain > 1:
            inside_s = _law.fabric_law(collective, group).floor_s
        startups = _law.UNNAMED_RATIO * _law.crossings(collective, group)
        hops = max(_law.num_steps(collective, group.domains), startups)
        return law._replace(floor_s=inside_s + hops * group.network_latency_s)
    return _law.fabric_law(collective, group)
