"""Handles standard streams that are closed, full, or no longer read."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def repair_streams() -> None:
    """Replace closed standard streams by the null device, with a message on the other one.

    Otherwise the next file that is opened would get the number of the closed stream, and with it
    everything that a library prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _to_nowhere(number)
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for names that the terminal cannot show
    if "stdout" in closed:
        say_on_stderr("shardplan: standard output is closed; results are printed nowhere")


def say_on_stderr(text: str) -> None:
    """Print a line on stderr; if this fails, the work goes on without it."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)


def flush_failure(stream: TextIO) -> OSError | None:
    """The error of writing what was printed to a stream; None if there is none."""
    try:
        stream.flush()
    except OSError as error:
        return error
    except ValueError:  # somebody closed it
        return None
    return None


def abandon(stream: TextIO) -> None:
    """Discard what is left in a stream, so that the interpreter ends without an error."""
    with contextlib.suppress(OSError, ValueError):
        _to_nowhere(stream.fileno())
        stream.flush()


def _to_nowhere(number: int) -> None:
    sink = os.open(os.devnull, os.O_RDWR)
    if sink != number:
        os.dup2(sink, number)
        os.close(sink)
