"""Finds the measured curve that tells the time of a collective in a group of ranks.

If there is no curve of the group's shape on the group's links, the nearest one is carried over to
them.

How far to trust what is found: all spreads are 90 % spreads as in
:class:`costmodels.collective.base.Confidence`. Messages below 1 MiB are small: constants with two
values have the one for small messages first and the one for large messages second.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from costmodels.collective import _curve, _law
from costmodels.collective._curve import RINGS, Family, Found, TimeCurve
from costmodels.collective._law import Group, Law, busiest_factor
from costmodels.collective.base import Basis, Confidence
from costmodels.fabrics import FABRICS, UNNAMED
from costmodels.measured.curves import Collective, CollectiveCurve

_PLAUSIBLE: Final = (0.6, 1.3)
"""The least and the greatest ratio of measured to expected rate that is carried over to another
network. Ratios beyond these limits say more of the measured cluster than of the collective."""
_MIRRORED: Final = {
    Collective.ALL_GATHER: Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER: Collective.ALL_GATHER,
}
"""The collective whose curve stands in for one that was not measured. Wherever both were measured,
their times are within 5 % of each other."""
_DOUBLINGS_BY_LAW: Final = 45
"""A table that is made from the law has one point at each power of two from 1 byte to 16 TiB."""


class Catalogue:
    """The measured curves of one system, by which times in any group of ranks are found."""

    def __init__(self, curves: Sequence[CollectiveCurve]) -> None:
        """Keep the curves. The table for a group is made when it is first asked for."""
        self._curves = tuple(curves)
        self._known: dict[tuple[tuple[Collective, ...], Group, Group | None], Family] = {}

    def find(
        self, collective: Collective, group: Group, there: Group | None = None
    ) -> Found | None:
        """The time of a collective in a group as a table over bytes; None if no curve tells it.

        Args:
            collective: the collective.
            group: the ranks that take part, on the links of the system.
            there: the same ranks on the links that the curves were measured on; None if the curves
                hold for the links of the system. If its network is of another kind than the
                group's, no curve over it is used: curves over the group's own kind are, or the law.
        """
        family = RINGS if collective in RINGS else (collective,)
        there = self._of_own_kind(group, there)
        return self._family(family, group, None if there == group else there).get(collective)

    def confidence(
        self, collective: Collective, group: Group, size_bytes: float, there: Group | None = None
    ) -> Confidence | None:
        """What a time rests on, and its interval; None if no curve tells the time.

        The time is measured inside the range of a curve of the group's shape and links, and
        extrapolated for other shapes, sizes and links.

        Args:
            collective: the collective.
            group: the ranks that take part.
            size_bytes: size as nccl-tests counts it.
            there: as in :meth:`find`; given if the curves were measured at another site, on other
                machines.
        """
        on_kind = self._of_own_kind(group, there)
        found = self.find(collective, group, on_kind)
        if found is None:
            return None
        known = on_kind if on_kind is not None and found.other_links else group

        measured = self.find(collective, known) or found
        own = confidence_of(found, group, size_bytes, measured, busiest_factor(collective, known))
        if there is None or group.domains > 1:
            return own
        # At another site a single process of each host may have started the ranks.
        moved = np.array(size_bytes * busiest_factor(collective, group))
        launched = group.per_host * _LAUNCH_S / max(float(found.table.time_s(moved)), _LAUNCH_S)
        site = math.log1p(_OTHER_SITE[bool(size_bytes >= _LARGE_BYTES)])
        spread = math.expm1(math.hypot(math.log1p(own.spread_ratio), site))
        return own._replace(spread_ratio=max(spread, launched - 1.0))

    def _family(self, *key: *tuple[tuple[Collective, ...], Group, Group | None]) -> Family:
        """:meth:`_settled`, kept for later calls."""
        if key not in self._known:
            self._known[key] = self._settled(*key)
        return self._known[key]

    def _of_own_kind(self, group: Group, there: Group | None) -> Group | None:
        """``there``, but on a network of the group's kind if its own network is of another kind.

        That is the network link that the curves of the kind have. Of the curves over the kind,
        those with the lowest priority number count, and among them the one with the fastest link.
        The link of the group itself does not matter. The choice between curves therefore stays the
        same when only a link of the group changes, and a faster link never leads to curves of a
        slower network. If no curve is of that kind, the rate is 0: the time then follows from the
        law of the group's own link.
        """
        if there is None or there.fabric == group.fabric:
            return there
        curves = self._crossing(group)
        known = [(-c.priority, c.network_bytes_per_s) for c in curves if c.network_bytes_per_s]
        usual = group if curves else group._replace(network_rate=0.0)
        if known:
            usual = _law.on_usual_link(group, max(known)[1])
        return there.on_network_of(usual)

    def rates_of_other_links(self, group: Group) -> tuple[float, ...]:
        """Nominal rates of the network links that were measured, if none is like the group's link.

        Returns:
            Bytes per second in rising order; empty if one of the links is like that of the group,
            or if the group lies inside one domain.
        """
        curves = self._crossing(group) if group.domains > 1 else []
        if any(is_on_like_link(c, group) for c in curves):
            return ()
        return tuple(sorted({c.network_bytes_per_s for c in curves}))

    def _crossing(self, group: Group) -> list[CollectiveCurve]:
        """Curves over a network of the group's kind, or if either kind is not known, over any."""
        kinds = ("", group.fabric)
        return [
            c for c in self._curves if c.domains > 1 and (not group.fabric or c.fabric in kinds)
        ]

    def _settled(self, family: tuple[Collective, ...], group: Group, there: Group | None) -> Family:
        """The tables of collectives that have to agree with one another, and with fewer domains."""
        if group.ranks <= 1:
            return {}
        fewer, more = self._neighbours(group)
        # A rate of 0 says that no curve is of the group's kind of network. ``origin`` is the group
        # whose table is carried over to the group's links; None to read the curves themselves.
        by_law = there is not None and group.domains > 1 and not there.network_rate
        origin = None if by_law else there
        if more is not None and origin is None:
            groups = (group.of_units(fewer), group, group.of_units(more))
            low, high = (
                self._family(family, group.of_units(n), there and there.of_units(n))
                for n in (fewer, more)
            )
            part = math.log(group.units / fewer) / math.log(more / fewer)
            return _curve.mixed(low, high, groups, part)
        searched = {
            c: self._carried_over(c, group, origin) if origin else self._measured(c, group, there)
            for c in family
        }
        found = {c: f for c, f in searched.items() if f is not None}
        if family == RINGS and origin is None:
            found = _curve.agreed(_curve.completed(found, group), group)
        if fewer == 0:
            return found
        below = group.of_units(fewer)
        known = self._family(family, below, there and there.of_units(fewer))
        return _curve.risen(found, group, known, below)

    def _neighbours(self, group: Group) -> tuple[int, int | None]:
        """The anchors just below and just above the number of domains (or hosts) of a group.

        Anchors are the powers of two, and the numbers of domains that were measured with as many
        ranks per domain. The times of all other numbers lie between those of two anchors, so that
        more domains never take less time.

        Returns:
            The anchor below, 0 if there is none; and the anchor above, None if the number of the
            group is an anchor itself.
        """
        wanted = group.units
        if wanted == 1:
            return 0, None
        crossing = group.domains > 1
        measured = {
            c.domains for c in self._curves if crossing and c.ranks == c.domains * group.per_domain
        }
        power = 1 << (wanted - 1).bit_length()
        below = max({power >> 1} | {d for d in measured if d < wanted})
        if wanted == power or wanted in measured:
            return below, None
        return below, min({power} | {d for d in measured if d > wanted})

    def _carried_over(self, collective: Collective, group: Group, there: Group) -> Found | None:
        """The table on the links of ``there``, carried over to the links of the group."""
        found = self.find(collective, there)
        if found is None:
            return None
        known, law = _law.fabric_law(collective, there), _law.fabric_law(collective, group)
        if group.domains > 1:
            inside = self.find(collective, there.within_domain)
            here = self.find(collective, group.within_domain, there.within_domain)
            known = _law.network_law(collective, there, inside.table.law if inside else None)
            law = _law.network_law(collective, group, here.table.law if here else None)
        longer = _law.longer_s(collective, there, group)
        if law == known and longer == 0.0:
            return found
        return found._replace(table=found.table.on_link(known, law, longer), other_links=True)

    def _measured(self, collective: Collective, group: Group, there: Group | None) -> Found | None:
        """The table for the links of the group, from curves that hold for them.

        Args:
            collective: the collective; if it was not measured, its counterpart stands in for it.
            group: the ranks that take part.
            there: the same ranks on the links that the curves inside a domain were measured on;
                None if these curves hold for the links of the group.
        """
        for one in filter(None, (collective, _MIRRORED.get(collective))):
            inside = group.domains == 1
            found = self._inside(one, group) if inside else self._across(one, group, there)
            if found is not None:
                return found if one is collective else found._replace(same_shape=False)
        return None

    def _inside(self, collective: Collective, group: Group) -> Found | None:
        """The table inside one domain, from the curves with the lowest priority number."""
        curves = best([c for c in self._curves if c.collective is collective and c.domains == 1])
        if not curves:
            return None
        numbers = {c.ranks for c in curves}
        by_ranks = {n: tuple(c for c in curves if c.ranks == n) for n in numbers}
        floor_s = _law.fabric_law(collective, group).floor_s
        tables = {
            ranks: _curve.joined(repeats, _law.bus_factor(collective, ranks), floor_s)
            for ranks, repeats in by_ranks.items()
        }
        if group.ranks in tables:
            return Found(tables[group.ranks], by_ranks[group.ranks], same_shape=True)
        table = _curve.between(tables, collective, group.ranks, group.mesh)
        return Found(table, curves, same_shape=False)

    def _across(self, collective: Collective, group: Group, there: Group | None) -> Found | None:
        """The table over several domains, carried over from the nearest shape by the law.

        If no curve crosses the network, it is made from the law and the curves inside a domain.
        """
        curves = [c for c in self._crossing(group) if c.collective is collective]
        if not curves:
            fabric = self.find(collective, group.within_domain, there and there.within_domain)
            if fabric is None:
                return None
            law = _law.network_law(collective, group, fabric.table.law)
            log_bytes = np.arange(float(_DOUBLINGS_BY_LAW)) * math.log(2.0)
            table = TimeCurve(log_bytes, np.log(law.time_s(np.exp(log_bytes))))
            return Found(table, fabric.curves, same_shape=False)
        nearest = min(curves, key=lambda c: distance(c, group))
        rate = nearest.network_bytes_per_s
        same = (c for c in curves if c.shape == nearest.shape and c.network_bytes_per_s == rate)
        repeats = best(same)
        alike = is_on_like_link(nearest, group)
        there = _law.at_typical_latency(group_measured(nearest, group))
        here = _law.at_typical_latency(group) if alike else group
        found = (self.find(collective, g.within_domain) for g in (here, there))
        inner = next((f.table.law for f in found if f is not None), None)
        known, law = (_law.network_law(collective, g, inner) for g in (there, here))
        table = _curve.joined(repeats, busiest_factor(collective, there), known.floor_s)
        exact = alike and nearest.shape == (group.ranks, group.domains)
        if not exact:
            table = _carried(table, known, law, same_link=alike)
        return Found(table, repeats, same_shape=exact)


