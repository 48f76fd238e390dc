"""The command line: it finds commands by file name, runs one, and turns exceptions into exit codes.

Only the command that is used is imported. An exception becomes one message on stderr.
"""

import errno
import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from typing import Any, ClassVar

import click

import costmodels
import planner.cli.commands as commands_package
from costmodels import discovery
from costmodels.errors import CostModelError
from planner.cli import interrupt
from planner.cli.console import Settings, abandon, complain, flush_failure, repair_streams
from planner.errors import InfeasibleError, NoPlanFoundError, PlannerError

EXIT_BAD_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_BUG = 70

_WHILE_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Files that are written are named by :mod:`planner.support.files`; what is printed is not."""


def _files() -> dict[str, str]:
    """The file of each command."""
    return {name.rstrip("_"): name for name in discovery.names(commands_package)}


class _LazyFinder:
    """Finds our own modules so that each is loaded when something of it is first used.

    Commands import modules, as in ``from planner import api``, and no names of them, so that a help
    loads none. Packages, and the modules of others, are loaded as usual.
    """

    def find_spec(self, name: str, *where: Any) -> ModuleSpec | None:
        """Where one of our modules is, and what loads it; None for those of others."""
        is_own = name.startswith(("planner.", "costmodels."))
        found = PathFinder.find_spec(name, *where) if is_own else None
        if found is not None and found.loader and not found.submodule_search_locations:
            found.loader = LazyLoader(found.loader)
        return found


class LazyGroup(click.Group):
    """A group whose commands are the files of :mod:`planner.cli.commands`."""

    sections: ClassVar[dict[str, tuple[str, ...]]] = {
        "Plan": ("plan", "estimate", "compare", "explain", "drift", "study", "profile", "fit"),
        "Files": ("check", "import", "export", "systems"),
        "For maintainers of the cost models": ("calibrate", "validate", "predict"),
    }
    """The headings of the help; commands that are not named here are under ``Others``."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the help."""
        return [name for names in self._named().values() for name in names]

    def _named(self) -> dict[str, list[str]]:
        """The names of the commands that there are, under their headings."""
        left = _files()
        found = {
            heading: [name for name in names if left.pop(name, None)]
            for heading, names in self.sections.items()
        }
        return {**found, "Others": list(left)}

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command from its file; its help ends with the examples of its docstring."""
        files = _files()
        if cmd_name not in files:
            return None
        sys.meta_path.insert(0, finder := _LazyFinder())
        try:
            module = importlib.import_module(f"{commands_package.__name__}.{files[cmd_name]}")
            command: click.Command = module.command
        finally:
            sys.meta_path.remove(finder)
        text, _, examples = inspect.cleandoc(command.help or "").partition("\n\nExamples:\n")
        if examples:
            command.help, command.epilog = text, f"\b\nExamples:\n{examples}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands under headings."""
        for heading, names in self._named().items():
            shown = ((name, self.get_command(ctx, name)) for name in names)
            if lines := [(name, c.get_short_help_str(70)) for name, c in shown if c]:
                with formatter.section(heading):
                    formatter.write_dl(lines)


EPILOG = """\b
First steps:
  shardplan import tables my_model.yaml --list tables.csv   name, rows, dim, pooling of each table
  shardplan plan my_model.yaml --system h100_sxm --gpus 16 -o run1   then open run1/report.html
  shardplan compare my_model.yaml old.json run1/plan.json

\b
Exit codes: 0 done; 1 the answer is no (slower plan, wide gap, target missed, failed check);
2 bad input; 3 nothing fits; 4 stopped by Ctrl-C or SIGTERM, what was found is written; 70 a
bug in shardplan."""


@click.group(
    cls=LazyGroup,
    commands=dict.fromkeys(_files(), click.Command(None)),  # for the hint at a misspelt one
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(version=costmodels.__version__, prog_name="shardplan")
def cli() -> None:
    """Place the embedding tables of a recommendation model on GPUs.

    Finds a plan, predicts the time of a training iteration under it, and proves how far the plan
    can be from the best one.
    """


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
        complain(f"shardplan: stopped by {str(stopped) or 'Ctrl-C'}{again}{detail}")
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
