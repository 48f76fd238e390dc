"""From an exception to one clear message on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from costmodels.errors import CostModelError
from planner.cli.console import Settings, flush_results
from planner.cli.group import cli
from planner.errors import InfeasibleError, NoPlanFoundError, PlannerError

EXIT_FAILED_CHECK = 1
EXIT_BAD_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_BUG = 70
EXIT_ABORTED = 130


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    settings = Settings()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show
    try:
        code = cli.main(args, prog_name="shardplan", standalone_mode=False, obj=settings)
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
        return 0
    except SystemExit:  # from rich, when the reader of a pipe goes away
        return 0
    except (KeyboardInterrupt, click.Abort):
        click.echo("shardplan: stopped by Ctrl-C", err=True)
        return EXIT_ABORTED
    except Exception as error:
        return report_error(error, settings)
    return code if isinstance(code, int) else 0


def report_error(error: Exception, settings: Settings) -> int:
    """Print an error as people can use it and return the exit code it stands for."""
    flush_results()
    if settings.debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    if isinstance(error, InfeasibleError):
        _print_error(str(error))
        for line in error.advice:
            click.echo(f"  try: {line}", err=True)
        return EXIT_INFEASIBLE
    if isinstance(error, NoPlanFoundError):
        _print_error(f"{error} (nothing written; a longer --time-limit may find one)")
        return EXIT_INFEASIBLE
    if isinstance(error, PlannerError | CostModelError):
        _print_error(str(error))
        return EXIT_BAD_INPUT
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}")
        return EXIT_BAD_INPUT
    kind = type(error).__name__
    again = "" if settings.debug else "; run again with --debug for the traceback"
    text = " ".join(str(error).split())
    click.echo(
        f"shardplan: bug: {kind}: {text}. Please report it with the command line{again}.", err=True
    )
    return EXIT_BUG


def _report_usage(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    name = context.command_path if context is not None else "shardplan"
    message = " ".join(error.format_message().split())
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        click.echo(f"{name}: error: {message} (see '{name} --help')", err=True)
    return EXIT_BAD_INPUT


def _print_error(message: str) -> None:
    first, *rest = message.splitlines() or [""]
    click.echo(f"shardplan: error: {first}", err=True)
    for line in rest:
        click.echo(f"  {line}", err=True)


def _close_stdout() -> None:
    """The reader went away: give the interpreter somewhere to flush at exit."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