catalogue_of = functools.lru_cache(maxsize=32)(Catalogue)
"""The catalogue of some curves, shared by the models of one system."""


def _carried(table: TimeCurve, known: Law, law: Law, *, same_link: bool) -> TimeCurve:
    """A table whose floor and rate are changed as the law says.

    Args:
        table: the table of the measured group.
        known: the law of the measured group.
        law: the law of the group that is asked for.
        same_link: whether both have like network links. If not, the floor is that of the law, and
            only the shape of the curve and how much of the law's rate it reaches are carried over.
    """
    reached = table.law.rate / known.rate
    if not same_link:
        reached = min(max(reached, _PLAUSIBLE[0]), _PLAUSIBLE[1])
        return table.moved(Law(law.floor_s, law.rate * reached))
    return table.moved(Law(table.law.floor_s * law.floor_s / known.floor_s, law.rate * reached))


# ------------------ near curves

_LIKE_LINK: Final = (0.55, 1.15)
"""A network link is taken for the one that a curve was measured on if the rate that it achieves is
within these multiples of the nominal rate there. Tuned networks achieve some 0.82 of it
(:data:`costmodels.fabrics.UNNAMED`)."""
_PRIORITY_DISTANCE: Final = 0.5
"""How far, in doublings of shape or rate, a curve of a like system counts as away for each step of
its priority: one step decides only between curves of nearly the same shape and rate."""


