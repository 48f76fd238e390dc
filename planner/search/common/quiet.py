"""Keeps what solvers print out of the output of commands."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final


class _Quiet:
    """A context in which everything that is written to standard output is thrown away.

    HiGHS prints a line of its own now and then, and standard output is where commands print results
    that other programs read. Several threads may be in the context at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._kept: int | None = None

    def __enter__(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._entered += 1
            if self._entered == 1:
                self._kept = os.dup(1)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.close(nowhere)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0 and self._kept is not None:
                kept, self._kept = self._kept, None
                os.dup2(kept, 1)
                os.close(kept)


QUIET: Final = _Quiet()
"""The context that all threads of this process share, since they share standard output."""
