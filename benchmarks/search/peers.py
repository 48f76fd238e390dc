"""Searches of other systems and ours, on the same tasks, with the same prices and seconds.

    python -m benchmarks.search.peers --neuroshard DIR --dreamshard DIR --out peers.csv
    python -m benchmarks.search.peers --table-only --out benchmarks/results/search/peers.csv

Thirty tasks of 50 to 200 tables on 4, 8 or 16 ranks are drawn by the seed
(``peer_searches/tasks.py``). There are two spaces. In ``halving``, tables are whole or have columns
halved again and again, which is the space of NeuroShard; ``all`` has every sharding type and kernel
of this project. Ours runs in both. So do the two searches that are restated from their papers in
our own words: RecShard's integer program, and one like EMBark's. NeuroShard and DreamShard run in
``halving``, from checkouts of their repositories; without these, the benchmark says so and goes on.

Each search has the same CPU seconds, so that other work on the machine changes little, in a process
of its own; imports and listing the space are not counted. Ours runs without its second process that
looks for plans; the one that only proves bounds is not counted. Every search prices its plans by
our pipeline, and its last plan is priced by one function on the full objective. Nothing is
repaired: memory is counted alike for all. Rows that the file holds are not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from benchmarks.search.peer_searches.case import CHECKOUTS, OURS, SEARCHES
from benchmarks.search.peer_searches.tasks import SpaceName, task

FIELDS: Final = (
    *("task", "tables", "ranks", "space", "search", "limit_s", "cpu_s", "wall_s", "priced"),
    *("fits", "iteration_ms"),
)
TIE_RATIO: Final = 1e-6
"""Plans closer than this count as equally good."""
_BAR: Final = 30
_LABELS: Final = {
    "neuroshard": "NeuroShard, run from its repository",
    "dreamshard": "DreamShard, run from its repository",
    "recshard": "RecShard's integer program, restated from the paper",
    "embark": "a search like EMBark's, restated from the paper",
}

Row = dict[str, str]


# ------------------------------------------------------------------ running


def run_missing(chosen: argparse.Namespace, missing: Sequence[str]) -> None:
    """Run what the file lacks of the peers that are there, and add a row for each."""
    done = {(r["task"], r["space"], r["search"]) for r in read(chosen.out)}
    left = {
        number: [
            f"{space.value}:{search}"
            for space, searches in SEARCHES.items()
            for search in searches
            if search not in missing and (str(number), space.value, search) not in done
        ]
        for number in chosen.only or range(chosen.tasks)
    }
    total, so_far = sum(map(len, left.values())), 0
    if not total:
        return
    if not chosen.out.exists():
        tasks = [f"--only {' '.join(map(str, chosen.only))}"] if chosen.only else []
        asked = " ".join([*tasks, f"--seconds {chosen.seconds:g} --seed {chosen.seed}"])
        with chosen.out.open("w", encoding="utf-8", newline="") as file:
            file.write(f"# python -m benchmarks.search.peers {asked} --jobs {chosen.jobs}\n")
            csv.DictWriter(file, FIELDS).writeheader()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(chosen.jobs) as pool:
        chosen.model = chosen.model or Path(temporary) / "dreamshard.pt"
        if "dreamshard" not in missing and not chosen.model.exists():
            _progress(0, total, f"training DreamShard, {chosen.pretrain:g} s")
            subprocess.run([*_case(chosen, chosen.pretrain), "--pretrain"], check=True)
        runs = [pool.submit(_run, chosen, number, wanted) for number, wanted in left.items()]
        for finished in as_completed(runs):
            with chosen.out.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, FIELDS, restval="").writerows(finished.result())
            so_far += len(finished.result())
            _progress(so_far, total, "searches")
    print(file=sys.stderr)


def _case(chosen: argparse.Namespace, seconds: float) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.search.peer_searches.case"]
    command += ["--seconds", str(seconds), "--seed", str(chosen.seed), "--model", str(chosen.model)]
    for name in CHECKOUTS:
        if getattr(chosen, name) is not None:
            command += [f"--{name}", str(getattr(chosen, name))]
    return command


def _run(chosen: argparse.Namespace, number: int, wanted: list[str]) -> list[dict[str, object]]:
    """Some searches on one task, one after the other."""
    if not wanted:
        return []
    command = [*_case(chosen, chosen.seconds), "--task", str(number), "--want", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if len(lines) != len(wanted):
        msg = f"a search failed on task {number}:\n{done.stderr[-2000:]}"
        raise SystemExit(msg)
    given = task(number, chosen.seed)
    sizes = {"tables": len(given.workload.tables), "ranks": given.topology.world_size}
    shared = {"task": number, "limit_s": chosen.seconds, **sizes}
    return [{**shared, **json.loads(line.removeprefix("ROW "))} for line in lines]


def _progress(done: int, total: int, text: str) -> None:
    filled = _BAR * done // total
    bar = "#" * filled + "." * (_BAR - filled)
    print(f"\r[{bar}] {done}/{total} {text:<50}", end="", file=sys.stderr, flush=True)


def missing_checkouts(chosen: argparse.Namespace) -> list[str]:
    """Names of peers whose checkout is not there; says how to get each."""
    missing = []
    for name in CHECKOUTS:
        folder = getattr(chosen, name)
        if folder is None or not (folder / name / "__init__.py").exists():
            missing.append(name)
            print(
                f"without {name}: no checkout of its repository"
                f"{'' if folder is None else f' in {folder}'}; get one (MIT licence) with\n"
                f"    git clone https://github.com/daochenzha/{name}\n"
                f"and name its folder by --{name}"
            )
    return missing


# ------------------------------------------------------------------ the table


def read(out: Path) -> list[Row]:
    """Rows of the file; none if there is no file."""
    if not out.exists():
        return []
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def value(row: Row | None) -> float:
    """Milliseconds of a plan that fits; infinite without one, nan if it was not asked for."""
    if row is None:
        return math.nan
    return float(row["iteration_ms"]) if row["fits"] == "1" else math.inf


def ratios(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """Peer over ours of every task, by space and peer."""
    by = {(r["task"], r["space"], r["search"]): r for r in rows}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (number, space, search), row in by.items():
        ours = value(by.get((number, space, OURS)))
        if search != OURS and math.isfinite(ours):
            found.setdefault((space, search), {})[number] = value(row) / ours
    return found


def geomean(values: Iterable[float]) -> float:
    """Of the finite ones; nan if there are none."""
    logs = [math.log(v) for v in values if math.isfinite(v) and v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def print_table(rows: list[Row]) -> None:
    """Per task what each peer's plan takes over ours, and what that comes to."""
    found = ratios(rows)
    columns = [(s.value, p) for s in SpaceName for p in SEARCHES[s] if (s.value, p) in found]
    print("step time of each peer's plan over that of ours in the same space\n")
    print(f"{'':>25}" + "".join(f"{space:>12}" for space, _ in columns))
    print(f"{'task':>4} {'tables':>8} {'ranks':>10} " + "".join(f"{p:>12}" for _, p in columns))
    for number in sorted({r["task"] for r in rows}, key=int):
        first = next(r for r in rows if r["task"] == number)
        cells = "".join(f"{found[c].get(number, math.nan):>12.4f}" for c in columns)
        print(f"{number:>4} {first['tables']:>8} {first['ranks']:>10} {cells}")
    print(f"\n{'':<52}{'space':>9}{'geomean':>9}{'most':>9}{'least':>9}  won/tied/lost/no plan")
    for space, peer in columns:
        own = list(found[space, peer].values())
        won = sum(1 + TIE_RATIO < r < math.inf for r in own)
        lost = sum(r < 1 - TIE_RATIO for r in own)
        none = sum(math.isinf(r) for r in own)
        finite = [r for r in own if math.isfinite(r)] or [math.nan]
        print(
            f"{_LABELS[peer]:<52}{space:>9}{geomean(own):>9.4f}{max(finite):>9.4f}"
            f"{min(finite):>9.4f}  {won}/{len(own) - won - lost - none}/{lost}/{none}"
        )


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("peers.csv"))
    parser.add_argument("--tasks", type=int, default=30, metavar="N")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="these tasks alone")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU seconds of each search")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--neuroshard", type=Path, metavar="DIR", help="checkout of its repository")
    parser.add_argument("--dreamshard", type=Path, metavar="DIR", help="checkout of its repository")
    parser.add_argument(
        "--pretrain",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="CPU seconds at most for which DreamShard is trained before the tasks",
    )
    parser.add_argument("--model", type=Path, metavar="FILE", help="keep what DreamShard learned")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    if not chosen.table_only:
        run_missing(chosen, missing_checkouts(chosen))
    print_table(read(chosen.out))


if __name__ == "__main__":
    main()