def best(curves: Iterable[CollectiveCurve]) -> tuple[CollectiveCurve, ...]:
    """The curves with the lowest priority number among those given."""
    listed = tuple(curves)
    first = min((c.priority for c in listed), default=0)
    return tuple(c for c in listed if c.priority == first)


def is_on_like_link(curve: CollectiveCurve, group: Group) -> bool:
    """Whether the group's network link is taken for the one that the curve was measured on.

    A curve without a nominal rate holds for any link.
    """
    low, high = _LIKE_LINK
    nominal = curve.network_bytes_per_s
    return not nominal or low <= group.network_rate / nominal <= high


def group_measured(curve: CollectiveCurve, group: Group) -> Group:
    """The group that a curve was measured on.

    It has the links of ``group``, except that a network unlike the one of ``group`` has the typical
    share of its own nominal rate.
    """
    rate = group.network_rate
    if not is_on_like_link(curve, group):
        rate = UNNAMED.efficiency_ratio * curve.network_bytes_per_s
    return group._replace(
        ranks=curve.ranks, per_domain=curve.ranks // curve.domains, network_rate=rate
    )


def distance(curve: CollectiveCurve, group: Group) -> float:
    """How unlike a curve's shape and network are to those of a group, in doublings.

    It adds up the doublings between ranks per domain, between numbers of domains and between rates
    of the network, and half a doubling for each step of priority.
    """
    there = group_measured(curve, group)
    apart = abs(math.log2(there.per_domain / group.per_domain))
    apart += abs(math.log2(curve.domains / group.domains))
    apart += abs(math.log2(there.network_rate / group.network_rate))
    return apart + _PRIORITY_DISTANCE * curve.priority


