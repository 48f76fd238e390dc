"""Further flags of ``plan``: constraints, a plan in use, scenarios, and a family of plans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.flags.common import (
    FILE,
    Command,
    Count,
    Percent,
    Quantity,
    SearchFlags,
    gathered,
    with_options,
)

if TYPE_CHECKING:
    from planner.family.request import FamilyRequest

_MOST_TABLES = 100_000
_ROBUST = ("worst", "mean")


SCENARIO_OPTIONS = (
    click.option(
        "--scenario",
        "scenarios",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="Also count this: a variant of the workload, or statistics of other data; repeatable.",
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

_FAMILY_OPTIONS = (
    click.option(
        "--survive",
        "lost_hosts",
        type=Count(64),
        metavar="N",
        help="Also plan for 1 to N hosts fewer, so that a lost host moves few bytes.",
    ),
    click.option(
        "--family-tolerance",
        "tolerance_ratio",
        type=Percent(),
        metavar="PERCENT",
        help="How much slower each of these plans may be to save moves.  [default: 2%]",
    ),
    click.option(
        "--mtbf",
        "mtbf_s",
        type=Quantity("s", positive=True),
        metavar="TIME",
        help="Mean time between failures of one host, to weigh moves against slower iterations.",
    ),
    click.option(
        "--keep-batch",
        type=click.Choice(("global", "rank")),
        help="Samples that stay the same on fewer hosts, of a step or a rank.  [default: global]",
    ),
    click.option(
        "--restore-rate",
        "restore_bytes_per_s",
        type=Quantity("bytes_per_s", positive=True),
        metavar="RATE",
        help="How fast a rank reads the checkpoint, such as '2 GB/s'.  [default: 1 GB/s]",
    ),
)


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
    lost_hosts: int | None = None
    tolerance_ratio: float | None = None
    mtbf_s: float | None = None
    keep_batch: str | None = None
    restore_bytes_per_s: float | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the flags name."""
        named = (self.stats, self.constraints, self.plan_in_use, *self.scenarios)
        return tuple(path for path in named if path is not None)

    def family(self) -> FamilyRequest | None:
        """The family that is asked for; None if there is none."""
        if self.lost_hosts is None:
            return None
        from planner.family.request import FamilyRequest

        given = {
            name: value
            for name in ("tolerance_ratio", "mtbf_s", "restore_bytes_per_s")
            if (value := getattr(self, name)) is not None
        }
        return FamilyRequest(
            lost_hosts=self.lost_hosts, keeps_global_batch=self.keep_batch != "rank", **given
        )


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
            help="Most bytes that ranks may receive for the new plan, such as '200 GiB'.",
        ),
        click.option(
            "--max-moved-tables",
            type=Count(_MOST_TABLES),
            metavar="N",
            help="Most tables that may move: of which some rank receives a part.",
        ),
        click.option(
            "--curve",
            is_flag=True,
            help="Also plan with 1, 2, 5 and 10 moved tables at most; name the table that blocks.",
        ),
        *SCENARIO_OPTIONS,
        *_FAMILY_OPTIONS,
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
    details = (flags.tolerance_ratio, flags.mtbf_s, flags.keep_batch, flags.restore_bytes_per_s)
    if flags.lost_hosts is None and any(value is not None for value in details):
        message = (
            "--family-tolerance, --mtbf, --keep-batch and --restore-rate need --survive N, the "
            "number of hosts that may be lost"
        )
        raise click.UsageError(message, context)


def check_family(search: SearchFlags, flags: PlanFlags) -> None:
    """Refuse ``--survive`` with flags that a search for families does not support."""
    given = {
        f"--strategy {search.strategy}": search.strategy != "auto",
        f"--objective {search.objective}": search.objective != "iteration",
        "--scenario": bool(flags.scenarios),
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if flags.lost_hosts is not None and wrong:
        message = (
            f"--survive and {' and '.join(wrong)} exclude each other: families are chosen by the "
            "iteration time of one workload, with the default search"
        )
        raise click.UsageError(message, click.get_current_context())


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
