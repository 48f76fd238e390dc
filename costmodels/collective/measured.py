"""``measured``: measured curves where there are some, and the law of links where there are none."""

from dataclasses import dataclass, field, replace
from typing import Self, final

import numpy as np

from costmodels.collective._catalogue import Catalogue, catalogue_of
from costmodels.collective._curve import Found, LinkModel, TimeCurve, Timed
from costmodels.collective._law import Law, bus_factor, group_of, group_of_peers
from costmodels.collective.base import Confidence
from costmodels.datatypes import FloatArray
from costmodels.measured.curves import Collective, CollectiveCurve
from costmodels.topology import Link, Links, Topology
from costmodels.units import format_rate, format_time


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(LinkModel):
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
        is_subadditive: whether each curve is replaced by the greatest one not above it whose time
            per byte never rises with size, as bounds need it.
        measured_on: the links that the curves hold for. On a system with other links they are
            rescaled. None for curves of the very system that is priced.

    Sources:
        Curves and their sources: configs/calibrations/collectives.csv
        nccl-tests doc/PERFORMANCE.md: bus bandwidth factors
    """

    curves: tuple[CollectiveCurve, ...] = ()
    is_subadditive: bool = False
    measured_on: Links | None = None
    _catalogue: Catalogue = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the curves."""
        object.__setattr__(self, "_catalogue", catalogue_of(self.curves))

    # -- times ----------------------------------------------------------------------------------

    def timed(self, kind: Collective, topology: Topology, *, within_host: bool = False) -> Timed:
        """The curve of a collective, or the law of its links if none is known."""
        group = group_of(topology, within_host=within_host)
        there = group_of(topology, within_host=within_host, links=self.measured_on)
        found = self._catalogue.find(kind, group, there)
        return self._table(found) or LinkModel.timed(self, kind, topology, within_host=within_host)

    def exchanged(
        self, send: FloatArray, topology: Topology
    ) -> tuple[Timed | None, Timed | None, float]:
        """Curves of fabric and network; laws of links for both if no curve tells the whole time."""
        group = group_of_peers(send, topology)
        there = group_of_peers(send, topology, self.measured_on)
        kind, find = Collective.ALL_TO_ALL, self._catalogue.find
        found = [find(kind, group.within_domain, there.within_domain)]
        found += [find(kind, group, there) if group.domains > 1 else None]
        if found[group.domains > 1] is None:
            return LinkModel.exchanged(self, send, topology)
        inside, across = map(self._table, found)
        longer_s = max(group.network_latency_s - there.network_latency_s, 0.0)
        return inside, across, longer_s * (group.domains > 1)

    def buffer_s(
        self, kind: Collective, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Seconds by the curve of the collective."""
        timed = self.timed(kind, topology, within_host=within_host)
        if isinstance(timed, Law):
            return LinkModel.buffer_s(self, kind, num_bytes, topology, within_host=within_host)
        ranks = group_of(topology, within_host=within_host).ranks
        return timed.time_s(np.asarray(num_bytes) * bus_factor(kind, ranks))

    def confidence(
        self, collective: Collective, size_bytes: float, topology: Topology
    ) -> Confidence:
        """Measured inside the range of a curve, extrapolated for other shapes, sizes and links."""
        group, then = group_of(topology), self.measured_on
        there = group_of(topology, links=then) if then else None
        known = self._catalogue.confidence(collective, group, size_bytes, there)
        return known or LinkModel.confidence(self, collective, size_bytes, topology)

    def remarks(self, topology: Topology) -> tuple[str, ...]:
        """Says which links differ from those that the curves were measured on."""
        then, now = self.measured_on, topology.links
        if topology.world_size == 1:
            return ()
        if then is None:
            # Curves without known links may have been measured over another network than this one.
            rates = self._catalogue.rates_of_other_links(group_of(topology))
            measured = " and ".join(map(format_rate, rates))
            own = format_rate(now.network.bandwidth_bytes_per_s)
            text = (
                f"links.network.bandwidth is {own}, and the curves of collectives were measured "
                f"over network links of {measured}: times between hosts are carried over from the "
                "nearest curve, so that a faster network may seem slower"
            )
            return (text,) if rates else ()
        world, domain, local = topology.world_size, topology.domain_size, topology.local_world_size
        crossed = ["host", *["domain"] * (min(domain, world) > local)]
        crossed += ["network"] * (world > domain and now.network.fabric == then.network.fabric)
        told = []
        for level in crossed:
            before, after = _shown(getattr(then, level)), _shown(getattr(now, level))
            told += [
                f"links.{level}.{key} is {after[key]} instead of {before[key]}"
                for key in after
                if after[key] != before[key]
            ]
        if not told:
            return ()
        return (
            "the measured curves of collectives were rescaled, so that their times are "
            f"extrapolated: {', '.join(told)} on the machine they were measured on",
        )

    def subadditive(self) -> Self:
        """The model whose curves are lowered where their time per byte rises with size."""
        return replace(self, is_subadditive=True)

    # -- private --------------------------------------------------------------------------------

    def _table(self, found: Found | None) -> TimeCurve | None:
        if found is None:
            return None
        return found.table.subadditive if self.is_subadditive else found.table


def _shown(link: Link) -> dict[str, str]:
    """The keys of a link that messages compare, with their values in words."""
    return {
        "bandwidth": format_rate(link.bandwidth_bytes_per_s),
        "latency": format_time(link.latency_s),
        "pods": f"{link.pod_hosts} hosts (oversubscription {link.oversubscription_ratio:g})",
    }