# ------------------ trust

_LARGE_BYTES: Final = 2**20
"""Messages of this size and more are large."""
_SMALLEST_SPREADS: Final = (0.10, 0.05)
"""Least 90 % spread of a measured time. That of small messages is larger, because their time also
depends on how kernels were launched."""
_ONE_VERSION: Final = (0.15, 0.08)
"""Spread that is joined with the others if only one version of the library was measured: nine in
ten times of different versions in one harness differ by no more (``benchmarks/collectives.py``,
repeats)."""
_OTHER_SYSTEM: Final = 0.10
"""Spread that is added if the curve is one of a like system. The larger it is, the wider are the
intervals of such systems."""
_OTHER_LINKS: Final = (0.55, 0.30)
"""Spread that is added if a curve was rescaled to another link. If the curves of A100, H100 and
B200 are rescaled to one another's links, nine in ten points are predicted within this
(``benchmarks/collectives.py``, moved)."""
_OTHER_SITE: Final = (2.5, 0.40)
"""Spread of curves of another site inside one host, which is joined with the others as independent:
nine in ten small points of another site's harness on the same device lie within it, and 84 % of the
83 large ones (``benchmarks/fabrics.py``, one host). The small ones are of two sites alone. Over
several domains the spread between clusters includes it."""
_LAUNCH_S: Final = 7.5e-6
"""Seconds for each rank of a host that a collective takes at least if one process launches it on
all GPUs of the host, one after the other. Small all-to-alls on 8 H200 take 58 us then, and 8 to 30
us if each rank has a thread or a process of its own."""
_BY_LAW: Final = (1.3, 1.0)
"""Spread over a network that no curve of its kind crosses. Nine in ten points of sources that were
left out lie within factors of 2.2 and 1.9 (``benchmarks/fabrics.py``, several hosts); the spread is
no less than that of a curve that is carried over."""
_BY_FEW: Final = (1.5, 3.0)
"""The same for kinds of networks of which fewer than three sources are known: of sources that were
left out, 88 % of the small points lie within a factor of 2.5, and 75 % of the large ones within
4."""
_MANY_SOURCES: Final = 3
_ONE_CLUSTER: Final = 0.45
"""Spread that is added over several domains if one cluster was measured. Clusters with the same
nominal rate differ by more than repeats on one of them: three clusters of H100 with 400 Gb/s are
apart by 0.3 to 0.4 in the logarithm from 1 MiB on."""
_OTHER_CLUSTER: Final = 0.15
"""The same if several clusters were measured and joined: their differences are in the spread of the
curve already."""
_OTHER_SIZE: Final = 0.30
"""Spread that is added at sizes beyond those of the curve (``benchmarks/collectives.py``)."""
_OTHER_RANKS: Final = 0.25
"""Spread inside a domain for a number of ranks that was not measured (the same benchmark)."""
_OTHER_DOMAINS: Final = 1.0
"""Spread over a number of domains that was not measured (the same benchmark)."""


