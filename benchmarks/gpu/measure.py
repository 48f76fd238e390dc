"""Measure a GPU: what it reaches, and what FBGEMM's lookups take on it.

    python -m benchmarks.gpu.measure --out measured

Writes ``basics.csv``, ``dense.csv``, ``lookups.csv`` and ``mixed.csv`` row by row and ends within
``--minutes``. ``--device cpu --quick`` proves in seconds that it runs. Needs PyTorch; FBGEMM where
lookups should be those that TorchRec runs.
"""

from __future__ import annotations

import argparse
import csv
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import torch

from benchmarks.gpu import basics, lookups
from benchmarks.gpu.clock import Clock

Row = dict[str, object]
Block = tuple[str, Callable[[], Iterator[Row]]]


def append(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a CSV file, with its header if it is new."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def blocks(clock: Clock, *, quick: bool, seed: int) -> Iterator[Block]:
    """The ceilings first, then drawn calls without end, or one of each kind."""
    for kind in (basics.copies, basics.sorts, basics.launches):
        yield "basics.csv", lambda kind=kind: kind(clock, quick=quick)
    yield "dense.csv", lambda: basics.products(clock, quick=quick)
    rng, limits = random.Random(seed), lookups.QUICK if quick else lookups.FULL
    kinds = [("hbm", False), ("hbm", True), ("hbm", False), ("uvm_caching", False)]
    for location, mixed in islice(cycle(kinds), len(kinds) if quick else None):
        yield (
            "mixed.csv" if mixed else "lookups.csv",
            lambda where=location, mix=mixed: lookups.lookup_rows(
                clock, limits, rng, where, mixed=mix
            ),
        )


def machine(device: torch.device) -> Row:
    """What every row says about where it was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda or ""}


def run(out: Path, clock: Clock, *, quick: bool, seed: int, deadline: float) -> None:
    """Measure block by block until all is done or time is up; a call too large is left out."""
    out.mkdir(parents=True, exist_ok=True)
    about = machine(clock.device)
    for name, block in blocks(clock, quick=quick, seed=seed):
        if time.monotonic() > deadline:
            return
        try:
            rows = [{**row, **about} for row in block()]
        except torch.OutOfMemoryError:
            continue
        append(out / name, rows)
        print(f"{name}: {len(rows)} rows", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the CSV files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one call of each kind")
    parser.add_argument("--minutes", type=float, default=8.0, help="start no block after that")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    clock = Clock(
        device=torch.device(options.device), repeats=3 if options.quick else options.repeats
    )
    deadline = time.monotonic() + 60.0 * options.minutes
    run(options.out, clock, quick=options.quick, seed=options.seed, deadline=deadline)


if __name__ == "__main__":
    main()
