"""Ctrl-C and SIGTERM as requests: the first one ends the work, a second Ctrl-C the program.

Nothing here imports more than signals need: the first act of the program is to listen to them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeVar

EXIT_STOPPED: Final = 4
"""Stopped by Ctrl-C or SIGTERM; what was found is kept."""
EXIT_GAVE_UP: Final = 130
"""Stopped by a second Ctrl-C, which waits for nothing: 128 + SIGINT, as shells have it."""

_WORDS: Final = {int(signal.SIGINT): "Ctrl-C", int(signal.SIGTERM): "SIGTERM"}
_SEARCH: Final = "planner.search."
"""Modules that call solvers."""

_RAISED: Final[list[str]] = []
"""What was raised since the program began, in words; once it is passed on, the program ends."""

Progress = TypeVar("Progress")


class Interrupted(KeyboardInterrupt):
    """Somebody asked the program to end; the first argument is how, ``Ctrl-C`` or ``SIGTERM``.

    Of a class of its own, because Python ends itself by SIGINT, whatever the exit code was to be,
    once a ``KeyboardInterrupt`` has left a call of ``exec``, such as those that make dataclasses.
    """


class GaveUp(Interrupted):
    """A second Ctrl-C: nothing is kept."""


def stop_words(interrupt: BaseException) -> str:
    """What stopped the program, for a line to the user."""
    return str(interrupt.args[0]) if isinstance(interrupt, Interrupted) else "Ctrl-C"


def interrupt_in(error: BaseException) -> KeyboardInterrupt | None:
    """What stopped the program, if an error is that or stands for it; None if it is another.

    Python 3.11 wraps what is raised while ``__set_name__`` is called, which happens whenever a
    class is made, in a ``RuntimeError``: a signal that comes in the middle of an import is met so.
    """
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error if isinstance(error, KeyboardInterrupt) else None


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise :class:`Interrupted` inside, so that nothing stays half done.

    Where Python cannot pass on what is raised, in a destructor or a callback of the import system,
    it is remembered, and raised by the next :class:`StopOnInterrupt`.
    Outside the main thread, and where somebody else deals with a signal, nothing is changed.
    """
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    in_main = threading.current_thread() is threading.main_thread()
    ours = [n for n, handler in usual.items() if in_main and signal.getsignal(n) is handler]
    if not ours:
        yield
        return
    for number in ours:
        signal.signal(number, _raise)
    report, sys.unraisablehook = sys.unraisablehook, _forget_interrupt
    _RAISED.clear()
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number in ours:
            signal.signal(number, usual[number])


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    _RAISED.append(_WORDS[number])
    raise Interrupted(_WORDS[number])


def _forget_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """No words about an interrupt that could not be passed on; what else there is, as usual."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


class StopOnInterrupt:
    """While active, the first Ctrl-C or SIGTERM sets ``stopped_by``; searches ask for it.

    A second Ctrl-C raises ``GaveUp``; a second SIGTERM changes nothing. As long as there is nothing
    to keep, whatever ends the block after a signal leaves it as ``Interrupted``, and outside of a
    search the signal itself raises that, at once. Not inside of one: solvers call Python from
    C++ and lose the exception there, so the search is left to ask.
    Outside the main thread, where Python allows no signal handlers, it does nothing.

    Attributes:
        keeps: whether there is something that is worth being kept.
        stopped_by: ``Ctrl-C`` or ``SIGTERM``; None as long as nobody asked.
    """

    def __init__(self, *, keeps: bool = True, lost: str = "") -> None:
        """Not stopped yet; ``lost`` tells the user what stopping with nothing to keep means."""
        self.keeps = keeps
        self.stopped_by: str | None = None
        self._gave_up = False
        self._lost = lost
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
        """Take over both signals, but where they are ignored.

        Raises:
            Interrupted: one of them came before, and could not be passed on then.
        """
        if _RAISED:
            raise Interrupted(_RAISED[0])
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
        """Give them back.

        Raises:
            Interrupted: the block failed after a signal and had nothing to keep.
            GaveUp: it failed after a second Ctrl-C.
        """
        del kind, trace
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}
        if error is None or isinstance(error, GaveUp) or self.stopped_by is None:
            return
        if self._gave_up:
            raise GaveUp(_WORDS[signal.SIGINT]) from error
        if not self.keeps:
            interrupt = Interrupted(self.stopped_by)
            if self._lost:
                interrupt.add_note(self._lost)
            raise interrupt from error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopped_by is not None:
            if number == signal.SIGINT:
                self._gave_up = True
                raise GaveUp(_WORDS[number])
            return
        self.stopped_by = _WORDS[number]
        if not self.keeps and not _searches(frame):
            raise Interrupted(self.stopped_by)
        kept = " with the best so far" if self.keeps else ""
        _announce(f"\n{self.stopped_by}: stopping{kept}; Ctrl-C gives up\n")


def _searches(frame: FrameType | None) -> bool:
    """Whether the main thread is in a function of a search, rather than about to load one."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(_SEARCH) and frame.f_code.co_name != "<module>":
            return True
        frame = frame.f_back
    return False


def _announce(text: str) -> None:
    """To stderr, past its buffer: the signal may have come in the middle of writing to it."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
