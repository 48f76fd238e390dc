"""Keeps what a solver prints away from what commands print."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final


class _Quiet:
    """Sends what is written to standard output nowhere while it is entered.

    HiGHS prints a line of its own now and then, and callers print results there for others to read.
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
"""The one for this process; programs may be solved in several threads at a time."""
