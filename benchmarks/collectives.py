"""How well collectives are predicted, on figures that the prediction has not seen.

    python benchmarks/collectives.py

Mean absolute error in percent below and from 1 MiB, the 90th percentile from 1 MiB, and the
share of points inside the 90 % interval, for

- sizes:    every other size of a curve is left out and predicted from the rest;
- repeats:  the newest library version predicts the other versions;
- version:  each version is left out and predicted from all others;
- ranks:    4 ranks are predicted from 2 and 8, and 8 from 2 and 4;
- links:    nothing measured on the device: the ramp, and alpha-beta, from the system's link rates;
- like:     from the curves of another system with the same links;
- hosts:    figures over several hosts from those inside one and the link rates;
- validate: rows that are never fitted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import starmap

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import (
    AbstractCollectiveModel,
    CollectiveCurve,
    balanced_s,
)
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.topology import Link, Topology
from planner.errors import InvalidInputError
from planner.io import load_system
from planner.io.collective_curves import PREDICTING_ROLES, CurveRecord, shipped_curves

LARGE = 2**20
Errors = list[tuple[float, float, bool]]


def system_of(record: CurveRecord) -> Topology:
    """The system of a row at its size; devices that are no system borrow one."""
    gpus = {"gpus": record.curve.ranks, "gpus_per_host": record.curve.ranks // record.nodes}
    try:
        topology = load_system(record.set_name, **gpus)
    except InvalidInputError:
        topology = load_system("h100_pcie", **gpus)
    nominal = record.curve.network_bytes_per_s
    if nominal:
        link = Link(latency_s=topology.network_link.latency_s, bandwidth_bytes_per_s=0.82 * nominal)
        topology = replace(topology, network_link=link)
    return topology


def errors(
    model: AbstractCollectiveModel, record: CurveRecord, sizes: Sequence[float] | None = None
) -> Errors:
    """(size, relative error, inside the interval) of a curve's points, or of some of them."""
    curve = record.curve
    wanted = np.array(curve.size_bytes if sizes is None else sizes)
    measured = dict(zip(curve.size_bytes, curve.time_s, strict=True))
    topology = system_of(record)
    predicted = balanced_s(model, curve.collective, wanted, topology)
    truth = np.array([measured[s] for s in wanted])
    wide = np.array(
        [1 + model.confidence(curve.collective, s, topology).spread_ratio for s in wanted]
    )
    held = np.maximum(predicted / truth, truth / predicted) <= wide
    return list(zip(wanted, np.abs(predicted / truth - 1), held, strict=True))


def every_other(records: Sequence[CurveRecord]) -> Iterator[tuple[str, Errors]]:
    """Half of the sizes from the other half."""
    for record in records:
        for first in (0, 1):
            kept = _thinned(record.curve, first)
            left = record.curve.size_bytes[1 + first : -1 : 2]
            left = tuple(s for s in left if s not in kept.size_bytes)
            yield record.set_name, errors(Measured(curves=(kept,)), record, left)


def by_version(
    records: Sequence[CurveRecord], *, newest_only: bool
) -> Iterator[tuple[str, Errors]]:
    """Versions from the newest, or each from all others."""
    groups: dict[object, list[CurveRecord]] = defaultdict(list)
    for r in records:
        if r.curve.version and r.curve.domains == 1:
            groups[(r.set_name, r.curve.collective, r.curve.ranks)].append(r)
    for group in groups.values():
        group.sort(key=lambda r: tuple(map(int, r.curve.version.split("."))))
        for record in group[:-1] if newest_only else group:
            others = [group[-1]] if newest_only else [r for r in group if r is not record]
            if others:
                model = Measured(curves=tuple(r.curve for r in others))
                yield record.set_name, errors(model, record)


def left_out_ranks(records: Sequence[CurveRecord], ranks: int) -> Iterator[tuple[str, Errors]]:
    """A number of ranks from the others of the set."""
    inside = [r for r in records if r.curve.domains == 1]
    for record in inside:
        others = [r.curve for r in inside if r.set_name == record.set_name]
        kept = tuple(c for c in others if c.ranks != ranks)
        if record.curve.ranks == ranks and len({c.ranks for c in kept}) > 1:
            yield record.set_name, errors(Measured(curves=kept), record)


