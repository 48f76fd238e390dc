"""The real command, stopped at random moments: what it leaves on disk, and which processes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.cli.run import run as run_command_line
from tests.planner import cases

ROOT = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1

PATIENCE_S = 120.0
"""Of a command that was asked to end; nothing takes so long unless it hangs."""
ORPHANS_S = 30.0
"""Of processes whose parent has ended: the kernel ends them at once, a search goes on for hours."""
AT_WORK_S = 0.4
"""Processor time after which a child has imported what it needs and read what it is to do."""

ENDLESS = "1000000000"
"""Plans to price: it takes hours."""
PLAN = (
    *("plan", "dlrm_criteo_terabyte", "--system", "a100_80gb_sxm", "--gpus", "8"),
    *("--evaluations", ENDLESS),
)
"""Large enough for a second search beside it."""
OTHERS = {
    "grid": (
        *("study", "synthetic_300", "--system", "h100_sxm", "--gpus", "8,16,32", "--grid"),
        *("--evaluations", ENDLESS),
    ),
    "study": (
        *("study", "synthetic_300", "--system", "h100_sxm", "--gpus", "16", "--trials", "9"),
        *("--evaluations", ENDLESS),
    ),
}
SIGNALS = [signal.SIGTERM, signal.SIGKILL, signal.SIGINT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str


def moments(seed: int, count: int, latest_s: float) -> list[float]:
    """Seconds after the start, from before Python is up until long after the first plan."""
    rng = random.Random(seed)
    return [rng.uniform(0.0, latest_s) for _ in range(count)]


MARK = "SHARDPLAN_STARTED_BY"
"""A variable that a command and all its children have, with the folder that it runs in."""


def of_command(folder: Path) -> list[int]:
    """Processes of a command that run; those that only wait to be reaped do not."""
    found, mark = [], f"{MARK}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def is_at_work_beside(
    process: subprocess.Popen[bytes], folder: Path, at_work_s: float = AT_WORK_S
) -> bool:
    """Whether a child of a command is at work."""
    ticks = at_work_s * os.sysconf("SC_CLK_TCK")
    for pid in set(of_command(folder)) - {process.pid}:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[11]) >= ticks:
                return True
    return False


def wait_for_work_beside(
    process: subprocess.Popen[bytes], folder: Path, at_work_s: float = AT_WORK_S
) -> None:
    """Until a child of a command is at work, or the command has ended."""
    while process.poll() is None and not is_at_work_beside(process, folder, at_work_s):
        time.sleep(0.05)


@contextlib.contextmanager
def started(
    folder: Path, *words: str, stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command as the leader of a group of its own; no process of it is left afterwards."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "planner", *words],
            stdout=out,
            stderr=err if stderr is None else stderr,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": "1"}
            | {MARK: str(folder)},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in of_command(folder):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def stop(process: subprocess.Popen[bytes], folder: Path, number: int) -> Ended:
    """Send a signal, as a terminal would if it is SIGINT, and see that nothing survives."""
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    code = process.wait(PATIENCE_S)
    end = time.monotonic() + ORPHANS_S
    while of_command(folder):
        assert time.monotonic() < end, "a child outlives its parent"
        time.sleep(0.02)
    return Ended(code=code, out=(folder / "out").read_text(), err=(folder / "err").read_text())


def check_plan(done: Ended, folder: Path, number: int) -> bool:
    """Whether a plan was written; what was not written whole was not written at all."""
    left = [p.name for p in folder.iterdir() if p.name not in {"out", "err", "run"}]
    if number == signal.SIGINT and done.code == 1 and "planner" not in done.err:
        assert not done.out
        return False  # Python itself was starting, and fails with a traceback of its own modules
    if number == signal.SIGKILL:
        assert done.code in (-signal.SIGKILL, 0)
    else:
        assert not left, "nothing half-written"
        assert "Traceback" not in done.err or done.code < 0, done.err
    if not (folder / "run").exists():
        assert not done.out
        early = -number if number != signal.SIGINT else 130  # before Python runs any code of ours
        assert done.code in (4, early, -number), done.err
        if done.code == 4 and "no plan was found" not in done.err:
            assert "stopped by" in done.err
        return False
    names = {path.name for path in (folder / "run").iterdir()}
    assert {"plan.json", "report.html"} <= names
    status = json.loads((folder / "run" / "plan.json").read_text())["solver"]["status"]
    if number != signal.SIGKILL:
        assert done.code == 4 or (done.code == 0 and status != "interrupted"), done.err
        assert "Predicted" in done.out
    return True


@pytest.mark.parametrize("number", cases.first((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), 1))
def test_stopped_once_there_is_a_plan(tmp_path: Path, number: int) -> None:
    """The progress line tells of the plan; the incumbent is written, and the exit code is 4.

    Where there is a core for it, a second search is at work beside the first by then.
    """
    ours, theirs = pty.openpty()
    with started(tmp_path, *PLAN, "-o", "run", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"best \d", shown) or not (
            CORES < 2 or is_at_work_beside(process, tmp_path)
        ):
            shown += os.read(ours, 4096)
        done = stop(process, tmp_path, number)
    os.close(ours)
    assert check_plan(done, tmp_path, number) is (number != signal.SIGKILL)
    assert done.code == (-number if number == signal.SIGKILL else 4)


@pytest.mark.skipif(CORES < 2, reason="a second search needs a core")
@pytest.mark.parametrize("number", cases.first((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), 1))
def test_stopped_while_a_child_is_at_work(tmp_path: Path, number: int) -> None:
    """A child that has all it needs would go on by itself."""
    with started(tmp_path, *PLAN, "-o", "run") as process:
        wait_for_work_beside(process, tmp_path)
        assert process.poll() is None, "nothing was at work beside it"
        check_plan(stop(process, tmp_path, number), tmp_path, number)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("at_s", moments(13, 1, 0.8))
def test_stopped_at_an_early_moment(tmp_path: Path, number: int, at_s: float) -> None:
    """While modules are imported and files are read; later moments have tests of their own."""
    with started(tmp_path, *PLAN, "-o", "run") as process:
        time.sleep(at_s)
        check_plan(stop(process, tmp_path, number), tmp_path, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("at_s", moments(14, 20, 9.0))
def test_stopped_at_many_moments(tmp_path: Path, number: int, at_s: float) -> None:
    with started(tmp_path, *PLAN, "-o", "run") as process:
        time.sleep(at_s)
        check_plan(stop(process, tmp_path, number), tmp_path, number)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("grid", signal.SIGTERM),
        ("grid", signal.SIGKILL),
        ("study", signal.SIGINT),
        pytest.param("grid", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("study", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("study", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_other_commands_leave_no_process_either(tmp_path: Path, name: str, number: int) -> None:
    more = ("--workers", "2") if name == "grid" else ()
    (at_s,) = moments(15 + number, 1, 0.7)
    with started(tmp_path, *OTHERS[name], *more) as process:
        if name == "grid":
            wait_for_work_beside(process, tmp_path, 0.2)
        else:
            time.sleep(0.6 + at_s)
        done = stop(process, tmp_path, number)
    assert done.code == (-number if number == signal.SIGKILL else 4), done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("number", cases.first((signal.SIGINT, signal.SIGKILL, signal.SIGTERM), 2))
def test_profile_leaves_no_process_and_no_file(tmp_path: Path, number: int) -> None:
    """Beside the output, only a killed program leaves a folder; the next run begins anew."""
    line = "\t".join(["1", *(["2"] * 13), *(["a1b2c3d4"] * 26)])
    for day in range(2):
        (tmp_path / f"day_{day}.tsv").write_text(f"{line}\n" * 10_000)
    words = ("profile", "day_0.tsv", "day_1.tsv", "--jobs", "2", "-o", "stats.json")
    (at_s,) = moments(30 + number, 1, 1.0)
    with started(tmp_path, *words) as process:
        time.sleep(0.8 + at_s)
        done = stop(process, tmp_path, number)
    assert done.code in (4, -number, 0), done.err
    assert "Traceback" not in done.err
    assert number == signal.SIGKILL or not list(tmp_path.glob(".*"))
    with contextlib.chdir(tmp_path):
        assert run_command_line(list(words)) == 0
    assert (tmp_path / "stats.json").exists()
