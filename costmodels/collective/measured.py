"""``measured``: measured curves where there are some, and another model where there are none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from costmodels.collective._catalogue import Catalogue, catalogue_of
from costmodels.collective._curve import HALVES, Found, TimeCurve
from costmodels.collective._law import Group, bus_factor, busiest_bytes, group_of, group_of_peers
from costmodels.collective.base import AbstractCollectiveModel, Confidence, default_model
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.topology import Links, Topology
from costmodels.units import format_rate, format_time

_TYPICAL_BYTES: Final = 16.0 * 2**20
"""The size of an all-to-all by which the spread of a plan's exchanges is taken. It is that of the
pooled embeddings that a rank sends for some thousand samples."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(AbstractCollectiveModel):
    """Seconds over bytes on the busiest link, from one measured curve per collective and shape.

    Repeats of a shape are joined, with more weight on newer libraries. Times are made to rise with
    the size, and follow a scaled alpha-beta model between two points. Beyond the largest size, time
    is proportional to bytes. Times for a number of ranks that was not measured follow from measured
    numbers; times for another number of hosts follow from the curves and the law of link rates.

    The curves are of balanced messages. In an uneven all-to-all, the time of each rank is read at
    the bytes that it sends or receives, whichever are more, and the slowest rank ends it last. The
    network works beside the fabric. The growing part is bytes over the best rate of the curve,
    which is never above the curve.

    Args:
        curves: curves of this system (priority 0) and of like systems (higher priorities).
        otherwise: prices the collectives that no curve covers.
        is_subadditive: whether each curve is replaced by the greatest one not above it whose time
            per byte never rises with size, as bounds need it.
        measured_on: the links that the curves hold for. On a system with other links they are
            rescaled. None for curves of the very system that is priced.

    Sources:
        Curves and their sources: configs/calibrations/collectives.csv
        nccl-tests doc/PERFORMANCE.md: bus bandwidth factors
    """

    curves: tuple[CollectiveCurve, ...] = ()
    otherwise: AbstractCollectiveModel = field(default_factory=default_model)
    is_subadditive: bool = False
    measured_on: Links | None = None
    _catalogue: Catalogue = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the curves."""
        object.__setattr__(self, "_catalogue", catalogue_of(self.curves))

    # -- growing part ---------------------------------------------------------------------------

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Seconds of an empty all-to-all."""
        if ranks <= 1:
            return 0.0
        within = not across_hosts and ranks == topology.local_world_size
        found = self._find(Collective.ALL_TO_ALL, topology, within_host=within)
        if found is None:
            return self.otherwise.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)
        return found.table.law.floor_s

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Bytes over the best rate of the curve, on fabric and network side by side."""
        sides = self._sides(send, receive, topology)
        if sides is None:
            return self.otherwise.all_to_all(send, receive, topology)
        seconds = np.zeros(send.shape[:-1])
        for num_bytes, table in sides:
            if table is not None:
                seconds = np.maximum(seconds, num_bytes / table.law.rate)
        return seconds

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Bytes over the better of the best rates of reduce-scatter and all-gather."""
        rate = self._best_rate(HALVES, topology, within_host=within_host)
        if not rate:
            return self.otherwise.reduce_scatter(num_bytes, topology, within_host=within_host)
        ranks = group_of(topology, within_host=within_host).ranks
        return np.asarray(num_bytes * (bus_factor(Collective.REDUCE_SCATTER, ranks) / rate))

    def all_reduce(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool = False
    ) -> FloatArray:
        """Bytes over the best rate of the curve of all-reduce."""
        rate = self._best_rate((Collective.ALL_REDUCE,), topology, within_host=within_host)
        if not rate:
            return self.otherwise.all_reduce(num_bytes, topology, within_host=within_host)
        ranks = group_of(topology, within_host=within_host).ranks
        return np.asarray(num_bytes * (bus_factor(Collective.ALL_REDUCE, ranks) / rate))

    # -- times ----------------------------------------------------------------------------------

    def all_to_all_s(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """The curves at the bytes of each rank, on fabric and network side by side."""
        sides = self._sides(send, receive, topology)
        if sides is None:
            return self.otherwise.all_to_all_s(send, receive, topology)
        (fabric, inside), (network, across) = sides
        seconds = np.zeros_like(fabric)
        if inside is not None:
            group, there = self._peers(send, topology)
            hop_s = max(group.network_latency_s - there.network_latency_s, 0.0)
            seconds = self._read(inside, fabric) + hop_s * (group.domains > 1)
        if across is not None:
            seconds = np.maximum(seconds, self._read(across, network))
        return seconds

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds by the curve of the collective."""
        ranks = group_of(topology, within_host=within_host).ranks
        if ranks <= 1:
            return np.zeros_like(num_bytes)
        found = self._find(kind, topology, within_host=within_host)
        if found is None:
            return self.otherwise.buffer_s(kind, num_bytes, topology, within_host=within_host)
        return self._read(found.table, np.asarray(num_bytes) * bus_factor(kind, ranks))

    def confidence(
        self, collective: Collective, size_bytes: float, topology: Topology
    ) -> Confidence:
        """Measured inside the range of a curve, extrapolated for other shapes, sizes and links."""
        group, there = self._groups(topology)
        known = self._catalogue.confidence(collective, group, size_bytes, there)
        return known or self.otherwise.confidence(collective, size_bytes, topology)

    def plan_spread_ratio(self, topology: Topology) -> float | None:
        """The spread of an all-to-all of 16 MiB over all ranks; 0 for a single rank."""
        if topology.world_size == 1:
            return 0.0
        return self.confidence(Collective.ALL_TO_ALL, _TYPICAL_BYTES, topology).spread_ratio

    def remarks(self, topology: Topology) -> tuple[str, ...]:
        """Says which links differ from those that the curves were measured on."""
        then = self.measured_on
        if topology.world_size == 1:
            return ()
        if then is None:
            return self._remarks_on_own_curves(topology)
        world, domain, local = topology.world_size, topology.domain_size, topology.local_world_size
        same_kind = topology.network_link.fabric == then.network.fabric
        crossed = ["host", *["domain"] * (min(domain, world) > local)]
        crossed += ["network"] * (world > domain and same_kind)
        told = [text for name in crossed for text in _changed(name, then, topology.links)]
        if not told:
            return ()
        return (
            "the measured curves of collectives were rescaled, so that their times are "
            f"extrapolated: {', '.join(told)} on the machine they were measured on",
        )

    def subadditive(self) -> Measured:
        """The model whose curves are lowered where their time per byte rises with size."""
        return replace(self, otherwise=self.otherwise.subadditive(), is_subadditive=True)

    # -- private --------------------------------------------------------------------------------

    def _remarks_on_own_curves(self, topology: Topology) -> tuple[str, ...]:
        """Says if curves without known links were measured over another network than this one."""
        rates = self._catalogue.rates_of_other_links(group_of(topology))
        if not rates:
            return ()
        own = format_rate(topology.network_link.bandwidth_bytes_per_s)
        return (
            f"links.network.bandwidth is {own}, and the curves of collectives were measured over "
            f"network links of {' and '.join(map(format_rate, rates))}: times between hosts are "
            "carried over from the nearest curve, so that a faster network may seem slower",
        )

    def _read(self, table: TimeCurve, num_bytes: FloatArray) -> FloatArray:
        """Seconds for bytes on the busiest link."""
        return (table.subadditive if self.is_subadditive else table).time_s(num_bytes)

    def _find(
        self, collective: Collective, topology: Topology, *, within_host: bool
    ) -> Found | None:
        """The table of a collective over all ranks or those of one host; None if none is known."""
        return self._catalogue.find(collective, *self._groups(topology, within_host=within_host))

    def _groups(
        self, topology: Topology, *, within_host: bool = False
    ) -> tuple[Group, Group | None]:
        """The ranks on the links of the system, and on those of the curves if these differ."""
        then = self.measured_on
        there = group_of(topology, within_host=within_host, links=then) if then else None
        return group_of(topology, within_host=within_host), there

    def _best_rate(
        self, kinds: tuple[Collective, ...], topology: Topology, *, within_host: bool
    ) -> float:
        """The best rate of the curves of some collectives; 0 if none is known."""
        found = [self._find(kind, topology, within_host=within_host) for kind in kinds]
        return max((f.table.law.rate for f in found if f is not None), default=0.0)

    def _peers(self, send: FloatArray, topology: Topology) -> tuple[Group, Group]:
        """The ranks of an all-to-all, on the links of the system and on those of the curves."""
        return group_of_peers(send, topology), group_of_peers(send, topology, self.measured_on)

    def _sides(
        self, send: FloatArray, receive: FloatArray, topology: Topology
    ) -> tuple[tuple[FloatArray, TimeCurve | None], ...] | None:
        """Bytes and table of an all-to-all on the fabric and on the network.

        A table is None if the group does not use these links, or if no curve tells its time. All is
        None if :attr:`otherwise` has to price the all-to-all.
        """
        group, there = self._peers(send, topology)
        kind, find = Collective.ALL_TO_ALL, self._catalogue.find
        found = [find(kind, group.within_domain, there.within_domain)]
        found += [find(kind, group, there) if group.domains > 1 else None]
        if found[group.domains > 1] is None:
            return None
        tables = (f.table if f is not None else None for f in found)
        return tuple(zip(busiest_bytes(send, receive, topology, group), tables, strict=True))


def _changed(level: str, then: Links, now: Links) -> list[str]:
    """How a level of links differs from the one that was measured, in words; empty if not."""
    measured, link = getattr(then, level), getattr(now, level)
    told = [
        f"links.{level}.{key} is {words(getattr(link, name))} instead of "
        f"{words(getattr(measured, name))}"
        for key, name, words in (
            ("bandwidth", "bandwidth_bytes_per_s", format_rate),
            ("latency", "latency_s", format_time),
        )
        if getattr(link, name) != getattr(measured, name)
    ]
    pods, known = ((x.pod_hosts, x.oversubscription_ratio) for x in (link, measured))
    if pods != known:
        told.append(f"links.{level}.pods is (hosts, oversubscription) {pods} instead of {known}")
    return told
