"""Programs solved in a process of their own, so that the search goes on beside them.

The search is Python and holds the interpreter; a thread beside it would slow it down. The process
is started without the caller's main module, so it works from scripts and notebooks alike. Where no
process can be started, programs are solved in place.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, Final

from planner.search.parts.programs import Program, Solution, solve

_QUIT_S: Final = 1.0
_POLL_S: Final = 0.05


class SolverProcess:
    """Solves some programs at a time: ``start`` them, do something else, ask for the ``result``."""

    def __init__(self) -> None:
        """Nothing is started before the first program."""
        self._process: subprocess.Popen[bytes] | None = None
        self._inline: tuple[list[Program], float, float] | None = None
        self._found: list[Solution] = []
        self._reader: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Whether ``result`` would not have to wait for the process."""
        return self._reader is None or not self._reader.is_alive()

    def start(self, programs: list[Program], *, time_limit_s: float, gap_ratio: float) -> None:
        """Begin; see :func:`planner.search.parts.programs.solve` for the arguments."""
        self._inline = (programs, time_limit_s, gap_ratio)
        pipe = self._pipe()
        if pipe is None or pipe.stdin is None or pipe.stdout is None:
            return
        try:
            pickle.dump(self._inline, pipe.stdin)
            pipe.stdin.flush()
        except OSError:
            self.close()
            return
        self._found = []
        self._reader = threading.Thread(target=_read, args=(pipe.stdout, self._found), daemon=True)
        self._reader.start()

    def result(self, stopped: Callable[[], bool]) -> list[Solution]:
        """Wait for the programs begun last; only the first ones if ``stopped`` says so before."""
        if self._inline is None:
            msg = "no program was begun"
            raise RuntimeError(msg)
        programs, time_limit_s, gap_ratio = self._inline
        self._inline = None
        reader, self._reader = self._reader, None
        if reader is None:
            return list(solutions(programs, time_limit_s, gap_ratio))
        while reader.is_alive():
            reader.join(_POLL_S)
            if reader.is_alive() and stopped():
                self.close()
        return self._found

    def close(self) -> None:
        """End the process, also in the middle of a program."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait(timeout=_QUIT_S)

    def _pipe(self) -> subprocess.Popen[bytes] | None:
        if self._process is None:
            root = str(Path(__file__).parents[3])
            paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                )
            except OSError:
                return None
        return self._process


def _read(replies: IO[bytes], found: list[Solution]) -> None:
    """Collect solutions until None comes."""
    with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
        while (solution := pickle.load(replies)) is not None:
            found.append(solution)


def solutions(programs: list[Program], time_limit_s: float, gap_ratio: float) -> Iterator[Solution]:
    """One after the other, as many as can be begun in time."""
    started = time.monotonic()
    for program in programs:
        left_s = time_limit_s - (time.monotonic() - started)
        if left_s <= 0:
            return
        yield solve(program, time_limit_s=left_s, gap_ratio=gap_ratio)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Solve what arrives until nothing does any more; None follows the last solution."""
    while True:
        try:
            programs, time_limit_s, gap_ratio = pickle.load(requests)
        except EOFError:
            return
        for solution in itertools.chain(solutions(programs, time_limit_s, gap_ratio), [None]):
            pickle.dump(solution, replies)
            replies.flush()


def main() -> None:
    """Serve standard input and output; what solvers print goes nowhere."""
    replies = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        serve(sys.stdin.buffer, replies)
    except (BrokenPipeError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
