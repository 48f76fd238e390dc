"""The command group: it finds commands by file name, and imports only the one that is used."""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from typing import Any, ClassVar

import click

import costmodels
import planner.cli.commands as commands_package
from costmodels import discovery


def _files() -> dict[str, str]:
    """The file of each command."""
    return {name.rstrip("_"): name for name in discovery.names(commands_package)}


class _LazyFinder:
    """Finds our own modules so that each is loaded when something of it is first used.

    Commands import modules, as in ``from planner import api``, and no names of them, so that a help
    loads none. Packages, and the modules of others, are loaded as usual.
    """

    def find_spec(self, name: str, *where: Any) -> ModuleSpec | None:
        """Where a module is, and what loads it."""
        found = PathFinder.find_spec(name, *where)
        is_own = name.startswith(("planner.", "costmodels."))
        if found is not None and found.loader and is_own and not found.submodule_search_locations:
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
