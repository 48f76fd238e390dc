"""Plan or bound: how much of a wide gap at few shards per rank is the plan's?

    python -m benchmarks.search.patterns --case 26x64 --time-limit 1200

The instances are those of ``benchmarks.search.additive``. The usual search gives a plan and a
bound. Then the bound by patterns (``planner/search/bounds/patterns``) is raised from there as long
as there is time, also where a search would not compute it. What is left between it and the plan is
the most that any plan could gain; the rest of the gap is the fault of the search's bound. ``--out
FILE`` adds the outcome to a table, and ``--table-only`` prints that.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.search.additive import COLUMNS, AdditivePhases, search, space_of
from planner.search.bounds.patterns.pattern_bound import PatternBound
from planner.search.bounds.patterns.task import PatternTask
from planner.search.common.linear import LinearModel
from planner.space.effort import Meter
from planner.space.evaluation import SearchSpace

FIELDS: Final = ("case", "plan_ms", "search_bound_ms", "pattern_bound_ms", "boxes", "seconds")


def main() -> None:
    """A search, then boxes as long as there is time; a line per report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--case", default="26x64", metavar="TABLESxRANKS")
    parser.add_argument("--search-limit", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--time-limit", type=float, default=1200.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, help="table that the outcome is added to")
    parser.add_argument("--table-only", action="store_true", help="print the table of --out")
    chosen = parser.parse_args()
    if not chosen.table_only:
        row = outcome(chosen.case, chosen.search_limit, chosen.time_limit)
        if chosen.out is not None:
            _add(chosen.out, row)
    if chosen.table_only and chosen.out is not None:
        with chosen.out.open() as file:
            for stored in csv.DictReader(file):
                print(_line({name: stored[name] for name in FIELDS}))


def outcome(case: str, search_limit_s: float, time_limit_s: float) -> dict[str, str]:
    """Plan and bounds of a case, as written into the table; reports are printed on the way."""
    space = space_of(case)
    found = search(space, search_limit_s)
    value = float(found.values[0])
    task = PatternTask.of(linear_model(space), found.assignments[0], value)
    if task is None:
        msg = f"{case}: no load counts, so that there is nothing to prove"
        raise ValueError(msg)
    start = time.perf_counter()
    patterns = PatternBound(task, found.bound or 0.0, Meter())

    def seconds() -> float:
        return time.perf_counter() - start

    goes_on = True
    while True:
        row = {
            "case": case,
            "plan_ms": f"{value * 1e3:.5f}",
            "search_bound_ms": f"{(found.bound or 0.0) * 1e3:.5f}",
            "pattern_bound_ms": f"{patterns.bound * 1e3:.5f}",
            "boxes": str(patterns.num_boxes),
            "seconds": f"{seconds():.0f}",
        }
        print(_line(row), flush=True)
        if not goes_on:
            return row
        goes_on = patterns.advance(lambda: seconds() > time_limit_s)


def linear_model(space: SearchSpace) -> LinearModel:
    """The loads of an additive instance, each of the two link levels on its own."""
    model = LinearModel(space, AdditivePhases())
    for column in range(COLUMNS):
        model.add_tangents(np.eye(COLUMNS)[column])
    return model


def _line(row: dict[str, str]) -> str:
    value, known, proven = (
        float(row[f"{n}_ms"]) for n in ("plan", "search_bound", "pattern_bound")
    )
    best = max(known, proven)
    return (
        f"{row['case']}: plan {value:.5f} ms; bound of the search {known:.5f} ms, gap "
        f"{1 - known / value:.2%}; bound of patterns {proven:.5f} ms after {row['seconds']} s, "
        f"{row['boxes']} boxes: the plan is at most {value / best - 1:.2%} above the optimum"
    )


def _add(path: Path, row: dict[str, str]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
