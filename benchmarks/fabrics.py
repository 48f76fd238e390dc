"""Fits the kinds of network of ``costmodels/fabrics.py``, and says how far off they are.

    python benchmarks/fabrics.py

Prints the constants that all curves over several hosts give, which are those of the product, and
then every source predicted by constants that were fitted without it, in the way the product
predicts a system whose file names the kind and the network cards: from curves inside one host. A
source is a site and a device. Kinds share what they have in common: a kind's start-up and protocol
time are those of its class times a factor of its own, and a kind that has lost its only source
falls back to its class. Widths of these priors are set below, and were not varied per kind.

Then, inside one host, every source by the others of its device: other versions of the library in
one harness, and other sites.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import least_squares

from costmodels.collective._catalogue import Catalogue
from costmodels.collective._law import Group, bus_factor, busiest_factor, group_of, network_law
from costmodels.collective.base import Collective, FloatArray
from costmodels.collective.measured import Measured
from costmodels.fabrics import FABRICS
from costmodels.topology import Link, Topology
from planner.io.system.collective_curves import CurveRecord
from planner.validation.held_out import (
    HeldOut,
    one_host_sources,
    points,
    predicting_records,
    site_of,
    system_of,
)

CLASSES: Final = {
    "infiniband": "rdma",
    "roce": "rdma",
    "efa": "cloud",
    "slingshot": "cloud",
    "tcpx": "tcp",
    "tcpxo": "tcp",
    "ethernet": "tcp",
}
"""Verbs on tuned lossless networks; reliable datagrams of a provider; TCP."""
_CENTRE: Final = 1.5
"""Logit of the efficiency before any curve is seen: 0.82, all-gathers on tuned fabrics."""
_WIDTHS: Final = {"centre": 0.7, "class": 0.4, "startup": 0.5, "efficiency": 0.15, "protocol": 0.3}
"""Standard deviations: of the common logit; of a class's and of a kind's logarithms and logit."""
_ERROR: Final = 0.15
"""Logarithmic error of one point that counts fully; larger ones count in proportion."""
_POINTS_PER_SOURCE: Final = 20
_SMALLEST_BYTES: Final = 256.0
LARGE: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Of one kind."""

    startup_s: float
    efficiency_ratio: float
    protocol_s: float

    def link(self, nominal_bytes_per_s: float, kind: str) -> Link:
        """A rank's link with cards of this rate."""
        rate = self.efficiency_ratio * nominal_bytes_per_s
        half = 4.0 * self.protocol_s * rate
        return Link(
            latency_s=self.startup_s, bandwidth_bytes_per_s=rate, half_size_bytes=half, fabric=kind
        )


def source_of(record: CurveRecord) -> str:
    """The site, or the repository that publishes its figures, and the device."""
    return f"{site_of(record.curve.source)}, {record.device}, {record.curve.fabric}"


def crossing(records: Sequence[CurveRecord]) -> tuple[CurveRecord, ...]:
    """Curves over several hosts whose kind of network is known."""
    return tuple(r for r in records if r.curve.domains > 1 and r.curve.fabric)


def within_a_host(record: CurveRecord, records: Sequence[CurveRecord]) -> Measured:
    """What the product knows of the system when nothing was measured over its network."""
    system = system_of(record).name
    curves = tuple(r.curve for r in records if r.set_name == system and r.curve.domains == 1)
    return Measured(curves=curves)


def of_a_kind(record: CurveRecord, constants: Constants) -> Topology:
    """The system of a curve with a network of its kind."""
    curve = record.curve
    link = constants.link(curve.network_bytes_per_s, curve.fabric)
    return replace(system_of(record), network_link=link)


@dataclass(frozen=True, slots=True)
class Point:
    """A curve and what the law needs to predict it."""

    record: CurveRecord
    group: Group
    catalogue: Catalogue

    def log_error(self, constants: Constants) -> FloatArray:
        """ln(predicted / measured) of every size."""
        curve = self.record.curve
        sizes = np.array(self.sizes)
        link = constants.link(curve.network_bytes_per_s, curve.fabric)
        group = self.group._replace(
            network_latency_s=link.latency_s,
            network_rate=link.bandwidth_bytes_per_s,
            network_half_bytes=link.half_size_bytes,
            fabric=curve.fabric,
        )
        found = self.catalogue.find(curve.collective, self.group.within_domain)
        law = network_law(curve.collective, group, found.table.law if found else None)
        seconds = law.time_s(sizes * busiest_factor(curve.collective, group))
        if curve.collective is Collective.ALL_TO_ALL and found is not None:
            inside = sizes * bus_factor(curve.collective, group.per_domain)
            seconds = np.maximum(
                seconds, found.table.time_s(inside * group.per_domain / group.ranks)
            )
        measured = dict(zip(curve.size_bytes, curve.time_s, strict=True))
        return np.log(seconds) - np.log([measured[s] for s in self.sizes])

    @property
    def sizes(self) -> tuple[float, ...]:
        """From 256 B on, or all of a curve that ends there."""
        large = tuple(s for s in self.record.curve.size_bytes if s >= _SMALLEST_BYTES)
        return large if len(large) > 1 else self.record.curve.size_bytes


def prepared(records: Sequence[CurveRecord]) -> tuple[Point, ...]:
    """All curves over several hosts."""
    every = predicting_records()
    return tuple(
        Point(r, group_of(system_of(r)), Catalogue(within_a_host(r, every).curves)) for r in records
    )