def from_links(
    records: Sequence[CurveRecord], model: AbstractCollectiveModel
) -> Iterator[tuple[str, Errors]]:
    """A device without curves."""
    known = [r for r in records if r.curve.domains == 1 and system_of(r).name == r.set_name]
    return ((r.set_name, errors(model, r)) for r in known)


def from_like(records: Sequence[CurveRecord]) -> Iterator[tuple[str, Errors]]:
    """H100 from H200 and the other way round: the same links."""
    pairs = {"h100_sxm": "h200_sxm", "h200_sxm": "h100_sxm"}
    for record in records:
        like = pairs.get(record.set_name)
        if like and record.curve.domains == 1:
            curves = tuple(
                replace(r.curve, priority=1)
                for r in records
                if r.set_name == like and r.curve.domains == 1
            )
            yield record.set_name, errors(Measured(curves=curves), record)


def over_hosts(records: Sequence[CurveRecord]) -> Iterator[tuple[str, Errors]]:
    """Several hosts from one."""
    for record in records:
        if record.curve.domains > 1:
            system = record.set_name.replace("a100_40gb_abci", "a100_80gb_sxm")
            inside = tuple(
                r.curve for r in records if r.set_name == system and r.curve.domains == 1
            )
            name = f"{record.set_name} {record.curve.collective} {record.curve.ranks}"
            yield name, errors(Measured(curves=inside), replace(record, set_name=system))


def never_fitted(records: Sequence[CurveRecord]) -> Iterator[tuple[str, Errors]]:
    """Rows for validation by the shipped curves of their set."""
    for record in shipped_curves():
        curves = tuple(r.curve for r in records if r.set_name == record.set_name)
        if record.role == "validate" and curves:
            name = f"{record.set_name} {record.curve.collective} {record.nodes}x"
            name += f"{record.curve.ranks // record.nodes} {record.harness[:12]}"
            yield name, errors(Measured(curves=curves), record)


def table(title: str, found: Iterator[tuple[str, Errors]]) -> None:
    """Print one test by set, and all of it."""
    groups: dict[str, Errors] = defaultdict(list)
    for name, items in found:
        groups[name].extend(items)
        groups["all"].extend(items)
    print(f"\n{title:52s} {'< 1 MiB':>14s} {'>= 1 MiB':>14s} {'p90':>7s} {'held':>7s}")
    for name in [*sorted(groups.keys() - {"all"}), "all"]:
        print(f"  {name:50s} {_line(groups[name])}")


def _line(items: Errors) -> str:
    small = [e for s, e, _ in items if s < LARGE]
    large = [e for s, e, _ in items if s >= LARGE]
    shown = [
        f"{100 * np.mean(part):6.1f} ({len(part):4d})" if part else f"{'-':>13s}"
        for part in (small, large)
    ]
    p90 = f"{100 * np.quantile(large, 0.9):6.1f}" if large else " " * 6
    held = 100 * np.mean([inside for _, _, inside in items])
    return f" {shown[0]}  {shown[1]} {p90} {held:7.0f}"


def _thinned(curve: CollectiveCurve, first: int) -> CollectiveCurve:
    last = len(curve.size_bytes) - 1
    kept = [i for i in range(last + 1) if i % 2 == first or i in (0, last)]
    return replace(
        curve,
        size_bytes=tuple(curve.size_bytes[i] for i in kept),
        time_s=tuple(curve.time_s[i] for i in kept),
    )


def main() -> None:
    """All tests."""
    records = [r for r in shipped_curves() if r.role in PREDICTING_ROLES]
    tests: list[tuple[str, Callable[[], Iterator[tuple[str, Errors]]]]] = [
        ("sizes: every other one", lambda: every_other(records)),
        ("repeats: from the newest version", lambda: by_version(records, newest_only=True)),
        ("version: each from all others", lambda: by_version(records, newest_only=False)),
        ("ranks: 4 from 2 and 8", lambda: left_out_ranks(records, 4)),
        ("ranks: 8 from 2 and 4", lambda: left_out_ranks(records, 8)),
        ("links: ramp, nothing measured", lambda: from_links(records, Ramp())),
        ("links: alpha-beta, nothing measured", lambda: from_links(records, AlphaBeta())),
        ("like: H100 from H200, H200 from H100", lambda: from_like(records)),
        ("hosts: from one host and link rates", lambda: over_hosts(records)),
        ("validate: never fitted", lambda: never_fitted(records)),
    ]
    list(starmap(table, ((title, run()) for title, run in tests)))


if __name__ == "__main__":
    main()
