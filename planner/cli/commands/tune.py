"""``shardplan tune``: pick what surrounds a plan - pipeline, groups, menus - by many searches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from planner.cli.console import Settings, complain
from planner.cli.flags.common import (
    FILE,
    MAX_EVALUATIONS,
    Command,
    Count,
    ProblemFlags,
    Quantity,
    gathered,
    output_options,
    problem_options,
)
from planner.cli.interrupt import EXIT_STOPPED, StopOnInterrupt

PIPELINES = ("sparse_dist", "prefetch_sparse_dist", "none")

EXAMPLES = """\b
Examples:
  shardplan tune dlrm.yaml --system h100_sxm --gpus 64
  shardplan tune dlrm.yaml --system h100_sxm --gpus 64 --groups --sync-interval 10 -o tuned
  shardplan tune dlrm.yaml --system h100_sxm --gpus 64 --storage /shared/study.journal
  shardplan worker /shared/study.journal              on any other machine, at any time"""

_OPTIONS = (
    click.option(
        "--trials", type=click.IntRange(1, 100_000), default=24, show_default=True, metavar="N",
        help="Picks to try, each with a search of its own.",
    ),
    click.option(
        "--trial-limit", type=Quantity("s", positive=True), default="2min", show_default=True,
        metavar="TIME", help="For the search of one pick: a safety by the clock.",
    ),
    click.option(
        "--trial-evaluations", type=Count(MAX_EVALUATIONS), metavar="N",
        help="Plans priced for one pick.  [default: by the size of the problem]",
    ),
    click.option(
        "--pipeline", "pipelines", type=click.Choice(PIPELINES), multiple=True,
        help="Training pipelines to choose from, the usual one first.  [default: all]",
    ),
    click.option(
        "--groups", is_flag=True,
        help="Also try copies of all tables on smaller groups of ranks (2D parallelism).",
    ),
    click.option(
        "--sync-interval", type=click.IntRange(1), default=1, show_default=True, metavar="N",
        help="Iterations between two averagings of the copies.",
    ),
    click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFlags:
    """What the flags say about the study: how many picks, from what, and each one's effort."""

    trials: int
    trial_limit: float
    trial_evaluations: int | None
    pipelines: tuple[str, ...]
    groups: bool
    sync_interval: int
    seed: int


def study_options(command: Command) -> Command:
    """The flags themselves; they arrive as one ``study`` argument."""
    return gathered(command, _OPTIONS, StudyFlags, "study")


@click.command(short_help="Pick pipeline, 2D groups and cache menus.", epilog=EXAMPLES)
@click.argument("workload", type=FILE)
@problem_options
@study_options
@click.option(
    "--storage", type=FILE, metavar="FILE",
    help="Journal of the study: a later run or 'shardplan worker' goes on with it.",
)  # fmt: skip
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the best plan as JSON.")
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    workload: Path,
    flags: ProblemFlags,
    study: StudyFlags,
    storage: Path | None,
    output: Path | None,
) -> int:
    """Search once per pick of pipeline, group size, least column width and cache load factors.

    'shardplan plan' takes these as given. Here Optuna picks them, beginning with the workload's
    own and with every pipeline and group size once; every pick is judged by the full pipeline.
    With --storage, other processes and machines can join, and nothing is lost when one dies. After
    Ctrl-C or SIGTERM the best plan so far is printed and written, and the exit code is 4.
    """
    from planner.cli import tuning
    from planner.cli.flags.inputs import load_problem

    inputs = load_problem(workload, flags)
    from costmodels.workload import Pipeline
    from planner.tuning import Effort, Study, menu_of

    menu = menu_of(
        inputs.problem,
        pipelines=tuple(dict.fromkeys(Pipeline(p) for p in study.pipelines)),
        groups=study.groups,
        sync_interval=study.sync_interval,
    )
    effort = Effort(
        trials=study.trials,
        trial_limit_s=study.trial_limit,
        trial_evaluations=study.trial_evaluations,
        seed=study.seed,
    )
    source = tuning.source_values(workload, flags)
    searches = Study(inputs.problem, menu, effort, journal=storage, source=source)
    with StopOnInterrupt() as stop:
        tuning.run_study(settings, searches, stop, storage, patient=True)
        if stop() and not searches.has_plan:
            message = "no setup had a plan before that, so nothing is written"
            complain(f"shardplan: stopped by {stop.stopped_by}; {message}")
            return EXIT_STOPPED
        tuning.show(settings, searches, output, warnings=inputs.warnings)
    return tuning.stopped(settings, searches, stop)
