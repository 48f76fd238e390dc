"""Runs a command line, and turns an exception into one message on stderr and an exit code."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence

import click

from costmodels.errors import CostModelError
from planner.cli import interrupt
from planner.cli.console import Settings, abandon, complain, flush_failure, repair_streams
from planner.cli.group import cli
from planner.errors import InfeasibleError, NoPlanFoundError, PlannerError

EXIT_BAD_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_BUG = 70

_WHILE_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Files that are written are named by :mod:`planner.support.files`; what is printed is not."""


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line, and return its exit code; it never raises."""
    settings = Settings()
    repair_streams()
    with interrupt.signals_interrupt():
        try:
            code = cli.main(args, prog_name="shardplan", standalone_mode=False, obj=settings)
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            given = sys.argv[1:] if args is None else args
            models = [text for text in given if "=" in text and text.endswith(".py")]
            return _ended(error, settings, models)
    return code if isinstance(code, int) else 0


def _ended(error: BaseException, settings: Settings, models: Sequence[str]) -> int:
    """Print what has ended a command, and return its exit code.

    Args:
        error: what was raised.
        settings: the output flags.
        models: models in files of the user, such as ``lookup=mine.py``, that were run; an unknown
            error may be theirs.
    """
    if isinstance(error, SystemExit):
        if isinstance(error.__context__, BrokenPipeError) or not models:
            return 0  # rich has met a reader that has ended, or click has completed words
    elif isinstance(error, click.Abort):  # click makes one of an interrupt, and of the end of input
        error = error.__cause__ or interrupt.Interrupted("Ctrl-C")
    stopped = None if isinstance(error, SystemExit | EOFError) else interrupt.interrupt_in(error)
    if stopped is not None:
        gave_up = isinstance(stopped, interrupt.GaveUp)
        again = " twice; what was not written before is lost" if gave_up else ""
        detail = "".join(f"; {line}" for line in getattr(stopped, "__notes__", ()))
        complain(f"shardplan: stopped by {interrupt.stop_words(stopped)}{again}{detail}")
        return interrupt.EXIT_GAVE_UP if gave_up else interrupt.EXIT_STOPPED
    if isinstance(error, BrokenPipeError):
        abandon(sys.stdout)
        return 0  # the reader of the output has ended, as ``head`` does
    if flush_failure(sys.stdout) is not None:
        abandon(sys.stdout)
    return _report(error, settings, models)


def _report(error: BaseException, settings: Settings, models: Sequence[str]) -> int:
    """Print an error for people, and return its exit code."""
    if settings.debug:
        complain("".join(traceback.format_exception(error)).rstrip("\n"))
    code, text = EXIT_BAD_INPUT, str(error)
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        name = context.command_path if context else "shardplan"
        told = f"{name}: error: {' '.join(error.format_message().split())} (see '{name} --help')"
        is_help = isinstance(error, click.exceptions.NoArgsIsHelpError)
        complain(error.format_message() if is_help else told)
        return EXIT_BAD_INPUT
    if isinstance(error, InfeasibleError):
        code, text = EXIT_INFEASIBLE, "\n".join((text, *(f"try: {line}" for line in error.advice)))
    elif isinstance(error, NoPlanFoundError):
        hint = "nothing written; more --evaluations or a longer --time-limit may find one"
        code, text = EXIT_INFEASIBLE, f"{text} ({hint})"
    elif isinstance(error, MemoryError):
        more = "use fewer ranks or tables, or a larger machine"
        text = f"out of memory: {' '.join(text.split()) or 'no more can be had'}; {more}"
    elif isinstance(error, OSError):
        unnamed = "standard output" if error.errno in _WHILE_WRITING else ""
        text = ": ".join(filter(None, [str(error.filename or unnamed), error.strerror or text]))
    elif not isinstance(error, PlannerError | CostModelError):
        again = "" if settings.debug else "; run again with --debug for the traceback"
        text = f"{type(error).__name__}: {' '.join(text.split())}"
        if not models:
            complain(f"shardplan: bug: {text}. Please report it with the command line{again}.")
            return EXIT_BUG
        text += f"; code of yours was run ({', '.join(models)}), which may be the cause{again}"
    complain("\n  ".join(f"shardplan: error: {text}".splitlines()))
    return code
