"""Run a script on several ranks of this machine; nothing is left running, whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_ranks(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    *,
    world: int = 2,
    timeout_s: float = 600,
    codes: Sequence[int] | None = None,
) -> list[str]:
    """What each rank printed. ``script RANK WORLD *arguments`` runs in the repository root.

    ``codes`` are the exit codes that are meant, all 0 if None; one that is not 0 lets the other
    ranks run until the time is over.

    Raises:
        AssertionError: a rank failed or the time is over; with the ends of all outputs.
    """
    meant = [0] * world if codes is None else list(codes)
    logs = [folder / f"rank-{r}.log" for r in range(world)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(script)]
    with contextlib.ExitStack() as files:
        started = [
            subprocess.Popen(
                [*command, str(rank), str(world), *arguments],
                cwd=ROOT,
                env=environment,
                stdout=files.enter_context(log.open("w")),
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(logs)
        ]
        try:
            _wait(started, time.monotonic() + timeout_s, patient=any(meant))
        finally:
            for process in started:
                process.kill()
                process.wait()
    texts = [log.read_text() for log in logs]
    ended = [process.returncode for process in started]
    ends = "\n".join(f"--- rank {r}\n{text[-3000:]}" for r, text in enumerate(texts))
    assert ended == meant, f"exit codes {ended}\n{ends}"
    return texts


def _wait(started: Sequence[subprocess.Popen[bytes]], deadline: float, *, patient: bool) -> None:
    """Until all ended, one failed (the others get a moment), or the deadline."""
    while time.monotonic() < deadline:
        codes = [process.poll() for process in started]
        if all(code is not None for code in codes):
            return
        if any(codes) and not patient:
            deadline = min(deadline, time.monotonic() + 3)
        time.sleep(0.05)
