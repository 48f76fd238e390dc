"""How often 90 % intervals contain measurements that no model has seen (``validate intervals``).

Collective curves are predicted from other curves. What is predicted is left out of the curves that
predict it: sizes, versions of the library, other harnesses (programs that measured), and whole
clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Final

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel, balanced_s
from costmodels.collective.measured import Measured
from costmodels.estimates import Z90
from costmodels.fabrics import fabric_link
from costmodels.measured.curves import CollectiveCurve
from costmodels.system_models import collective_model
from costmodels.topology import Link, Topology
from planner.io.system.collective_curves import PREDICTING_ROLES, CurveRecord, shipped_curves
from planner.io.system.system_file import load_system
from planner.validation.cases import UNSEEN, Case, Prediction, grouped, json_file, within
from planner.validation.kernels import other_lookups
from planner.validation.steps import load_cases, predict

_TYPICAL_EFFICIENCY = 0.82
"""Achieved over nominal rate of the network of a cluster, as in :mod:`costmodels.collective`: what
all-gathers and all-reduces reach on tuned networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Prediction):
    """One point of a curve, and its prediction, which has not seen it.

    Attributes:
        size_bytes: size as nccl-tests counts it.
    """

    size_bytes: float


def predicting_records() -> tuple[CurveRecord, ...]:
    """The shipped curves that predictions may rest on, without those for validation."""
    return tuple(r for r in shipped_curves() if r.role in PREDICTING_ROLES)


def system_name(record: CurveRecord) -> str:
    """The shipped system of a device, or of the set where this has the name of one.

    Devices of no shipped system have that of ``h100_pcie``.
    """
    systems: dict[str, str] = json_file("devices.json")
    return systems.get(record.device, record.set_name)


