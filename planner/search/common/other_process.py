"""A second Python process that answers what it is sent, so that the search goes on beside it.

The search is Python and holds the interpreter; a thread beside it would slow it down. The process
is started without the caller's main module, so it works from scripts and notebooks alike. It ends
when this process does, also if that is killed (:mod:`planner.support.lifeline`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from planner.support import lifeline

_QUIT_S: Final = 1.0
"""Seconds that the process has to end by itself before it is killed."""
_POLL_S: Final = 0.05
"""Seconds between two looks at whether it has replied or the search has to end."""


class OtherProcess:
    """Runs a module whose main function is :func:`serve_standard_streams`.

    The thread that sends the first request is the one that has to close it: the process ends with
    that thread.

    Attributes:
        replies: to what was sent last, as far as they have come.
    """

    def __init__(self, module: str) -> None:
        """Nothing is started before something is sent."""
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.replies: list[Any] = []

    @property
    def busy(self) -> bool:
        """Whether more replies are to come."""
        return self._reader is not None and self._reader.is_alive()

    def send(self, request: object) -> bool:
        """Ask for something else than before; False where no process can be started.

        Returns at once: the process reads the request only after its imports.
        """
        pipe = self._pipe()
        if pipe is None:
            return False
        self.replies = []
        ask = (pipe, pickle.dumps(request), self.replies)
        self._reader = threading.Thread(target=_ask, args=ask, daemon=True)
        self._reader.start()
        return True

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Until all replies are here; ends the process if ``stopped`` says so before."""
        reader = self._reader
        while reader is not None and reader.is_alive():
            reader.join(_POLL_S)
            if reader.is_alive() and stopped():
                self.close()

    def close(self) -> None:
        """End the process, also in the middle of an answer."""
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
            one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    lifeline.command(self._module),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths)},
                )
        return self._process


def _ask(process: subprocess.Popen[bytes], request: bytes, replies: list[Any]) -> None:
    """Send a request and collect replies until None comes, or the process ends."""
    if process.stdin is None or process.stdout is None:
        return
    with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
        process.stdin.write(request)
        process.stdin.flush()
        while (reply := pickle.load(process.stdout)) is not None:
            replies.append(reply)


def serve(answer: Callable[[Any], Iterator[object]], ask: BinaryIO, reply: BinaryIO) -> None:
    """Answer what arrives until nothing does any more; None follows the last reply."""
    while True:
        try:
            request = pickle.load(ask)
        except EOFError:
            return
        for found in answer(request):
            pickle.dump(found, reply)
            reply.flush()
        pickle.dump(None, reply)
        reply.flush()


def serve_standard_streams(answer: Callable[[Any], Iterator[object]]) -> None:
    """:func:`serve` on standard input and output; what solvers print goes nowhere."""
    reply = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(answer, sys.stdin.buffer, reply)
