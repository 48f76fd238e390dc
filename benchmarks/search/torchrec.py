"""TorchRec's planner and ours, side by side, on TorchRec's own terms.

Run it from the root of the repository, with torchrec installed::

    python -m benchmarks.search.torchrec --out torchrec.csv

Four of TorchRec's planners take part: its default, the default without kernels in host memory, one
that places by cost instead of by size, and its dynamic program; ours for its rating, for its
critical path, and for its rating with only TorchRec's options. All plans are judged by TorchRec's
code (``rating``: most costly rank; ``path``: the critical path it prints) and by our pipeline
(``iteration``). Rows that the file holds already are not run again. Times are wall times from
model to plan, imports aside, one planner at a time.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.search.torchrec_instances import NAMES

INCUMBENTS: Final = ("default", "hbm", "perf", "dp")
OURS: Final = ("ours", "ours-critical", "ours-their-options")
FIELDS: Final = (
    *("instance", "planner", "limit_s", "found", "fits", "seconds", "best_s", "rating_ms"),
    *("critical_path_ms", "iteration_ms", "bound_ms", "value_ms", "proposals", "error"),
    "progress",
)
_GRACE_S: Final = 120.0
"""A planner that does not keep its limit is ended so much later."""
_AS_GOOD: Final = 1.0 + 1e-9

Row = dict[str, str]


def run_missing(
    out: Path, instances: list[str], planners: list[str], limits: dict[str, float]
) -> None:
    """Run what the file lacks, and add a row for each."""
    done = {(r["instance"], r["planner"]) for r in read(out)}
    if not out.exists():
        with out.open("w", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, FIELDS).writeheader()
    for name in instances:
        for planner in planners:
            if (name, planner) in done:
                continue
            limit_s = limits["ours" if planner in OURS else "theirs"]
            row = run(name, planner, limit_s)
            if "failed" in row:
                print(f"{name:<24}{planner:<20}no row written: {row['failed']}", flush=True)
                continue
            with out.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, FIELDS, restval="").writerow(row)
            shown = {k: row.get(k) for k in ("found", "seconds", "rating_ms", "critical_path_ms")}
            print(f"{name:<24}{planner:<20}{shown} {row.get('error', '')}", flush=True)


def run(name: str, planner: str, limit_s: float) -> dict[str, object]:
    """One planner on one instance, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.search.torchrec_case", "--instance", name]
    command += ["--planner", planner, "--limit-s", str(limit_s)]
    row: dict[str, object] = {"instance": name, "planner": planner, "limit_s": limit_s, "found": 0}
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_s + _GRACE_S
        )
    except subprocess.TimeoutExpired:
        return {**row, "seconds": time.perf_counter() - started, "error": "ended: over its limit"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if not lines:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return {**row, "failed": last[:160]}
    return {**row, **json.loads(lines[-1].removeprefix("ROW "))}


def read(out: Path) -> list[Row]:
    """Rows of the file; none if there is no file."""
    if not out.exists():
        return []
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------ the table


class Case:
    """All rows of one instance."""

    def __init__(self, name: str, rows: Iterable[Row]) -> None:
        """Keep the rows by planner."""
        self.name = name
        self.rows = {r["planner"]: r for r in rows}

    def value(self, planner: str, field: str) -> float:
        """A figure of a plan that fits; infinite without one."""
        row = self.rows.get(planner)
        if row is None or not row["found"] or row["found"] == "0" or row["fits"] == "0":
            return math.inf
        return float(row[field])

    def best(self, field: str) -> tuple[float, str]:
        """Best incumbent, and which it is."""
        return min((self.value(p, field), p) for p in INCUMBENTS)

    def gap(self, planner: str) -> float:
        """Share of our plan that lies above the proven bound."""
        value = self.value(planner, "value_ms")
        return (
            (value - float(self.rows[planner]["bound_ms"])) / value
            if value < math.inf
            else math.inf
        )

    def sooner(self, planner: str, field: str) -> float:
        """Seconds of the best incumbent over ours to a plan as good as its."""
        target, rival = self.best(field)
        row = self.rows.get(planner)
        if row is None or not row["progress"] or not math.isfinite(target):
            return math.nan
        history = json.loads(row["progress"])
        ours = next((s for s, value in history if value <= target * _AS_GOOD), math.inf)
        return float(self.rows[rival]["seconds"]) / max(ours, 1e-3)


def geomean(values: Iterable[float]) -> float:
    """Of the finite ones; nan if there are none."""
    logs = [math.log(v) for v in values if math.isfinite(v) and v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def print_table(rows: list[Row]) -> None:
    """One line per instance, and the geometric means."""
    names = list(dict.fromkeys(r["instance"] for r in rows))
    cases = [Case(n, [r for r in rows if r["instance"] == n]) for n in names]
    cases = [c for c in cases if "ours" in c.rows]
    print(
        f"\n{'instance':<24}{'default':>10}{'best of 4':>11} {'':<8}{'ours':>10}{'gap':>8}"
        f"{'def/ours':>10}{'best/ours':>10}{'sooner':>9}{'same opt.':>10}"
        f"{'path best':>11}{'path ours':>11}{'gap':>8}{'best/ours':>10}"
    )
    for case in cases:
        print(_line(case))
    print(
        f"\ngeometric means: default/ours {geomean(_ratios(cases, 'default')):.3f}   "
        f"best of four/ours {geomean(_ratios(cases, None)):.3f}   "
        f"critical path: best of four/ours {geomean(_path_ratios(cases)):.3f}   "
        f"sooner {geomean(c.sooner('ours', 'rating_ms') for c in cases):.1f}x"
    )
    if not cases:
        return
    least = min(cases, key=lambda c: c.best("rating_ms")[0] / c.value("ours", "rating_ms"))
    slowest = min(cases, key=lambda c: c.sooner("ours", "rating_ms"))
    few = [c.sooner("ours", "rating_ms") for c in cases if c.name.startswith("criteo26@")]
    print(
        f"medians: default/ours {statistics.median(_ratios(cases, 'default')):.3f}   "
        f"best of four/ours {statistics.median(_ratios(cases, None)):.3f}\n"
        f"least: best of four/ours {min(_ratios(cases, None)):.3f} ({least.name})   "
        f"sooner {slowest.sooner('ours', 'rating_ms'):.1f}x ({slowest.name})   "
        f"sooner at 26 tables, geometric mean {geomean(few):.1f}x"
    )
    worse = [
        c.name for c in cases if c.value("ours", "rating_ms") > c.best("rating_ms")[0] * _AS_GOOD
    ]
    print(f"worse than the best of four: {', '.join(worse) or 'nowhere'}")


def _line(case: Case) -> str:
    best, rival = case.best("rating_ms")
    ours, default = case.value("ours", "rating_ms"), case.value("default", "rating_ms")
    path, ours_path = (
        case.best("critical_path_ms")[0],
        case.value("ours-critical", "critical_path_ms"),
    )
    path_gap = case.gap("ours-critical") if "ours-critical" in case.rows else math.nan
    same = case.value("ours-their-options", "rating_ms")
    return (
        f"{case.name:<24}{default:>10.3f}{best:>11.3f} {rival:<8}{ours:>10.3f}"
        f"{100 * case.gap('ours'):>7.2f}%{default / ours:>10.3f}{best / ours:>10.3f}"
        f"{case.sooner('ours', 'rating_ms'):>8.1f}x{same:>10.3f}"
        f"{path:>11.3f}{ours_path:>11.3f}{100 * path_gap:>7.2f}%{path / ours_path:>10.3f}"
    )


def _ratios(cases: list[Case], planner: str | None) -> list[float]:
    field = "rating_ms"
    return [
        (c.value(planner, field) if planner else c.best(field)[0]) / c.value("ours", field)
        for c in cases
    ]


def _path_ratios(cases: list[Case]) -> list[float]:
    field = "critical_path_ms"
    return [c.best(field)[0] / c.value("ours-critical", field) for c in cases]


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("torchrec.csv"))
    parser.add_argument("--instances", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--planners", nargs="*", default=[*INCUMBENTS, *OURS])
    parser.add_argument("--limit-s", type=float, default=300.0, help="of each of TorchRec's")
    parser.add_argument("--our-limit-s", type=float, default=60.0)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    names = [n for n in NAMES if any(fnmatch.fnmatch(n, p) for p in chosen.instances)]
    if not chosen.table_only:
        limits = {"ours": chosen.our_limit_s, "theirs": chosen.limit_s}
        run_missing(chosen.out, names, chosen.planners, limits)
    print_table([r for r in read(chosen.out) if r["instance"] in names])


if __name__ == "__main__":
    main()
