"""Further flags of ``plan``: constraints, a plan in use, scenarios, and failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from planner.cli.flags.common import (
    FILE,
    Command,
    Count,
    Quantity,
    gathered,
    with_options,
)

_MOST_TABLES = 100_000
_ROBUST = ("worst", "mean")


SCENARIO_OPTIONS = (
    click.option(
        "--scenario",
        "scenarios",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="Another workload or statistics file that the plan must serve too (repeatable).",
    ),
    click.option(
        "--robust",
        type=click.Choice(_ROBUST),
        help="Minimize the worst or the mean of all scenarios.  [default: worst]",
    ),
    click.option(
        "--torchrec-defaults",
        is_flag=True,
        help="For TorchRec's objectives: its bandwidths and memories, not the system's.",
    ),
)
"""Flags besides the objective on which the value of a plan depends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """The flags besides those on workload, system and search; None for flags not given."""

    stats: Path | None = None
    constraints: Path | None = None
    plan_in_use: Path | None = None
    max_moved_bytes: float | None = None
    max_moved_tables: int | None = None
    curve: bool = False
    scenarios: tuple[Path, ...] = ()
    robust: str | None = None
    torchrec_defaults: bool = False
    mtbf_s: float | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the flags name."""
        named = (self.stats, self.constraints, self.plan_in_use, *self.scenarios)
        return tuple(path for path in named if path is not None)


def plan_options(command: Command) -> Command:
    """Add these flags to a command, which gets them as ``more``."""
    options = (
        click.option(
            "--stats",
            type=FILE,
            metavar="FILE",
            help="Statistics from 'shardplan profile', for all tables or some.",
        ),
        click.option(
            "--constraints",
            type=FILE,
            metavar="FILE",
            help="YAML file of constraints, in addition to those of the workload.",
        ),
        click.option(
            "--from",
            "plan_in_use",
            type=FILE,
            metavar="PLAN",
            help="The plan in use: the search starts from it, and moves are counted from it.",
        ),
        click.option(
            "--max-moved-bytes",
            type=Quantity("bytes"),
            metavar="SIZE",
            help="Maximum bytes to move, such as '200 GiB'.",
        ),
        click.option(
            "--max-moved-tables",
            type=Count(_MOST_TABLES),
            metavar="N",
            help="Maximum number of tables to move.",
        ),
        click.option(
            "--curve",
            is_flag=True,
            help="Also plan with 1, 2, 5 and 10 moved tables at most; name the table that blocks.",
        ),
        *SCENARIO_OPTIONS,
        click.option(
            "--mtbf",
            "mtbf_s",
            type=Quantity("s", positive=True),
            metavar="TIME",
            help="Mean time between failures of one host: says how often to write checkpoints.",
        ),
    )
    return gathered(command, options, PlanFlags, "more", _check)


def scenario_options(command: Command) -> Command:
    """Add the flags of :data:`SCENARIO_OPTIONS`, each as an argument of its own."""
    return with_options(command, SCENARIO_OPTIONS)


def _check(flags: PlanFlags) -> None:
    """Refuse flags that have no effect without another one."""
    context = click.get_current_context()
    limited = flags.max_moved_bytes is not None or flags.max_moved_tables is not None
    if (limited or flags.curve) and flags.plan_in_use is None:
        message = "--max-moved-bytes, --max-moved-tables and --curve need --from, the plan in use"
        raise click.UsageError(message, context)
    check_robust(flags.robust, flags.scenarios)


def check_robust(robust: str | None, scenarios: tuple[Path, ...]) -> None:
    """Refuse ``--robust`` without scenarios."""
    if robust is not None and not scenarios:
        message = "--robust needs --scenario, what to plan for beside the workload"
        raise click.UsageError(message, click.get_current_context())


def check_figures(objective: str, *, torchrec_defaults: bool) -> None:
    """Refuse ``--torchrec-defaults`` for an objective that does not use them."""
    if torchrec_defaults and not objective.startswith("torchrec"):
        message = (
            "--torchrec-defaults are figures for TorchRec's estimates; add --objective torchrec or "
            "torchrec-critical-path"
        )
        raise click.UsageError(message, click.get_current_context())
