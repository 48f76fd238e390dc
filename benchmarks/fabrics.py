"""Fits the kinds of network of ``costmodels/fabrics.py``, and says how far off they are.

    python benchmarks/fabrics.py

Prints the constants that all curves over several hosts give, which are those of the product, and
then every source predicted by constants that were fitted without it, in the way the product
predicts a system whose file names the kind and the network cards: from curves inside one host. A
source is a site and a device. Kinds share what they have in common: a kind's start-up and protocol
time are those of its class times a factor of its own, and a kind that has lost its only source
falls back to its class. Sources of one kind differ too, each by factors of its own, so that one
far-off site moves its kind little. Widths of these priors are set below, and were not varied per
kind. Beside the errors stands how far sources that measured the same thing lie from one another,
and what is left if a source's own curves tell its constants.

Then, inside one host, every source by the others of its device: other versions of the library in
one harness, and other sites.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import least_squares

from costmodels.collective._catalogue import Catalogue
from costmodels.collective._law import Group, bus_factor, busiest_factor, group_of, network_law
from costmodels.collective.measured import Measured
from costmodels.datatypes import FloatArray
from costmodels.fabrics import FABRICS, half_size_of
from costmodels.measured.curves import Collective
from costmodels.topology import Link, Topology
from planner.io.system.collective_curves import CurveRecord, shipped_curves
from planner.validation.intervals import (
    HeldOut,
    points,
    predicting_records,
    system_name,
    system_of,
)

CLASSES: Final = {
    "infiniband": "rdma",
    "roce": "rdma",
    "efa": "cloud",
    "slingshot": "libfabric",
    "tcpx": "tcp",
    "tcpxo": "tcp",
    "ethernet": "sockets",
}
"""Verbs on tuned lossless networks; reliable datagrams of a provider; libfabric over CXI; TCP with
memory of the GPU, and without."""
_CENTRE: Final = 1.5
"""Logit of the efficiency before any curve is seen: 0.82, all-gathers on tuned fabrics."""
_CENTRE_WIDTH: Final = 0.7
_CLASS_WIDTHS: Final = (1.0, 2.0)
_KIND_WIDTHS: Final = (0.5, 0.15, 0.3)
_SOURCE_WIDTHS: Final = (0.4, 0.15, 0.4)
"""Standard deviations: of the common logit; of a class's logarithm of start-up, and logit; of a
kind's and of a source's logarithm of start-up, logit, and logarithm of protocol time."""
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
        return Link(
            latency_s=self.startup_s,
            bandwidth_bytes_per_s=rate,
            half_size_bytes=half_size_of(self.protocol_s, rate),
            fabric=kind,
        )

    def apart(self, logs: FloatArray) -> Constants:
        """Those of one source: logarithms of start-up and protocol time, and a logit, are added."""
        return Constants(
            startup_s=self.startup_s * math.exp(logs[0]),
            efficiency_ratio=_share(_logit(self.efficiency_ratio) + logs[1]),
            protocol_s=self.protocol_s * math.exp(logs[2]),
        )


def one_host_sources(records: Sequence[CurveRecord]) -> Iterator[tuple[str, HeldOut]]:
    """The points of each source inside one host, predicted from other sources of its device.

    Curves for validation are predicted, but never predict others. If no source is of the same site,
    intervals include the spread between sites.

    Args:
        records: the curves that predict.

    Returns:
        ``another version`` or ``another site``, which says what predicts a point, and the point.
    """
    for record in shipped_curves():
        system = system_name(record)
        others = [
            r.curve
            for r in records
            if r.set_name == system
            and r.curve.domains == 1
            and r.curve.source != record.curve.source
        ]
        if record.curve.domains == 1 and any(
            c.collective is record.curve.collective for c in others
        ):
            topology = system_of(record)
            same = any(site_of(c.source) == site_of(record.curve.source) for c in others)
            model = Measured(curves=tuple(others), measured_on=None if same else topology.links)
            whose = "another version" if same else "another site"
            yield from ((whose, p) for p in points(model, record, topology=topology))


def site_of(source: str) -> str:
    """The owner of the repository that publishes a source, which stands for a site."""
    return source.split("/")[0]


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
    sources = list(dict.fromkeys(source_of(p.record) for p in found))
    counts: dict[str, int] = defaultdict(int)
    for p in found:
        counts[source_of(p.record)] += len(p.sizes)
    shared = 3 + 2 * len(classes) + 3 * len(kinds)

    def residuals(z: FloatArray) -> FloatArray:
        known = _unpacked(z[:shared], kinds, classes)
        apart = z[shared:].reshape(-1, 3) * _SOURCE_WIDTHS
        parts = []
        for p in found:
            source = source_of(p.record)
            weight = math.sqrt(_POINTS_PER_SOURCE / counts[source])
            constants = known[p.record.curve.fabric].apart(apart[sources.index(source)])
            parts.append(weight * p.log_error(constants) / _ERROR)
        raw = np.concatenate(parts)
        soft = np.sign(raw) * np.sqrt(2.0 * (np.sqrt(1.0 + raw**2) - 1.0))
        return np.concatenate([soft, [(z[1] - _CENTRE) / _CENTRE_WIDTH], z[3:]])

    start = np.zeros(shared + 3 * len(sources))
    start[:3] = math.log(20e-6), _CENTRE, math.log(64e-6)
    return _unpacked(least_squares(residuals, start).x[:shared], kinds, classes)


def _unpacked(z: FloatArray, kinds: Sequence[str], classes: Sequence[str]) -> dict[str, Constants]:
    """Of every kind, from numbers in units of the widths of their priors."""
    startup, efficiency, protocol = z[:3]
    apart_by_class = z[3 : 3 + 2 * len(classes)].reshape(-1, 2) * _CLASS_WIDTHS
    of_class = dict(zip(classes, apart_by_class, strict=True))
    own = z[3 + 2 * len(classes) :].reshape(-1, 3) * _KIND_WIDTHS
    return {
        kind: Constants(
            startup_s=math.exp(startup + of_class[CLASSES[kind]][0] + apart[0]),
            efficiency_ratio=_share(efficiency + of_class[CLASSES[kind]][1] + apart[1]),
            protocol_s=math.exp(protocol + apart[2]),
        )
        for kind, apart in zip(kinds, own, strict=True)
    }


def _share(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))


def _logit(share: float) -> float:
    return math.log(share / (1.0 - share))


@functools.cache
def without_each(records: tuple[CurveRecord, ...]) -> tuple[tuple[str, Point, Constants], ...]:
    """Every source's curves, with constants of their kind that were fitted without the source."""
    found = prepared(crossing(records))
    told: list[tuple[str, Point, Constants]] = []
    for source in dict.fromkeys(source_of(p.record) for p in found):
        constants = fitted([p for p in found if source_of(p.record) != source])
        own = [p for p in found if source_of(p.record) == source]
        told.extend((source, p, constants[p.record.curve.fabric]) for p in own)
    return tuple(told)


