"""Which measured curve answers for a group, as it is or carried over to its shape and links."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.collective._consistent import (
    RINGS,
    Family,
    Found,
    agreed,
    completed,
    mixed,
    risen,
)
from costmodels.collective._curve import (
    TimeCurve,
    between,
    joined,
    left_out_residuals,
    with_floor,
)
from costmodels.collective._law import (
    TYPICAL_EFFICIENCY,
    Group,
    Law,
    at_typical_latency,
    bus_factor,
    busiest_factor,
    fabric_law,
    longer_s,
    network_law,
    on_usual_link,
)
from costmodels.collective.base import Basis, Collective, CollectiveCurve, Confidence

_LARGE_BYTES: Final = 2**20
_SAME_LINK: Final = (0.55, 1.15)
"""Achieved over nominal rate of a network link within which it counts as the one measured."""
_PLAUSIBLE: Final = (0.6, 1.3)
"""Measured over expected rate that may be carried over to another network."""
_MIRRORED: Final = {
    Collective.ALL_GATHER: Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER: Collective.ALL_GATHER,
}
"""Within 5 % of each other wherever both were measured."""
_SMALLEST_SPREADS: Final = (0.10, 0.05)
"""Below and above 1 MiB: small messages also tell how kernels were launched."""
_ONE_VERSION: Final = (0.15, 0.08)
"""Added, below and above 1 MiB, where one library version alone was measured: what versions of one
harness differ by in nine cases of ten (``benchmarks/collectives.py``, repeats)."""
_OTHER_SYSTEM: Final = 0.10
"""Added spread of figures that come from a like system."""
_OTHER_LINKS: Final = (0.55, 0.30)
"""Added, below and above 1 MiB, where curves are rescaled to another link: within this factor nine
in ten points of A100, H100 and B200 are predicted from one another's curves and the links of both
(``benchmarks/collectives.py``, moved)."""
_OTHER_CLUSTER: Final = 0.15
_OTHER_SITE: Final = (2.0, 0.40)
"""Below and above 1 MiB: within this factor nine in ten points of another site's harness lie on the
same device in one host, joined with the rest as independent (``benchmarks/fabrics.py``, one host).
Over hosts the spread of clusters holds it already."""
_BY_LAW: Final = (1.3, 1.0)
"""Over a network that no curve of its kind crosses: within 2.2 and 1.9 times nine in ten points of
sources that were left out (``benchmarks/fabrics.py``, several hosts), and no less than where a
curve is carried over."""
_ONE_CLUSTER: Final = 0.45
"""Added spread across a network: clusters of one nominal rate differ by more than repeats. Where
one was measured alone it is that of the three clusters of H100 with 400 Gb/s, apart by 0.3 to 0.4
in the logarithm from 1 MiB; several that were joined tell it by themselves."""
_OTHER_SIZE: Final = 0.30
_OTHER_RANKS: Final = 0.25
_OTHER_DOMAINS: Final = 1.0
"""90 % spreads of what was not measured (benchmarks/collectives.py)."""


class Catalogue:
    """The curves of a system, ready to be asked."""

    def __init__(self, curves: Sequence[CollectiveCurve]) -> None:
        """Keep the curves; tables are made when first asked for."""
        self._curves = tuple(curves)
        self._known: dict[tuple[tuple[Collective, ...], Group, Group | None], Family] = {}
        self._spreads: dict[tuple[Collective, Group, bool], float] = {}

    def find(
        self, collective: Collective, group: Group, there: Group | None = None
    ) -> Found | None:
        """What is known of a collective in a group; None where no curve helps.

        Args:
            collective: which.
            group: who takes part, on the links of the system.
            there: the same members on the links that the curves were measured on; None where the
                curves hold for the system's own links. From another kind of network nothing is
                carried over: the group's own kind has curves, or its law.
        """
        family = RINGS if collective in RINGS else (collective,)
        there = self._of_own_kind(group, there)
        return self._family(family, group, None if there == group else there).get(collective)

    def confidence(
        self,
        collective: Collective,
        group: Group,
        size_bytes: float,
        there: Group | None = None,
        *,
        elsewhere: bool = False,
    ) -> Confidence | None:
        """Measured inside a curve's range, extrapolated for other shapes, sizes and links.

        Args:
            collective: which.
            group: who takes part.
            size_bytes: as nccl-tests states it.
            there: as in :meth:`find`.
            elsewhere: the curves are another site's, whose harness and machines differ.
        """
        own = self._own_confidence(collective, group, size_bytes, there)
        if own is None or not elsewhere or group.domains > 1:
            return own
        site = math.log1p(_OTHER_SITE[bool(size_bytes >= _LARGE_BYTES)])
        spread = math.expm1(math.hypot(math.log1p(own.spread_ratio), site))
        return replace(own, spread_ratio=spread)

    def _own_confidence(
        self, collective: Collective, group: Group, size_bytes: float, there: Group | None
    ) -> Confidence | None:
        """At the site where the curves were measured."""
        there = self._of_own_kind(group, there)
        found = self.find(collective, group, there)
        if found is None:
            return None
        large = bool(size_bytes >= _LARGE_BYTES)
        if group.domains > 1 and all(c.domains == 1 for c in found.curves):
            return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=_BY_LAW[large])
        carried = _OTHER_SYSTEM if any(c.priority for c in found.curves) else 0.0
        carried += _OTHER_LINKS[large] if found.other_links else 0.0
        if not found.same_shape:
            spread = _OTHER_RANKS if group.domains == 1 else _OTHER_DOMAINS
            return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread + carried)
        known = group if there is None or not found.other_links else there
        as_measured = self.find(collective, known) or found
        spread = carried + self._spread(collective, known, as_measured, large=large)
        if len({c.version for c in found.curves}) == 1:
            spread = math.hypot(spread, _ONE_VERSION[large])
        if group.domains > 1:
            clusters = {c.source for c in found.curves}
            spread += _ONE_CLUSTER if len(clusters) == 1 else _OTHER_CLUSTER
        smallest = min(c.size_bytes[0] for c in found.curves)
        largest = max(c.size_bytes[-1] for c in found.curves)
        if not smallest <= size_bytes <= largest:
            return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread + _OTHER_SIZE)
        if found.other_links:
            return Confidence(basis=Basis.EXTRAPOLATED, spread_ratio=spread)
        basis = Basis.CALIBRATED if carried else Basis.MEASURED
        return Confidence(basis=basis, spread_ratio=spread)

    def _spread(self, collective: Collective, group: Group, found: Found, *, large: bool) -> float:
        key = (collective, group, large)
        if key not in self._spreads:
            factor = busiest_factor(collective, group)
            self._spreads[key] = _spread(found, factor, large=large)
        return self._spreads[key]

    def _family(self, family: tuple[Collective, ...], group: Group, there: Group | None) -> Family:
        """Collectives that have to agree with one another and with fewer domains."""
        if group.ranks <= 1:
            return {}
        key = (family, group, there)
        if key not in self._known:
            self._known[key] = self._settled(family, group, there)
        return self._known[key]

    def _of_own_kind(self, group: Group, there: Group | None) -> Group | None:
        """The members there, on a network of the group's own kind where theirs is of another."""
        if there is None or there.fabric == group.fabric:
            return there
        return there.on_network_of(self._usual(group))

    def _usual(self, group: Group) -> Group:
        """The group on the link that its kind of network has in the curves.

        The link is that of the best and fastest curves of the kind, whatever the link of the group.
        The choice between curves therefore stays the same when only a link of the group changes,
        and a faster link never leads to curves of a slower network. Its rate is 0 where no curve is
        of that kind, so that the law of the group's own link is asked.
        """
        curves = self._crossing(group)
        known = [(-c.priority, c.network_bytes_per_s) for c in curves if c.network_bytes_per_s]
        if known:
            return on_usual_link(group, max(known)[1])
        return group if curves else group._replace(network_rate=0.0)

    def rates_of_other_links(self, group: Group) -> tuple[float, ...]:
        """Nominal rates of the network links that were measured, where none is like the group's.

        Returns:
            Rising, in bytes per second; empty where one is like it, and for a single domain.
        """
        curves = self._crossing(group) if group.domains > 1 else []
        if any(_same_link(c, group) for c in curves):
            return ()
        return tuple(sorted({c.network_bytes_per_s for c in curves}))

    def _crossing(self, group: Group) -> list[CollectiveCurve]:
        """Curves over a network of the group's kind; of any where one of the two is not named."""
        kinds = ("", group.fabric)
        return [
            c for c in self._curves if c.domains > 1 and (not group.fabric or c.fabric in kinds)
        ]

    def _settled(self, family: tuple[Collective, ...], group: Group, there: Group | None) -> Family:
        fewer, more = self._neighbours(group)
        by_law = there is not None and group.domains > 1 and not there.network_rate
        origin = None if by_law else there
        if more is not None and origin is None:
            groups = (group.of_units(fewer), group, group.of_units(more))
            low, high = (
                self._family(family, group.of_units(n), there and there.of_units(n))
                for n in (fewer, more)
            )
            part = math.log(group.units / fewer) / math.log(more / fewer)
            return mixed(low, high, groups, part)
        searched = {
            c: self._measured(c, group, there)
            if origin is None
            else self._carried_over(c, group, origin)
            for c in family
        }
        found = {c: f for c, f in searched.items() if f is not None}
        if family == RINGS and origin is None:
            found = agreed(completed(found, group), group)
        if fewer == 0:
            return found
        below = group.of_units(fewer)
        known = self._family(family, below, there and there.of_units(fewer))
        return risen(found, group, known, below)

    def _neighbours(self, group: Group) -> tuple[int, int | None]:
        """Numbers of domains, or hosts, just below the group's, and just above unless an anchor.

        Anchors are powers of two, and what was measured with as many ranks per domain: times of
        other numbers lie between theirs, so that more domains never take less time.
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
        """As measured on the links there, carried over to those of the group."""
        found = self.find(collective, there)
        if found is None:
            return None
        known, law = fabric_law(collective, there), fabric_law(collective, group)
        if group.domains > 1:
            inside = self.find(collective, there.within_domain)
            here = self.find(collective, group.within_domain, there.within_domain)
            known = network_law(collective, there, inside.table.law if inside else None)
            law = network_law(collective, group, here.table.law if here else None)
        longer = longer_s(collective, there, group)
        if law == known and longer == 0.0:
            return found
        return found._replace(table=found.table.on_link(known, law, longer), other_links=True)

    def _measured(self, collective: Collective, group: Group, there: Group | None) -> Found | None:
        """As measured on the group's own links; ``there`` is where the fabric was measured."""

        def search(one: Collective) -> Found | None:
            inside = group.domains == 1
            return self._inside(one, group) if inside else self._across(one, group, there)

        found = search(collective)
        if found is None and collective in _MIRRORED:
            found = search(_MIRRORED[collective])
            return found._replace(same_shape=False) if found is not None else None
        return found

    def _inside(self, collective: Collective, group: Group) -> Found | None:
        """Curves of one domain, the best priority that there is."""
        curves = _best([c for c in self._curves if c.collective is collective and c.domains == 1])
        if not curves:
            return None
        by_ranks: dict[int, list[CollectiveCurve]] = defaultdict(list)
        for curve in curves:
            by_ranks[curve.ranks].append(curve)
        floor_s = fabric_law(collective, group).floor_s
        tables = {
            ranks: with_floor(joined(repeats, bus_factor(collective, ranks)), floor_s)
            for ranks, repeats in by_ranks.items()
        }
        if group.ranks in tables:
            return Found(tables[group.ranks], tuple(by_ranks[group.ranks]), same_shape=True)
        return Found(between(tables, collective, group.ranks), curves, same_shape=False)

    def _across(self, collective: Collective, group: Group, there: Group | None) -> Found | None:
        """Curves over several domains; the nearest shape or the fabric's, moved by the law."""
        curves = [c for c in self._crossing(group) if c.collective is collective]
        if not curves:
            fabric = self.find(collective, group.within_domain, there and there.within_domain)
            return fabric and _by_law(fabric, network_law(collective, group, fabric.table.law))
        nearest = min(curves, key=lambda c: _distance(c, group))
        repeats = _best([c for c in curves if _repeats(c, nearest)])
        alike = _same_link(nearest, group)
        there = at_typical_latency(_group_there(nearest, group))
        here = at_typical_latency(group) if alike else group
        found = (self.find(collective, g.within_domain) for g in (here, there))
        inner = next((f.table.law for f in found if f is not None), None)
        known, law = (network_law(collective, g, inner) for g in (there, here))
        table = with_floor(joined(repeats, busiest_factor(collective, there)), known.floor_s)
        exact = alike and nearest.shape == (group.ranks, group.domains)
        if not exact:
            table = _carried(table, known, law, same_link=alike)
        return Found(table, repeats, same_shape=exact)


