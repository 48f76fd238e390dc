"""Promises of the command line, tried as a user would: one plan per model, nothing left running.

    python -m benchmarks.promises repeat --starts 12
    python -m benchmarks.promises stop --times 20

``repeat`` starts ``plan`` again and again on models of 26 to 300 tables, each time with another
``PYTHONHASHSEED``, every second time beside two busy loops, and counts the different ``plan.json``.
``stop`` sends SIGTERM and SIGKILL to ``plan`` at random moments and looks for files and processes
that are left.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A shipped or made-up workload on a shipped system."""

    name: str
    tables: int
    gpus: int
    shipped: bool = False


MODELS = (
    Model(name="dlrm_dcnv2_mlperf", tables=26, gpus=16, shipped=True),
    Model(name="made_up_40", tables=40, gpus=8),
    Model(name="made_up_60", tables=60, gpus=16),
    Model(name="made_up_120", tables=120, gpus=32),
    Model(name="synthetic_300", tables=300, gpus=16, shipped=True),
)
SYSTEM = "h100_sxm"
ENDED_WITHIN_S = 2.0
"""How long processes of a search may outlive it."""


def main(arguments: list[str] | None = None) -> int:
    """Print the table that was asked for; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=__doc__)
    parser.add_argument("part", choices=["repeat", "stop"])
    parser.add_argument("--starts", type=int, default=12, help="starts per model")
    parser.add_argument("--times", type=int, default=20, help="times per signal")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    flags = parser.parse_args(arguments)
    if flags.part == "repeat":
        return repeat(flags.starts)
    return stop(flags.times, flags.seed)


# ------------------------------------------------------------------ one plan per model


def repeat(starts: int) -> int:
    """Different plans per model in ``starts`` starts; 1 if there is more than one of any."""
    shown = Table("model", "tables", "GPUs", "starts", "different plan.json", "slowest start")
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            source = source_of(model, Path(folder))
            found, slowest_s = set(), 0.0
            for number in track(range(starts), model.name, console=Console(stderr=True)):
                with busy(2 if number % 2 else 0):
                    begun = time.perf_counter()
                    out = Path(folder) / f"{model.name}-{number}"
                    planned(model, source, out, hash_seed=number)
                    slowest_s = max(slowest_s, time.perf_counter() - begun)
                found.add(hashlib.sha256((out / "plan.json").read_bytes()).hexdigest())
            worst = max(worst, len(found))
            cells = (model.tables, model.gpus, starts, len(found))
            shown.add_row(model.name, *map(str, cells), f"{slowest_s:.1f} s")
    Console().print(shown)
    return int(worst > 1)


def source_of(model: Model, folder: Path) -> str:
    """The workload as an argument of ``plan``; made up from a list of random tables if needed."""
    if model.shipped:
        return model.name
    rng = random.Random(model.tables)
    lines = ["name,rows,dim,pooling"]
    for i in range(model.tables):
        rows, dim = int(10 ** rng.uniform(3, 7.6)), rng.choice([32, 64, 128])
        lines.append(f"t{i},{rows},{dim},{rng.choice([1, 5, 20])}")
    listed, made = folder / f"{model.name}.csv", folder / f"{model.name}.yaml"
    listed.write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        "-m",
        "planner",
        "import",
        "tables",
        str(made),
        "--list",
        str(listed),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return str(made)


def plan_command(model: Model, source: str, out: Path) -> list[str]:
    """The command line of ``plan``."""
    return [
        *(sys.executable, "-m", "planner", "plan", source, "--system", SYSTEM),
        *("--gpus", str(model.gpus), "-o", str(out), "-q"),
    ]


def planned(model: Model, source: str, out: Path, *, hash_seed: int) -> None:
    """Run ``plan`` to its end."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = plan_command(model, source, out)
    subprocess.run(command, check=True, env=environment, capture_output=True)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that keep cores busy meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# ------------------------------------------------------------------ nothing left running


def stop(times: int, seed: int) -> int:
    """What is left after each signal; 1 if anything is that should not, or no plan after SIGTERM.

    The moments lie between the first plan, which a line of progress tells of, and the end.
    """
    rng = random.Random(seed)
    shown = Table("signal", "times", "plan written", "ended first", "processes left", "slowest end")
    broken = False
    with tempfile.TemporaryDirectory() as folder:
        model = MODELS[2]
        source = source_of(model, Path(folder))
        for number in (signal.SIGTERM, signal.SIGKILL):
            written = early = left = 0
            slowest_s = 0.0
            for i in track(range(times), number.name, console=Console(stderr=True)):
                out = Path(folder) / f"{number.name}-{i}"
                process = subprocess.Popen(
                    plan_command(model, source, out), start_new_session=True,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                time.sleep(rng.uniform(3.0, 9.0))
                early += process.poll() is not None
                begun = time.perf_counter()
                process.send_signal(number)
                process.wait(60)
                slowest_s = max(slowest_s, time.perf_counter() - begun)
                time.sleep(ENDED_WITHIN_S)
                left += len(of_session(process.pid))
                written += (out / "plan.json").exists()
            missing = number is signal.SIGTERM and written < times
            broken = broken or left > 0 or missing
            cells = (number.name, times, written, early, left)
            shown.add_row(*map(str, cells), f"{slowest_s:.1f} s")
    Console().print(shown)
    return int(broken)


def of_session(leader: int) -> list[int]:
    """Processes of the session that ``leader`` began which still run."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # Behind the name in brackets: state, parent, group, session.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
