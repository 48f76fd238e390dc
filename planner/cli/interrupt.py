"""Ctrl-C and SIGTERM as requests: the first one ends the work, a second Ctrl-C the program.

Nothing here imports more than signals need: the first act of the program is to listen to them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeVar

EXIT_STOPPED: Final = 4
"""Stopped by Ctrl-C or SIGTERM; what was found is kept."""
EXIT_GAVE_UP: Final = 130
"""Stopped by a second Ctrl-C, which waits for nothing: 128 + SIGINT, as shells have it."""

SIGTERM_WORDS: Final = "SIGTERM"
_WORDS: Final = {int(signal.SIGINT): "Ctrl-C", int(signal.SIGTERM): SIGTERM_WORDS}

Progress = TypeVar("Progress")


class GaveUp(KeyboardInterrupt):
    """A second Ctrl-C: nothing is kept."""


def stop_words(interrupt: BaseException) -> str:
    """What stopped the program, for a line to the user."""
    return SIGTERM_WORDS if SIGTERM_WORDS in interrupt.args else "Ctrl-C"


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises ``KeyboardInterrupt("SIGTERM")`` inside, so that nothing stays half done.

    Outside the main thread, and where somebody else deals with SIGTERM, nothing is changed.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt(SIGTERM_WORDS)


class StopOnInterrupt:
    """While active, the first Ctrl-C or SIGTERM sets ``stopped_by``; searches ask for it.

    A second Ctrl-C raises ``GaveUp``; a second SIGTERM changes nothing. As long as there is
    nothing to keep (:attr:`keeps`), the first one raises ``KeyboardInterrupt`` at once.
    Outside the main thread, where Python allows no signal handlers, it does nothing.

    Attributes:
        keeps: whether there is something that is worth being kept.
        stopped_by: ``Ctrl-C`` or ``SIGTERM``; None as long as nobody asked.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        """Not stopped yet."""
        self.keeps = keeps
        self.stopped_by: str | None = None
        self._previous: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether to stop; searches ask this."""
        return self.stopped_by is not None

    def watching(self, progress: Callable[[Progress], None] | None) -> Callable[[Progress], None]:
        """A callback of a search that passes on to ``progress`` and notes the first plan."""

        def note(line: Progress) -> None:
            if getattr(line, "incumbent", None) is not None:
                self.keeps = True
            if progress is not None:
                progress(line)

        return note

    def __enter__(self) -> Self:
        """Take over both signals; SIGTERM only where nobody ignores it."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give them back."""
        del kind, error, trace
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        words = _WORDS[number]
        if self.stopped_by is not None:
            if number == signal.SIGINT:
                raise GaveUp
            return
        if not self.keeps:
            raise KeyboardInterrupt(words)
        self.stopped_by = words
        _announce(f"\n{words}: stopping with the best so far; Ctrl-C gives up\n")


def _announce(text: str) -> None:
    """To stderr, past its buffer: the signal may have come in the middle of writing to it."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
