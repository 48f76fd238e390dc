"""Ctrl-C as a request: the first one ends the search, the second one the program."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import click


class StopOnInterrupt:
    """While active, the first SIGINT sets ``stopped``; the second raises ``KeyboardInterrupt``.

    Outside the main thread, where Python allows no signal handlers, it does nothing.
    """

    def __init__(self) -> None:
        """Not stopped yet."""
        self.stopped = False
        self._previous: Any = None

    def __call__(self) -> bool:
        """Whether to stop; searches ask this."""
        return self.stopped

    def __enter__(self) -> Self:
        """Take over SIGINT."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give SIGINT back."""
        del kind, error, trace
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True
        click.echo("\nstopping with the best plan so far; Ctrl-C again to give up", err=True)
