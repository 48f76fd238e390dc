"""How often 90 % intervals hold measurements that no model saw (``validate intervals``)."""

from __future__ import annotations

import csv
import io as text_io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from planner.errors import InvalidInputError
from planner.io.documents import read_text
from planner.io.library import configs_folder
from planner.io.system.system_file import load_system
from planner.predict.lookup import LOOKUP_COLUMNS, predict_lookups
from planner.predict.rows import Predicted, read_table
from planner.validation.held_out import (
    HeldOut,
    clusters_never_fitted,
    every_other_size,
    never_fitted,
    predict_across_versions,
    predicting_records,
)
from planner.validation.published import PublishedPrediction, load_cases, predict

WANTED: Final = (0.80, 0.97)
"""Coverage that a 90 % interval may have on a sample."""
_LOOKUP_SYSTEMS: Final = {"H100-SXM5-80GB": "h100_sxm"}
_LARGE_BYTES: Final = 2**20
_CONSISTENT: Final = 0.05
_RUN_COLUMNS: Final = ("predicted_s", "low_s", "high_s", "measured_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """One family of measurements.

    ``width_ratio`` is the median of high / low - 1. ``chance_ratio`` is the probability that true
    90 % intervals hold a share at least as far from 0.9; rows of one system are not independent, so
    that it is too small where few systems were measured. ``counted`` families make the total.
    """

    family: str
    rows: int
    coverage_ratio: float
    width_ratio: float
    chance_ratio: float
    counted: bool = True

    @property
    def coverage_ok(self) -> bool:
        """Within 80 to 97 %, or so few rows that nothing can be told."""
        low, high = WANTED
        return low <= self.coverage_ratio <= high or self.chance_ratio > _CONSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPair:
    """Two plans on one system: measured and predicted time of the second over the first."""

    first: str
    second: str
    measured_ratio: float
    predicted_ratio: float

    @property
    def error_ratio(self) -> float:
        """Error of the ratio."""
        return self.predicted_ratio / self.measured_ratio - 1.0


def coverages(runs: Path | None = None) -> tuple[Coverage, ...]:
    """Every family, and all of them together in the last place.

    Args:
        runs: a file that ``validate torchrec -o`` wrote; its runs are one more family.

    Raises:
        InvalidInputError: the file cannot be read.
    """
    of_runs = None if runs is None else _run_rows(runs)
    records = predicting_records()
    other = list(never_fitted(records))
    families: list[tuple[str, list[tuple[bool, float]], bool]] = [
        ("iteration: published systems", _published_rows(), True),
        *((f"lookup: {name}", rows, True) for name, rows in _lookup_rows().items()),
        ("collective: sizes left out", _curve_rows(every_other_size(records)), True),
        (
            "collective: other versions",
            _curve_rows(predict_across_versions(records, newest_only=True)),
            True,
        ),
        (
            "collective: other harness, >= 1 MiB",
            _curve_rows(p for p in other if p.size_bytes >= _LARGE_BYTES and _inside_host(p)),
            False,
        ),
        (
            "collective: other clusters",
            _curve_rows(clusters_never_fitted()),
            False,
        ),
    ]
    if of_runs is not None:
        families.append(("iteration: runs of this machine", of_runs, True))
    found = [_coverage(name, rows, counted=counted) for name, rows, counted in families]
    together = [row for _, rows, counted in families if counted for row in rows]
    return (*found, _coverage("all but other harnesses and clusters", together, counted=False))


def published_pairs() -> tuple[PlanPair, ...]:
    """Median times of the different plans for one batch on one system, two at a time."""
    groups: dict[tuple[str, int, int], dict[object, list[PublishedPrediction]]] = {}
    for p in _published():
        topology, batch = p.case.problem.topology, p.case.problem.workload.local_batch_size
        plans = groups.setdefault((topology.name, topology.world_size, batch), {})
        plans.setdefault(p.case.plan, []).append(p)
    pairs = []
    for plans in groups.values():
        for first, second in combinations(plans.values(), 2):
            measured = [float(np.median([p.case.measured_s for p in g])) for g in (first, second)]
            predicted = [g[0].predicted.time_s for g in (first, second)]
            pairs.append(
                PlanPair(
                    first=first[0].case.name,
                    second=second[0].case.name,
                    measured_ratio=measured[1] / measured[0],
                    predicted_ratio=predicted[1] / predicted[0],
                )
            )
    return tuple(pairs)


@cache
def _published() -> tuple[PublishedPrediction, ...]:
    return tuple(predict(case) for case in load_cases())


def _published_rows() -> list[tuple[bool, float]]:
    return [_row(p.case.measured_s, p.predicted.low_s, p.predicted.high_s) for p in _published()]


def _lookup_rows() -> dict[str, list[tuple[bool, float]]]:
    table = read_table(configs_folder() / "published" / "lookup_points.csv", LOOKUP_COLUMNS)
    found: dict[str, list[tuple[bool, float]]] = {}
    for device, system in _LOOKUP_SYSTEMS.items():
        for row, p in zip(table.rows, predict_lookups(table, load_system(system)), strict=True):
            held = row["device"] == device and row["role"] == "validate"
            if held and isinstance(p, Predicted):
                rows = found.setdefault(device.split("-")[0], [])
                rows.append(_row(float(row["time_us"]) * 1e-6, p.low_s, p.high_s))
    return found


def _curve_rows(points: Iterable[HeldOut]) -> list[tuple[bool, float]]:
    return [(p.inside, (1.0 + p.spread_ratio) ** 2 - 1.0) for p in points]


def _inside_host(point: HeldOut) -> bool:
    return " 1x" in point.name


def _run_rows(path: Path) -> list[tuple[bool, float]]:
    reader = csv.DictReader(text_io.StringIO(read_text(path), newline=""))
    missing = [c for c in _RUN_COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        message = f"{path}: columns {', '.join(missing)} are missing; give the file of runs that "
        message += "'shardplan validate torchrec -o DIR' writes"
        raise InvalidInputError(message)
    try:
        rows = [_row(float(r["measured_s"]), float(r["low_s"]), float(r["high_s"])) for r in reader]
    except ValueError as error:
        message = f"{path}: {error}"
        raise InvalidInputError(message) from error
    if not rows:
        message = f"{path}: no rows below the header"
        raise InvalidInputError(message)
    return rows


def _row(measured_s: float, low_s: float, high_s: float) -> tuple[bool, float]:
    if not (low_s > 0 and high_s >= low_s and measured_s > 0):
        message = f"times must be above 0 and low <= high, got {measured_s}, {low_s}, {high_s}"
        raise ValueError(message)
    return low_s <= measured_s <= high_s, high_s / low_s - 1.0


def _coverage(family: str, rows: list[tuple[bool, float]], *, counted: bool) -> Coverage:
    held = sum(inside for inside, _ in rows)
    return Coverage(
        family=family,
        rows=len(rows),
        coverage_ratio=held / len(rows) if rows else math.nan,
        width_ratio=float(np.median([width for _, width in rows])) if rows else math.nan,
        chance_ratio=_chance(held, len(rows)),
        counted=counted,
    )


def _chance(held: int, rows: int) -> float:
    """Two-sided probability of so many of ``rows`` when each is held with probability 0.9."""
    from scipy.special import bdtr

    if rows == 0:
        return 1.0
    below = float(bdtr(held, rows, 0.9))
    above = 1.0 - (float(bdtr(held - 1, rows, 0.9)) if held > 0 else 0.0)
    return min(1.0, 2.0 * min(below, above))
