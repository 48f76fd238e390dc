"""A second Python process that answers requests while the search goes on in this one.

It is a process and not a thread, because the search holds the interpreter most of the time, and a
thread would slow it down. The process does not import the main module of the caller, so that it
works from scripts and from notebooks. It ends with this process, also if this one is killed
(:mod:`planner.support.processes`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from costmodels.errors import CostModelError
from planner.support import processes

_QUIT_S: Final = 1.0
"""Most seconds to wait until the system has ended the process after it was killed."""
_POLL_S: Final = 0.05
"""Seconds between two checks whether the process has replied or the search has to end. A longer
pause would delay the end of an interrupted search; a shorter one would take processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reply in place of further ones if an answer has ended with an exception.

    Attributes:
        text: its traceback.
        error: the exception, if a cost model of the user has caused it; None for our own faults.
    """

    text: str
    error: CostModelError | None


class OtherProcess:
    """A process that runs a module which calls :func:`serve_standard_streams` as its main program.

    The thread that sends the first request has to close the process, because the process ends with
    that thread.

    Args:
        module: the full name of the module.

    Attributes:
        replies: the replies to the last request that have arrived so far.
    """

    def __init__(self, module: str) -> None:
        """Start nothing yet: the process starts with the first request."""
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.replies: list[Any] = []

    @property
    def busy(self) -> bool:
        """Whether more replies to the last request are expected."""
        return self._reader is not None and self._reader.is_alive()

    def send(self, request: object) -> bool:
        """Send a request, without waiting until the process has read it.

        The process reads it only after its imports, so that a thread does the sending.

        Args:
            request: what the process is asked; it is pickled.

        Returns:
            False if no process can be started.
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
        """Wait until all replies have arrived; end the process if ``stopped`` says True before.

        Raises:
            CostModelError: a cost model has given a value that cannot be, as in this process.
        """
        reader = self._reader
        while reader is not None and reader.is_alive():
            reader.join(_POLL_S)
            if reader.is_alive() and stopped():
                self.close()
        for reply in self.replies:
            if isinstance(reply, Failure) and reply.error is not None:
                raise reply.error

    def close(self) -> None:
        """End the process, even while it computes an answer.

        If the system has not ended it after some seconds, the search goes on without waiting.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_QUIT_S)

    def _pipe(self) -> subprocess.Popen[bytes] | None:
        """The process, started if it was not; None if it cannot be started."""
        if self._process is None:
            root = str(Path(__file__).parents[3])
            paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
            one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    processes.command(self._module),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths)},
                )
        return self._process


def _ask(process: subprocess.Popen[bytes], request: bytes, replies: list[Any]) -> None:
    """Send a pickled request and collect the replies until None arrives or the process ends."""
    if process.stdin is None or process.stdout is None:
        return
    with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
        process.stdin.write(request)
        process.stdin.flush()
        while (reply := pickle.load(process.stdout)) is not None:
            if isinstance(reply, Failure) and reply.error is None:
                _tell(reply)
            else:
                replies.append(reply)


def _tell(failure: Failure) -> None:
    """Warn of a failure: the search goes on, and what the process would have found is lost."""
    told = f"a process beside the search failed, please report it:\n{failure.text}"
    warnings.warn(told, RuntimeWarning, stacklevel=2)


def serve(answer: Callable[[Any], Iterator[object]], ask: BinaryIO, reply: BinaryIO) -> None:
    """Answer requests until the stream of requests ends; None follows the last reply to each.

    An answer that ends with an exception has a :class:`Failure` as its last reply.

    Args:
        answer: gives the replies to a request.
        ask: the stream of pickled requests.
        reply: the stream that pickled replies are written to.
    """
    while True:
        try:
            request = pickle.load(ask)
        except EOFError:
            return
        try:
            for found in answer(request):
                pickle.dump(found, reply)
                reply.flush()
        except (Exception, SystemExit) as error:
            blamed = error if isinstance(error, CostModelError) else None
            pickle.dump(Failure(text=traceback.format_exc(), error=blamed), reply)
        pickle.dump(None, reply)
        reply.flush()


def serve_standard_streams(answer: Callable[[Any], Iterator[object]]) -> None:
    """:func:`serve` on standard input and output.

    What solvers print to standard output is thrown away, so that it does not mix with replies.
    """
    reply = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(answer, sys.stdin.buffer, reply)