@cache
def system_of(record: CurveRecord) -> Topology:
    """The system on which a curve was measured, with its number of hosts and GPUs.

    If the rate of the network is known, the system has a network of no named kind with the typical
    share of this rate.
    """
    gpus, nominal = record.curve.ranks, record.curve.network_bytes_per_s
    topology = load_system(system_name(record), gpus=gpus, gpus_per_host=gpus // record.nodes)
    if not nominal:
        return topology
    latency_s = topology.network_link.latency_s
    link = Link(latency_s=latency_s, bandwidth_bytes_per_s=_TYPICAL_EFFICIENCY * nominal)
    return replace(topology, network_link=link)


def points(
    model: AbstractCollectiveModel,
    record: CurveRecord,
    sizes: Sequence[float] | None = None,
    name: str = "",
    topology: Topology | None = None,
) -> list[HeldOut]:
    """The points of a curve with their predictions.

    Args:
        model: predicts the points.
        record: the curve.
        sizes: which of its sizes in bytes; None for all.
        name: name of the points; empty for that of the curve's set.
        topology: the system; None for :func:`system_of` the curve.
    """
    curve, topology = record.curve, topology or system_of(record)
    wanted = np.array(curve.size_bytes if sizes is None else sizes)
    measured = dict(zip(curve.size_bytes, curve.time_s, strict=True))
    predicted = balanced_s(model, curve.collective, wanted, topology)
    found = []
    for size, seconds in zip(wanted, predicted, strict=True):
        spread = model.confidence(curve.collective, size, topology).spread_ratio
        case = Case(name=name or record.set_name, topology=topology, measured_s=measured[size])
        time = within(float(seconds), math.log1p(spread) / Z90)
        found.append(HeldOut(case=case, predicted={UNSEEN: time}, size_bytes=float(size)))
    return found


def every_other_size(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
    """The sizes of each curve, every second one predicted from the others of the same curve."""
    for record in records:
        for first in (0, 1):
            kept = thinned(record.curve, first)
            left = tuple(s for s in record.curve.size_bytes if s not in kept.size_bytes)
            yield from points(Measured(curves=(kept,)), record, left)


def versions_of(records: Sequence[CurveRecord]) -> list[list[CurveRecord]]:
    """Curves inside a domain that differ in the version of the library alone, the newest last."""
    inside = [r for r in records if r.curve.version and r.curve.domains == 1]
    groups = grouped(inside, lambda r: (r.set_name, r.curve.collective, r.curve.ranks))
    number = {r: tuple(map(int, r.curve.version.split("."))) for r in inside}
    return [sorted(group, key=number.__getitem__) for group in groups.values()]


def older_versions(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
    """Curves of older versions of the library, predicted from the newest one."""
    for *older, newest in versions_of(records):
        model = Measured(curves=(newest.curve,))
        yield from (point for record in older for point in points(model, record))


def never_fitted(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
    """The curves for validation, predicted from the curves of the same set.

    They were measured by other harnesses than those of the set.

    Args:
        records: the curves that predict.
    """
    for record in shipped_curves():
        curves = tuple(r.curve for r in records if r.set_name == record.set_name)
        if record.role == "validate" and curves:
            name = f"{record.set_name} {record.curve.collective} {record.nodes}x"
            name += f"{record.curve.ranks // record.nodes} {record.harness[:12]}"
            links = system_of(record).links
            yield from points(Measured(curves=curves, measured_on=links), record, name=name)


def clusters_never_fitted() -> Iterator[HeldOut]:
    """The curves for validation over networks, as predicted for a cluster without any curve.

    The prediction is for the shipped system of the device, with the kind of network and the network
    cards that the source names.
    """
    for record in shipped_curves():
        if record.role != "validate" or record.curve.domains == 1 or not record.curve.fabric:
            continue
        curve, local = record.curve, record.curve.ranks // record.nodes
        system = load_system(system_name(record), gpus=curve.ranks, gpus_per_host=local)
        rate = curve.network_bytes_per_s
        link = fabric_link(curve.fabric, nic_bytes_per_s=rate, nics_per_gpu=1.0)
        topology = replace(system, network_link=link, domain_size=curve.ranks // curve.domains)
        name = f"{record.set_name} {curve.collective} over {curve.domains}"
        yield from points(collective_model(topology), record, name=name, topology=topology)


def thinned(curve: CollectiveCurve, first: int) -> CollectiveCurve:
    """A curve with every second of its points, and both ends.

    Args:
        curve: the curve.
        first: 0 to keep points 0, 2, 4 and so on; 1 to keep points 1, 3, 5 and so on.
    """
    last = len(curve.size_bytes) - 1
    kept = [i for i in range(last + 1) if i % 2 == first or i in (0, last)]
    return replace(
        curve,
        size_bytes=tuple(curve.size_bytes[i] for i in kept),
        time_s=tuple(curve.time_s[i] for i in kept),
    )


# ------------------------------------------------------------------ coverage


WANTED: Final = (0.80, 0.97)
"""The least and the greatest share of measurements inside their intervals that is accepted. Below,
intervals are too narrow; above, they are wider than they need to be."""
_LARGE_BYTES: Final = 2**20
_CONSISTENT: Final = 0.05
"""A share outside of :data:`WANTED` is accepted if it could come from true 90 % intervals with more
than this probability, because there are few rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often the intervals of one family of measurements contain them.

    Attributes:
        family: what was measured.
        rows: number of measurements.
        coverage_ratio: share of measurements inside their intervals.
        width_ratio: median of high / low - 1 over all intervals.
        chance_ratio: probability that the coverage of true 90 % intervals is at least as far from
            0.9. It takes rows as independent; rows of one system are not, so that it is too small
            if few systems were measured.
        counted: whether the family is part of the total.
    """

    family: str
    rows: int
    coverage_ratio: float
    width_ratio: float
    chance_ratio: float
    counted: bool = True

    @property
    def coverage_ok(self) -> bool:
        """Whether the coverage is within 80 to 97 %, or there are too few rows to tell."""
        return self.verdict != "no"

    @property
    def verdict(self) -> str:
        """The same in words."""
        if WANTED[0] <= self.coverage_ratio <= WANTED[1]:
            return "yes"
        is_chance = self.chance_ratio > _CONSISTENT
        return f"too few to tell (p = {self.chance_ratio:.2f})" if is_chance else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPair:
    """Two plans for the same batch on one system.

    Attributes:
        first: name of the case with the first plan.
        second: name of the case with the second plan.
        measured_ratio: measured time of the second plan over that of the first.
        predicted_ratio: predicted time of the second plan over that of the first.
    """

    first: str
    second: str
    measured_ratio: float
    predicted_ratio: float

    @property
    def error_ratio(self) -> float:
        """Signed relative error of the predicted ratio."""
        return self.predicted_ratio / self.measured_ratio - 1.0


def coverages() -> tuple[Coverage, ...]:
    """The coverage of each family, and last that of all counted families together."""
    records = predicting_records()
    others = (p for p in never_fitted(records) if " 1x" in p.case.name)
    large = (p for p in others if p.size_bytes >= _LARGE_BYTES)
    lookups = (p for p in other_lookups() if p.case.groups["role"] == "validate")
    families: tuple[tuple[str, Iterable[Prediction], bool], ...] = (
        ("iteration: published systems", _published(), True),
        ("lookup: H100", lookups, True),
        ("collective: sizes left out", every_other_size(records), True),
        ("collective: other versions", older_versions(records), True),
        ("collective: other harness, >= 1 MiB", large, False),
        ("collective: other clusters", clusters_never_fitted(), False),
    )
    found, together = [], []
    for name, predictions, counted in families:
        rows = list(predictions)
        found.append(_coverage(name, rows, counted=counted))
        together += rows if counted else []
    return (*found, _coverage("all but other harnesses and clusters", together, counted=False))


def published_pairs() -> tuple[PlanPair, ...]:
    """All pairs of different published plans for the same batch on the same system.

    If a plan was measured several times, its median time counts.
    """
    pairs = []
    for runs in grouped(_published(), _question).values():
        plans = [
            (own[0], float(np.median([p.case.measured_s for p in own])))
            for own in grouped(runs, lambda p: p.case.plan).values()
        ]
        pairs += [
            PlanPair(
                first=one.case.name,
                second=other.case.name,
                measured_ratio=other_s / one_s,
                predicted_ratio=other.shipped.time_s / one.shipped.time_s,
            )
            for (one, one_s), (other, other_s) in combinations(plans, 2)
        ]
    return tuple(pairs)


def _question(p: Prediction) -> tuple[str, int, float]:
    """What plans are compared for."""
    topology = p.case.topology
    return topology.name, topology.world_size, p.case.workload.batch_size_per_rank


@cache
def _published() -> tuple[Prediction, ...]:
    """All published cases with their predictions."""
    return tuple(predict(case) for case in load_cases())


def _coverage(family: str, found: Sequence[Prediction], *, counted: bool) -> Coverage:
    """The coverage of a family; the chance is two-sided."""
    from scipy.special import bdtr

    rows, held = len(found), sum(p.is_inside for p in found)
    below, fewer = (float(bdtr(k, rows, 0.9)) if k >= 0 else 0.0 for k in (held, held - 1))
    return Coverage(
        family=family,
        rows=rows,
        coverage_ratio=held / rows,
        width_ratio=float(np.median([p.shipped.high_s / p.shipped.low_s - 1.0 for p in found])),
        chance_ratio=min(1.0, 2.0 * min(below, 1.0 - fewer)),
        counted=counted,
    )
