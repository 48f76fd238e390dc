"""Run a script on several ranks of this machine; nothing is left running, whatever happens.

As a script, ``ranks.py SCRIPT FOLDER WORLD PATIENT [ARGUMENT ...]``, it is the parent of the ranks:
it imports TorchRec once and forks, for each rank would take seconds to import it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

IMPORTED = "planner.integrations.torchrec_planner"
"""Imports TorchRec and the planner, which all scripts need."""
CODES = "exit-codes.json"
PATIENCE_S = 3.0
"""What the other ranks get once one has failed."""


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
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    words = [script, folder, world, int(any(meant)), *arguments]
    with (folder / "parent.log").open("w") as log:
        parent = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, *map(str, words)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                parent.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):  # unless nothing of its group is left
                os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
    logs = [folder / f"rank-{r}.log" for r in range(world)]
    texts = [log.read_text() if log.exists() else "" for log in logs]
    found = folder / CODES
    ended = json.loads(found.read_text()) if found.exists() else None
    ends = "\n".join(f"--- rank {r}\n{text[-3000:]}" for r, text in enumerate(texts))
    ends += f"\n--- parent\n{(folder / 'parent.log').read_text()[-3000:]}"
    assert ended == meant, f"exit codes {ended}\n{ends}"
    return texts


# ------------------------------------------------------------------ the parent of the ranks


def main(script: str, folder: Path, world: int, *arguments: str, patient: bool) -> None:
    """Fork the ranks, wait for them, and write their exit codes."""
    importlib.import_module(IMPORTED)
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _be_rank(folder / f"rank-{rank}.log", [script, str(rank), str(world), *arguments])
        pids.append(pid)
    codes: dict[int, int] = {}
    deadline = float("inf")
    while len(codes) < world and time.monotonic() < deadline:
        for pid in set(pids) - set(codes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if any(codes.values()) and not patient:
            deadline = min(deadline, time.monotonic() + PATIENCE_S)
        time.sleep(0.02)
    (folder / CODES).write_text(json.dumps([codes.get(pid) for pid in pids]))


def _be_rank(log: Path, words: list[str]) -> None:
    """Run the script as if it had been started with these words; never returns."""
    with log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv = words
    code: object = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main(
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        *sys.argv[5:],
        patient=sys.argv[4] == "1",
    )