def confidence_of(
    found: Found, group: Group, size_bytes: float, measured: Found, factor: float
) -> Confidence:
    """What the time of a collective rests on, and its interval, at the site of the curves.

    Args:
        found: the table that tells the time, and its curves.
        group: the ranks that take part.
        size_bytes: size as nccl-tests counts it.
        measured: the table on the links that its curves were measured on.
        factor: bytes on the busiest link there per byte of size.
    """
    large = bool(size_bytes >= _LARGE_BYTES)
    if group.domains > 1 and all(c.domains == 1 for c in found.curves):
        few = FABRICS.get(group.fabric, UNNAMED).num_sources < _MANY_SOURCES
        spread = (_BY_FEW if few else _BY_LAW)[large]
        return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread)
    carried = _OTHER_SYSTEM if any(c.priority for c in found.curves) else 0.0
    carried += _OTHER_LINKS[large] if found.other_links else 0.0
    if not found.same_shape:
        spread = _OTHER_RANKS if group.domains == 1 else _OTHER_DOMAINS
        return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread + carried)
    spread = carried + spread_around(measured, factor, large=large)
    if len({c.version for c in found.curves}) == 1:
        spread = math.hypot(spread, _ONE_VERSION[large])
    if group.domains > 1:
        clusters = {c.source for c in found.curves}
        spread += _ONE_CLUSTER if len(clusters) == 1 else _OTHER_CLUSTER
    smallest = min(c.size_bytes[0] for c in found.curves)
    largest = max(c.size_bytes[-1] for c in found.curves)
    basis = Basis.CALIBRATED if carried else Basis.MEASURED
    if found.other_links:
        basis = Basis.EXTRAPOLATED
    if not smallest <= size_bytes <= largest:
        basis, spread = Basis.EXTRAPOLATED, spread + _OTHER_SIZE
    return Confidence(basis=basis, spread_ratio=spread)


@functools.lru_cache(maxsize=256)
def spread_around(found: Found, factor: float, *, large: bool) -> float:
    """90 % spread of a table around the curves that it was made from.

    It is the 90th percentile of two kinds of errors: those of single points that were left out in
    turn, and those of each curve against the joined table.

    Args:
        found: the table and its curves.
        factor: bytes on the busiest link per byte of size.
        large: whether to look at large messages, or at small ones.
    """
    errors: list[float] = []
    for curve in found.curves:
        sizes = np.array(curve.size_bytes)
        whole = found.table.log_time_at(np.log(sizes * factor)) - np.log(curve.time_s)
        inner, left_out = _curve.left_out_residuals(curve)
        errors.extend(np.abs(whole)[(sizes >= _LARGE_BYTES) == large])
        errors.extend(np.abs(left_out)[(inner >= _LARGE_BYTES) == large])
    smallest = _SMALLEST_SPREADS[large]
    return max(smallest, math.expm1(float(np.quantile(errors, 0.9)))) if errors else smallest
