"""Handles Ctrl-C and SIGTERM: the first one ends the work, a second Ctrl-C ends the program.

This module imports only what signals need, because the program handles them before anything else.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

EXIT_STOPPED: Final = 4
"""The exit code after Ctrl-C or SIGTERM; what was found is kept."""
EXIT_GAVE_UP: Final = 130
"""The exit code after a second Ctrl-C, which waits for nothing: 128 + SIGINT, as in shells."""

_WORDS: Final = {int(signal.SIGINT): "Ctrl-C", int(signal.SIGTERM): "SIGTERM"}

_RAISED: Final[list[str]] = []
"""All interrupts that were raised, in words; the program ends after one of them is passed on."""


class Interrupted(KeyboardInterrupt):
    """The program shall end; the first argument says why: ``Ctrl-C`` or ``SIGTERM``.

    It has a class of its own, because a plain ``KeyboardInterrupt`` that leaves a call of ``exec``
    (such as those that make dataclasses) lets Python end itself by SIGINT, with any exit code lost.
    """


class GaveUp(Interrupted):
    """A second Ctrl-C, after which nothing is kept."""


def interrupt_in(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that an error is or comes from; None for errors of another cause.

    A signal during an import is raised in the middle of code that turns it into an error of its
    own. Python 3.11 wraps what is raised in ``__set_name__`` in a ``RuntimeError``, and pydantic
    keeps no more of it than its words in a ``SchemaError``. After an interrupt was raised, the
    error that ends the program is therefore taken as its consequence.
    """
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, KeyboardInterrupt):
        return error
    return Interrupted(_RAISED[0]) if _RAISED else None


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """A context in which Ctrl-C and SIGTERM raise :class:`Interrupted`.

    In a destructor or a callback of the import system, Python does not pass errors on. The
    interrupt is then remembered, and raised by the next :class:`StopOnInterrupt`. Outside the main
    thread, and for signals that other code handles, nothing changes.
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
        _RAISED.clear()
        sys.unraisablehook = report
        for number in ours:
            signal.signal(number, usual[number])


def _raise(number: int, _frame: FrameType | None) -> None:
    _RAISED.append(_WORDS[number])
    raise Interrupted(_WORDS[number])


def _forget_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print nothing about an interrupt that cannot be passed on; report other errors as usual."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


class StopOnInterrupt:
    """A context in which the first Ctrl-C or SIGTERM sets ``stopped_by``, which searches ask for.

    A second Ctrl-C raises ``GaveUp``; a second SIGTERM changes nothing. As long as there is nothing
    to keep, the block ends with ``Interrupted`` after a signal. Outside of a search the signal
    raises it at once. Inside of one it does not, because solvers call Python from C++ and would
    lose the exception there; the search asks instead. Outside the main thread, where Python allows
    no signal handlers, the context does nothing.

    Attributes:
        keeps: whether there is something worth keeping.
        stopped_by: ``Ctrl-C`` or ``SIGTERM``; None if there was no signal.
    """

    def __init__(self, *, keeps: bool = True, lost: str = "") -> None:
        """Start without a signal; ``lost`` says what users lose if there is nothing to keep."""
        self.keeps = keeps
        self.stopped_by: str | None = None
        self._gave_up = False
        self._lost = lost
        self._previous: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether to stop; searches ask this."""
        return self.stopped_by is not None

    def __enter__(self) -> Self:
        """Handle both signals, unless they are ignored.

        Raises:
            Interrupted: a signal came before, and could not be passed on then.
        """
        if _RAISED:
            raise Interrupted(_RAISED[0])
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Restore the handlers of both signals.

        Raises:
            Interrupted: the block failed after a signal, with nothing to keep.
            GaveUp: the block failed after a second Ctrl-C.
        """
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
        told = f"\n{self.stopped_by}: stopping{kept}; Ctrl-C gives up\n"
        with contextlib.suppress(OSError):
            os.write(2, told.encode())  # not by its buffer: the signal may come during a write


def _searches(frame: FrameType | None) -> bool:
    """Whether the main thread is in a function of a search, and not only about to import one."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("planner.search.") and frame.f_code.co_name != "<module>":
            return True
        frame = frame.f_back
    return False
