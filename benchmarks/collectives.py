"""How well collectives are predicted, on figures that the prediction has not seen.

    python benchmarks/collectives.py

Mean absolute error in percent below and from 1 MiB, the 90th percentile from 1 MiB, and the
share of points inside the 90 % interval, for

- sizes:    every other size of a curve is left out and predicted from the rest;
- repeats:  the newest library version predicts the other versions;
- version:  each version is left out and predicted from all others;
- ranks:    4 ranks are predicted from 2 and 8, and 8 from 2 and 4;
- links:    nothing measured on the device: the ramp, and alpha-beta, from the system's link rates;
- moved:    A100, H100 and B200 from one another's curves, rescaled to their own links;
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
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from planner.io.system.collective_curves import CurveRecord
from planner.io.system.system_file import load_system
from planner.validation.intervals import (
    HeldOut,
    every_other_size,
    never_fitted,
    older_versions,
    points,
    predicting_records,
    system_of,
    versions_of,
)

LARGE = 2**20


def left_out_versions(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
    """Each version of the library from all others."""
    for group in versions_of(records):
        for record in group if len(group) > 1 else ():
            others = tuple(r.curve for r in group if r is not record)
            yield from points(Measured(curves=others), record)


def left_out_ranks(records: Sequence[CurveRecord], ranks: int) -> Iterator[HeldOut]:
    """A number of ranks from the others of the set."""
    inside = [r for r in records if r.curve.domains == 1]
    for record in inside:
        others = [r.curve for r in inside if r.set_name == record.set_name]
        kept = tuple(c for c in others if c.ranks != ranks)
        if record.curve.ranks == ranks and len({c.ranks for c in kept}) > 1:
            yield from points(Measured(curves=kept), record)


def from_links(records: Sequence[CurveRecord], model: AbstractCollectiveModel) -> Iterator[HeldOut]:
    """A device without curves."""
    known = [r for r in records if r.curve.domains == 1 and system_of(r).name == r.set_name]
    return (p for r in known for p in points(model, r))


def from_like(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
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
            yield from points(Measured(curves=curves), record)


def moved_links(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
    """One generation of NVSwitch hosts from another's curves and the links of both."""
    sets = ("a100_80gb_sxm", "h100_sxm", "b200_sxm")
    for record in records:
        for other in sets:
            if record.set_name not in sets or other == record.set_name or record.curve.domains > 1:
                continue
            curves = tuple(r.curve for r in records if r.set_name == other and r.curve.domains == 1)
            model = Measured(curves=curves, measured_on=load_system(other).links)
            yield from points(model, record)


def over_hosts(records: Sequence[CurveRecord]) -> Iterator[HeldOut]:
    """Several hosts from one."""
    for record in records:
        if record.curve.domains > 1:
            system = record.set_name.replace("a100_40gb_abci", "a100_80gb_sxm")
            inside = tuple(
                r.curve for r in records if r.set_name == system and r.curve.domains == 1
            )
            name = f"{record.set_name} {record.curve.collective} {record.curve.ranks}"
            moved = replace(record, set_name=system)
            yield from points(Measured(curves=inside), moved, name=name)


def table(title: str, found: Iterator[HeldOut]) -> None:
    """Print one test by set, and all of it."""
    groups: dict[str, list[HeldOut]] = defaultdict(list)
    for point in found:
        groups[point.case.name].append(point)
        groups["all"].append(point)
    print(f"\n{title:52s} {'< 1 MiB':>14s} {'>= 1 MiB':>14s} {'p90':>7s} {'held':>7s}")
    for name in [*sorted(groups.keys() - {"all"}), "all"]:
        print(f"  {name:50s} {_line(groups[name])}")


def _line(found: Sequence[HeldOut]) -> str:
    small = [abs(p.error_ratio) for p in found if p.size_bytes < LARGE]
    large = [abs(p.error_ratio) for p in found if p.size_bytes >= LARGE]
    shown = [
        f"{100 * np.mean(part):6.1f} ({len(part):4d})" if part else f"{'-':>13s}"
        for part in (small, large)
    ]
    p90 = f"{100 * np.quantile(large, 0.9):6.1f}" if large else " " * 6
    held = 100 * np.mean([p.is_inside for p in found])
    return f" {shown[0]}  {shown[1]} {p90} {held:7.0f}"


def main() -> None:
    """All tests."""
    records = predicting_records()
    tests: list[tuple[str, Callable[[], Iterator[HeldOut]]]] = [
        ("sizes: every other one", lambda: every_other_size(records)),
        (
            "repeats: from the newest version",
            lambda: older_versions(records),
        ),
        (
            "version: each from all others",
            lambda: left_out_versions(records),
        ),
        ("ranks: 4 from 2 and 8", lambda: left_out_ranks(records, 4)),
        ("ranks: 8 from 2 and 4", lambda: left_out_ranks(records, 8)),
        ("links: ramp, nothing measured", lambda: from_links(records, Ramp())),
        ("links: alpha-beta, nothing measured", lambda: from_links(records, AlphaBeta())),
        ("moved: A100, H100, B200 by their links", lambda: moved_links(records)),
        ("like: H100 from H200, H200 from H100", lambda: from_like(records)),
        ("hosts: from one host and link rates", lambda: over_hosts(records)),
        ("validate: never fitted", lambda: never_fitted(records)),
    ]
    list(starmap(table, ((title, run()) for title, run in tests)))


if __name__ == "__main__":
    main()
