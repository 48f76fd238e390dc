"""Collective curves predicted from other curves.

What is predicted is left out of the curves that predict it: sizes, versions of the library, other
harnesses (programs that measured), and whole clusters.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.collective.base import AbstractCollectiveModel, balanced_s
from costmodels.collective.measured import Measured
from costmodels.fabrics import fabric_link
from costmodels.measured.curves import CollectiveCurve
from costmodels.system_models import collective_model
from costmodels.topology import Link, Topology
from planner.errors import InvalidInputError
from planner.io.system.collective_curves import PREDICTING_ROLES, CurveRecord, shipped_curves
from planner.io.system.system_file import load_system

_TYPICAL_EFFICIENCY = 0.82
"""Achieved over nominal rate of the network of a cluster, as in :mod:`costmodels.collective`: what
all-gathers and all-reduces reach on tuned networks."""

_OF_DEVICE = {
    "A100-SXM4-40GB": "a100_40gb_sxm",
    "B300-SXM": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
    "H200-SXM-141GB": "h200_sxm",
    "MI355X": "mi355x",
}
"""The shipped systems of the devices in clusters that no prediction has seen."""
SYSTEMS = {
    "a100_40gb_abci": "a100_80gb_sxm",
    "alcf_polaris": "a100_80gb_sxm",
    "alcf_polaris_tcp": "a100_80gb_sxm",
    "alcf_sophia": "a100_80gb_sxm",
    "aws_p6_b200": "b200_sxm",
    "gcp_a3_high": "h100_sxm",
    "gcp_a3_mega": "h100_sxm",
    "gh200": "h100_sxm",
}
"""The shipped systems of sets of curves that are named after a cluster instead of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One point of a curve, and its prediction, which has not seen it.

    Attributes:
        name: name of the group that the point belongs to, for tables.
        size_bytes: size as nccl-tests counts it.
        predicted_s: predicted seconds.
        measured_s: measured seconds.
        spread_ratio: the 90 % interval is the prediction divided and multiplied by 1 + this.
    """

    name: str
    size_bytes: float
    predicted_s: float
    measured_s: float
    spread_ratio: float

    @property
    def error_ratio(self) -> float:
        """Absolute value of the relative error of the prediction."""
        return abs(self.predicted_s / self.measured_s - 1.0)

    @property
    def inside(self) -> bool:
        """Whether the measurement lies inside the interval."""
        apart = max(self.predicted_s / self.measured_s, self.measured_s / self.predicted_s)
        return apart <= 1.0 + self.spread_ratio


def predicting_records() -> tuple[CurveRecord, ...]:
    """The shipped curves that predictions may rest on, without those for validation."""
    return tuple(r for r in shipped_curves() if r.role in PREDICTING_ROLES)


@functools.cache
def system_of(record: CurveRecord) -> Topology:
    """The system on which a curve was measured, with its number of hosts and GPUs.

    A device of no shipped system gets the system ``h100_pcie``. If the rate of the network is
    known, the system has a network of no named kind with the typical share of this rate.
    """
    gpus, per_host = record.curve.ranks, record.curve.ranks // record.nodes
    system = SYSTEMS.get(record.set_name, record.set_name)
    try:
        topology = load_system(system, gpus=gpus, gpus_per_host=per_host)
    except InvalidInputError:
        topology = load_system("h100_pcie", gpus=gpus, gpus_per_host=per_host)
    nominal = record.curve.network_bytes_per_s
    if not nominal:
        return topology
    link = Link(
        latency_s=topology.network_link.latency_s,
        bandwidth_bytes_per_s=_TYPICAL_EFFICIENCY * nominal,
    )
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
    return [
        HeldOut(
            name=name or record.set_name,
            size_bytes=float(size),
            predicted_s=float(seconds),
            measured_s=measured[size],
            spread_ratio=model.confidence(curve.collective, size, topology).spread_ratio,
        )
        for size, seconds in zip(wanted, predicted, strict=True)
    ]


def every_other_size(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
    """The sizes of each curve, every second one predicted from the others of the same curve."""
    for record in records:
        for first in (0, 1):
            kept = thinned(record.curve, first)
            left = tuple(s for s in record.curve.size_bytes if s not in kept.size_bytes)
            yield from points(Measured(curves=(kept,)), record, left)


def predict_across_versions(
    records: Sequence[CurveRecord], *, newest_only: bool
) -> Iterator[HeldOut]:
    """Curves of one version of the library inside a domain, predicted from other versions.

    Args:
        records: the curves.
        newest_only: whether the newest version predicts all others. Otherwise each version is
            predicted from all others.
    """
    groups: dict[object, list[CurveRecord]] = defaultdict(list)
    for r in records:
        if r.curve.version and r.curve.domains == 1:
            groups[(r.set_name, r.curve.collective, r.curve.ranks)].append(r)
    for group in groups.values():
        group.sort(key=lambda r: tuple(map(int, r.curve.version.split("."))))
        for record in group[:-1] if newest_only else group:
            others = [group[-1]] if newest_only else [r for r in group if r is not record]
            if others:
                yield from points(Measured(curves=tuple(r.curve for r in others)), record)


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
        topology = _cluster(record)
        name = f"{record.set_name} {record.curve.collective} over {record.curve.domains}"
        yield from points(collective_model(topology), record, name=name, topology=topology)


def _cluster(record: CurveRecord) -> Topology:
    """The shipped system of a curve's device, with the network that its source names."""
    curve = record.curve
    system = load_system(
        _OF_DEVICE[record.device], gpus=curve.ranks, gpus_per_host=curve.ranks // record.nodes
    )
    link = fabric_link(curve.fabric, nic_bytes_per_s=curve.network_bytes_per_s, nics_per_gpu=1.0)
    return replace(system, network_link=link, domain_size=curve.ranks // curve.domains)


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