def fitted(found: Sequence[Point]) -> dict[str, Constants]:
    """Constants of every kind from some curves."""
    kinds, classes = tuple(CLASSES), tuple(dict.fromkeys(CLASSES.values()))
    counts: dict[str, int] = defaultdict(int)
    for p in found:
        counts[source_of(p.record)] += len(p.sizes)

    def residuals(z: FloatArray) -> FloatArray:
        known = _unpacked(z, kinds, classes)
        parts = []
        for p in found:
            weight = math.sqrt(_POINTS_PER_SOURCE / counts[source_of(p.record)])
            parts.append(weight * p.log_error(known[p.record.curve.fabric]) / _ERROR)
        raw = np.concatenate(parts)
        soft = np.sign(raw) * np.sqrt(2.0 * (np.sqrt(1.0 + raw**2) - 1.0))
        return np.concatenate([soft, _surprise(z, len(classes))])

    start = np.zeros(3 + len(classes) + 3 * len(kinds))
    start[:3] = math.log(20e-6), _CENTRE, math.log(40e-6)
    return _unpacked(least_squares(residuals, start).x, kinds, classes)


def _unpacked(z: FloatArray, kinds: Sequence[str], classes: Sequence[str]) -> dict[str, Constants]:
    startup, efficiency, protocol = z[:3]
    of_class = dict(zip(classes, z[3 : 3 + len(classes)], strict=True))
    own = z[3 + len(classes) :].reshape(-1, 3)
    return {
        kind: Constants(
            startup_s=math.exp(startup + of_class[CLASSES[kind]] + apart[0]),
            efficiency_ratio=1.0 / (1.0 + math.exp(-(efficiency + apart[1]))),
            protocol_s=math.exp(protocol + apart[2]),
        )
        for kind, apart in zip(kinds, own, strict=True)
    }


def _surprise(z: FloatArray, classes: int) -> FloatArray:
    """Distances from the priors in their widths."""
    own = z[3 + classes :].reshape(-1, 3)
    widths = [_WIDTHS[w] for w in ("startup", "efficiency", "protocol")]
    centre = [(z[1] - _CENTRE) / _WIDTHS["centre"]]
    return np.concatenate([centre, z[3 : 3 + classes] / _WIDTHS["class"], (own / widths).ravel()])


def left_out(records: Sequence[CurveRecord]) -> Iterator[tuple[str, HeldOut]]:
    """Every source by constants without it, and its name."""
    every = predicting_records()
    found = prepared(crossing(records))
    for source in dict.fromkeys(source_of(p.record) for p in found):
        constants = fitted([p for p in found if source_of(p.record) != source])
        for p in found:
            if source_of(p.record) == source:
                topology = of_a_kind(p.record, constants[p.record.curve.fabric])
                model = within_a_host(p.record, every)
                for point in points(model, p.record, p.sizes, topology=topology):
                    yield source, point


def inside_by_others(found: Iterable[tuple[str, HeldOut]]) -> float:
    """Share within the factor that holds nine in ten points of the other sources."""
    by_source: Mapping[str, list[float]] = defaultdict(list)
    for source, point in found:
        by_source[source].append(abs(math.log(point.predicted_s / point.measured_s)))
    held = []
    for source, errors in by_source.items():
        others = [e for other, es in by_source.items() if other != source for e in es]
        held.extend(e <= np.quantile(others, 0.9) for e in errors)
    return float(np.mean(held))


def main() -> None:
    """Constants, and errors of sources that were left out."""
    records = predicting_records()
    print("kind          start-up  protocol  efficiency   sources   in costmodels/fabrics.py")
    found = prepared(crossing(records))
    for kind, c in fitted(found).items():
        sources = len({source_of(p.record) for p in found if p.record.curve.fabric == kind})
        shipped = FABRICS[kind]
        print(
            f"{kind:12s} {c.startup_s * 1e6:6.1f} us {c.protocol_s * 1e6:6.1f} us "
            f"{c.efficiency_ratio:10.2f} {sources:9d}   {shipped.startup_s * 1e6:.1f} us, "
            f"{shipped.protocol_s * 1e6:.1f} us, {shipped.efficiency_ratio:.2f}"
        )
    show("several hosts", list(left_out(records)))
    show("one host", list(one_host_sources(records)))


def show(title: str, told: Sequence[tuple[str, HeldOut]]) -> None:
    """Errors of sources that were left out, and all together."""
    print(
        f"\n{title + ', source that was left out':62s} {'points':>6s} {'median':>7s} {'inside':>7s}"
    )
    for source in [*dict.fromkeys(s for s, _ in told), "all"]:
        errors = [p.error_ratio for s, p in told if source in (s, "all")]
        inside = [p.inside for s, p in told if source in (s, "all")]
        line = f"{len(errors):6d} {100 * np.median(errors):6.1f}% {100 * np.mean(inside):6.0f}%"
        print(f"{source[:60]:62s} {line}")
    for large in (False, True):
        part = [(s, p) for s, p in told if (p.size_bytes >= LARGE) == large]
        errors = [abs(math.log(p.predicted_s / p.measured_s)) for _, p in part]
        print(
            f"{'from' if large else 'below'} 1 MiB: nine in ten within a factor of "
            f"{math.exp(np.quantile(errors, 0.9)):.2f}; within that of the other sources "
            f"{100 * inside_by_others(part):.0f} %"
        )


if __name__ == "__main__":
    main()