@functools.lru_cache(maxsize=32)
def catalogue_of(curves: tuple[CollectiveCurve, ...]) -> Catalogue:
    """The catalogue of these curves. Models of one system share it, so tables are made once."""
    return Catalogue(curves)


def _carried(table: TimeCurve, known: Law, law: Law, *, same_link: bool) -> TimeCurve:
    """A table moved as the law moves; another network keeps the shape, but has its own floor."""
    reached = table.law.rate / known.rate
    if not same_link:
        reached = min(max(reached, _PLAUSIBLE[0]), _PLAUSIBLE[1])
        return table.moved(Law(law.floor_s, law.rate * reached))
    return table.moved(Law(table.law.floor_s * law.floor_s / known.floor_s, law.rate * reached))


def _by_law(fabric: Found, law: Law) -> Found:
    """No curve crosses the network: the law, with the fabric as measured."""
    log_bytes = np.arange(45.0) * math.log(2.0)
    table = TimeCurve(log_bytes, np.log(law.time_s(np.exp(log_bytes))))
    return Found(table, fabric.curves, same_shape=False)


def _best(curves: list[CollectiveCurve]) -> tuple[CollectiveCurve, ...]:
    first = min((c.priority for c in curves), default=0)
    return tuple(c for c in curves if c.priority == first)