def left_out(records: Sequence[CurveRecord]) -> Iterator[tuple[str, HeldOut]]:
    """Every source by constants without it, and its name."""
    every = predicting_records()
    for source, p, constants in without_each(tuple(records)):
        model, topology = within_a_host(p.record, every), of_a_kind(p.record, constants)
        name = p.record.curve.collective.value
        yield from ((source, q) for q in points(model, p.record, p.sizes, name, topology))


def between_sources(records: Sequence[CurveRecord], *, same_gpu: bool) -> FloatArray:
    """Relative errors of a source's points by what other sources measured of the same thing.

    The same thing is the kind of network, the collective, the numbers of hosts and GPUs, the size
    and, with ``same_gpu``, the device. The others' geometric mean predicts it. No model that has
    not seen the source can be expected to come closer.
    """
    times: dict[tuple[object, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in records:
        what = (r.curve.fabric, r.curve.collective, r.curve.shape, r.device if same_gpu else "")
        for size, seconds in zip(r.curve.size_bytes, r.curve.time_s, strict=True):
            times[(*what, size)][source_of(r)].append(math.log(seconds))
    found = [
        abs(math.expm1(np.mean([t for o, ts in by.items() if o != source for t in ts]) - one))
        for by in times.values()
        if len(by) > 1
        for source, own in by.items()
        for one in own
    ]
    return np.array(found)


def by_own_constants(records: Sequence[CurveRecord]) -> FloatArray:
    """Relative errors of all points with constants that are fitted to their own source alone.

    This is what the form of the law leaves, however well its constants are known.
    """
    by_source: dict[str, list[Point]] = defaultdict(list)
    for p in prepared(crossing(records)):
        by_source[source_of(p.record)].append(p)
    plain = Constants(startup_s=20e-6, efficiency_ratio=_share(_CENTRE), protocol_s=64e-6)

    def off(logs: FloatArray, own: Sequence[Point]) -> FloatArray:
        return np.concatenate([p.log_error(plain.apart(logs)) for p in own])

    errors = [
        least_squares(
            off, np.zeros(3), bounds=(-8.0, 8.0), loss="soft_l1", f_scale=_ERROR, args=(own,)
        ).fun
        for own in by_source.values()
    ]
    return np.abs(np.expm1(np.concatenate(errors)))


def inside_by_others(found: Iterable[tuple[str, HeldOut]]) -> float:
    """Share within the factor that holds nine in ten points of the other sources."""
    by_source: Mapping[str, list[float]] = defaultdict(list)
    for source, point in found:
        by_source[source].append(abs(math.log1p(point.error_ratio)))
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
    several = list(left_out(records))
    show("several hosts", several)
    show_parts(records, several)
    show("one host", list(one_host_sources(records)))


def show_parts(records: Sequence[CurveRecord], told: Sequence[tuple[str, HeldOut]]) -> None:
    """Where the error over several hosts comes from, and what no model can go below."""
    errors: dict[str, Sequence[float] | FloatArray] = {
        "each source by constants fitted to itself": by_own_constants(records),
        **{f"  {c}": [abs(p.error_ratio) for _, p in told if p.case.name == c] for c in Collective},
        "one source by others: same kind, shape, size and GPU": between_sources(
            crossing(records), same_gpu=True
        ),
        "one source by others: same kind, shape and size": between_sources(
            crossing(records), same_gpu=False
        ),
    }
    print("by collective:")
    for name, values in errors.items():
        print(f"{name:62s} {len(values):6d} {100 * np.median(values):6.1f}%")


def show(title: str, told: Sequence[tuple[str, HeldOut]]) -> None:
    """Errors of sources that were left out, and all together."""
    print(
        f"\n{title + ', source that was left out':62s} {'points':>6s} {'median':>7s} {'inside':>7s}"
    )
    for source in [*dict.fromkeys(s for s, _ in told), "all"]:
        errors = [abs(p.error_ratio) for s, p in told if source in (s, "all")]
        inside = [p.is_inside for s, p in told if source in (s, "all")]
        line = f"{len(errors):6d} {100 * np.median(errors):6.1f}% {100 * np.mean(inside):6.0f}%"
        print(f"{source[:60]:62s} {line}")
    for large in (False, True):
        part = [(s, p) for s, p in told if (p.size_bytes >= LARGE) == large]
        errors = [abs(math.log1p(p.error_ratio)) for _, p in part]
        print(
            f"{'from' if large else 'below'} 1 MiB: nine in ten within a factor of "
            f"{math.exp(np.quantile(errors, 0.9)):.2f}; within that of the other sources "
            f"{100 * inside_by_others(part):.0f} %"
        )


if __name__ == "__main__":
    main()
