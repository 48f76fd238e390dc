"""What ``sweep`` and ``size`` print and write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodels import units
from planner.cli.printing.show import print_rows
from planner.errors import InvalidInputError
from planner.support.atomic import write_texts_atomic
from planner.support.csv_text import csv_text
from planner.support.digits import format_gap, significant
from planner.support.places import behind_links
from planner.sweep.growth import slowdowns
from planner.sweep.outcome import CUT, PointResult, PointStatus, pareto
from planner.sweep.runner import Journal

if TYPE_CHECKING:
    from planner.sweep.size import Sizing

POINTS_FILE = "points.jsonl"
TABLE_FILE = "sweep.csv"
PAGE_FILE = "sweep.html"

_FILES = frozenset({POINTS_FILE, TABLE_FILE, PAGE_FILE})


def open_journal(folder: Path) -> Journal:
    """The results of an earlier run in a folder, and where new ones go.

    Raises:
        InvalidInputError: the folder holds something else, or cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        message = f"--output {folder} is a file; name a folder"
        raise InvalidInputError(message)
    try:
        behind_links(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"--output {folder}: cannot be made: {error.strerror}"
        raise InvalidInputError(message) from error
    other = sorted(p.name for p in folder.iterdir() if p.name not in _FILES)
    if other and POINTS_FILE not in {p.name for p in folder.iterdir()}:
        message = f"--output {folder} holds {', '.join(other[:3])}; name another folder"
        raise InvalidInputError(message)
    return Journal(folder / POINTS_FILE)


def write(folder: Path, name: str, results: Sequence[PointResult]) -> tuple[Path, ...]:
    """The table as CSV and the page."""
    from planner.sweep.page import sweep_page

    paths = folder / TABLE_FILE, folder / PAGE_FILE
    write_texts_atomic({paths[0]: as_csv(results), paths[1]: sweep_page(name, results)})
    return paths


def as_csv(results: Sequence[PointResult]) -> str:
    """One row per point; figures in SI units."""
    front = set(pareto(results))
    rows = [{**r.to_json(), "pareto": r in front} for r in results]
    names = list(rows[0]) if rows else []
    return csv_text(names, ([row[name] for name in names] for row in rows))


def as_json(name: str, results: Sequence[PointResult]) -> dict[str, Any]:
    """The points in the order of the grid."""
    front = set(pareto(results))
    return {
        "workload": name,
        "points": [{**r.to_json(), "pareto": r in front} for r in results],
    }


def print_points(name: str, results: Sequence[PointResult]) -> None:
    """A row per point, those on the front marked."""
    front = set(pareto(results))
    columns = ["", "system", "GPUs", "batch", "iteration", "M/s", "gap?", "free?", "USD/1e9"]
    rows = [["*" if r in front else "", *_cells(r)] for r in results]
    if any(r.checkpoint_interval_s for r in results):
        columns.append("checkpoint every?")
        for row, result in zip(rows, results, strict=True):
            every_s = result.checkpoint_interval_s
            row.append("" if every_s is None else units.format_long_time(every_s))
    title = f"Best plan of {name} on each point (* no other is both faster and cheaper)"
    print_rows(title, tuple(columns), tuple(map(tuple, rows)))
    _print_failed(results)


def _print_failed(results: Sequence[PointResult]) -> None:
    """Why points failed, if some did."""
    failed = [(r.point.name, r.reason) for r in results if r.status is PointStatus.FAILED]
    if failed:
        print_rows("", ("failed", "why"), failed)


def remarks(results: Sequence[PointResult]) -> tuple[str, ...]:
    """Remarks on larger clusters that are slower, and on points whose search the clock cut."""
    slower = [slowdown.text for slowdown in slowdowns(results)]
    cut = sum(result.reason == CUT for result in results)
    if not cut:
        return tuple(slower)
    text = (
        f"--time-limit cut the search of {cut} of {len(results)} points: a faster or idler machine "
        "may find better plans for them"
    )
    return (*slower, text)


def stopped(by: str, done: int, asked: int) -> str:
    """A remark on a sweep that something ended early."""
    if done < asked:
        return f"stopped by {by} after {done} of {asked} points"
    return f"stopped by {by} while plans were handed on, after a first search of all {asked} points"


def _cells(result: PointResult) -> tuple[str, ...]:
    point = result.point
    system = point.system if point.pipeline is None else f"{point.system} {point.pipeline.value}"
    start = (Path(system).stem if "/" in system else system, str(point.gpus))
    batch = f"{result.local_batch_size:,}" if result.local_batch_size else ""
    if result.iteration_time_s is None or result.trained_samples_per_s is None:
        return (*start, batch, result.status.value.replace("_", " "), "", "", "", "")
    cost = result.usd_per_billion_samples
    return (
        *start,
        batch,
        units.format_time(result.iteration_time_s),
        significant(result.trained_samples_per_s / 1e6),
        _gap(result),
        units.format_bytes(result.headroom_bytes or 0.0),
        "" if cost is None else significant(cost),
    )


def _gap(result: PointResult) -> str:
    gap = result.gap_ratio
    return "" if gap is None else format_gap(gap)


def sizings_json(target: float, sizings: Sequence[Sizing]) -> dict[str, Any]:
    """Every system with its answer, the sizes tried, and those that were proven too slow."""
    return {
        "target_samples_per_s": target,
        "systems": [
            {
                "system": s.system,
                "answer": None if s.answer is None else s.answer.to_json(),
                "tried": [r.to_json() for r in s.tried],
                "ruled_out_gpus": list(s.ruled_out),
                "is_cut": s.is_cut,
            }
            for s in sizings
        ],
    }


def write_sizings(path: Path, target: float, sizings: Sequence[Sizing]) -> None:
    """The same as a file, whole or not at all."""
    text = json.dumps(sizings_json(target, sizings), indent=2, allow_nan=False)
    write_texts_atomic({path: text + "\n"})


def print_sizings(target: float, sizings: Sequence[Sizing]) -> None:
    """A row per system; for those that never reach the target, the best that was seen.

    Where no size has a plan, the smallest one that failed is shown with the reason.
    """
    columns = ("system", "GPUs", "M/s", "iteration", "USD/h", "USD/1e9", "")
    rows: list[tuple[str, ...]] = []
    without: list[PointResult] = []
    for sizing in sizings:
        answer, note = sizing.answer, "stopped: fewer may do" if sizing.is_cut else ""
        if answer is None:
            done = [r for r in sizing.tried if r.trained_samples_per_s is not None]
            if not done:
                failed = [r for r in sizing.tried if r.status is PointStatus.FAILED]
                all_failed = len(failed) == len(sizing.tried)
                why = "every size failed" if all_failed else "nothing tried fits"
                why = "stopped before any size was done" if not sizing.tried else why
                rows.append((sizing.system, "", "", "", "", "", why))
                without += failed[:1]
                continue
            answer = max(done, key=lambda r: r.trained_samples_per_s or 0.0)
            note = "not enough: best size tried"
            note += " before it was stopped" if sizing.is_cut else ""
        rows.append((sizing.system, *_size_cells(answer), note))
    print_rows(f"Fewest hosts for {significant(target / 1e6)} M samples/s", columns, rows)
    _print_failed(without)


def _size_cells(result: PointResult) -> tuple[str, ...]:
    paid, cost = result.price_usd_per_hour, result.usd_per_billion_samples
    return (
        str(result.point.gpus),
        significant((result.trained_samples_per_s or 0.0) / 1e6),
        units.format_time(result.iteration_time_s or 0.0),
        "" if paid is None else significant(paid),
        "" if cost is None else significant(cost),
    )