def _repeats(one: CollectiveCurve, other: CollectiveCurve) -> bool:
    same_network = one.network_bytes_per_s == other.network_bytes_per_s
    return one.shape == other.shape and same_network


def _same_link(curve: CollectiveCurve, group: Group) -> bool:
    low, high = _SAME_LINK
    nominal = curve.network_bytes_per_s
    return not nominal or low <= group.network_rate / nominal <= high


def _group_there(curve: CollectiveCurve, group: Group) -> Group:
    """The group that was measured, on the links of ``group`` unless the network was another."""
    rate = group.network_rate
    if not _same_link(curve, group):
        rate = TYPICAL_EFFICIENCY * curve.network_bytes_per_s
    return group._replace(
        ranks=curve.ranks, per_domain=curve.ranks // curve.domains, network_rate=rate
    )


def _distance(curve: CollectiveCurve, group: Group) -> float:
    """How unlike shape and network are, in doublings; a like system counts half of one."""
    there = _group_there(curve, group)
    apart = abs(math.log2(there.per_domain / group.per_domain))
    apart += abs(math.log2(curve.domains / group.domains))
    return apart + abs(math.log2(there.network_rate / group.network_rate)) + 0.5 * curve.priority


def _spread(found: Found, factor: float, *, large: bool) -> float:
    """90th percentile of the errors: points left out in turn, and repeats against the whole."""
    errors: list[float] = []
    for curve in found.curves:
        sizes = np.array(curve.size_bytes)
        whole = found.table.log_time_at(np.log(sizes * factor)) - np.log(curve.time_s)
        inner, left_out = left_out_residuals(curve)
        errors.extend(np.abs(whole)[(sizes >= _LARGE_BYTES) == large])
        errors.extend(np.abs(left_out)[(inner >= _LARGE_BYTES) == large])
    smallest = _SMALLEST_SPREADS[large]
    return max(smallest, math.expm1(float(np.quantile(errors, 0.9)))) if errors else smallest
