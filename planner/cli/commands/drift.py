"""``shardplan drift``: what new data do to a plan in use, and whether a new plan pays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, remark, shown_paths, warn, write_json
from planner.cli.flags.common import (
    FILE,
    MAX_EVALUATIONS,
    Command,
    Count,
    Percent,
    ProblemFlags,
    Quantity,
    gathered,
    output_options,
    problem_options,
    time_limit_option,
)
from planner.cli.flags.stats_inputs import DayFile, DayFileType
from planner.cli.interrupt import StopOnInterrupt

if TYPE_CHECKING:
    from planner.cli.printing.drift_show import Drift

EXIT_DRIFTED = 1

EXAMPLES = """\b
Examples:
  shardplan drift dlrm.yaml run1/plan.json --stats today.json
  shardplan drift dlrm.yaml run1/plan.json --before then.json --stats day_7_sparse.npy
  shardplan drift dlrm.yaml run1/plan.json --stats 1=mon.json --stats 2=tue.json
  shardplan drift dlrm.yaml run1/plan.json --stats today.json --threshold 5% -q || ./alert"""

_OPTIONS = (
    click.option(
        "--stats", "days", type=DayFileType(), multiple=True, required=True, metavar="[DAY=]FILE",
        help="Statistics ('shardplan profile') or raw data of a day; DAY is a number or a date.",
    ),
    click.option(
        "--before", type=FILE, metavar="FILE",
        help="Statistics that the plan was made with.  [default: the laws in the workload]",
    ),
    click.option(
        "--threshold", type=Percent(), default="5%", show_default=True, metavar="PERCENT",
        help="Exit code 1 if a new plan makes the iteration shorter by more than this.",
    ),
    click.option(
        "--constraints", type=FILE, metavar="FILE",
        help="YAML file of constraints, in addition to those of the workload.",
    ),
    click.option(
        "--max-moved-bytes", type=Quantity("bytes"), metavar="SIZE",
        help="Maximum bytes to move, such as '200 GiB'.",
    ),
    click.option(
        "--max-moved-tables", type=Count(100_000), metavar="N",
        help="Maximum number of tables to move.",
    ),
    click.option(
        "--evaluations", type=Count(MAX_EVALUATIONS), metavar="N",
        help="Budget of each search: N priced plans.  [default: by the size of the problem]",
    ),
    time_limit_option("--time-limit", "For each search, "),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFlags:
    """What the flags say about the data, the alarm and the plan that is looked for."""

    days: tuple[DayFile, ...]
    before: Path | None
    threshold: float
    constraints: Path | None
    max_moved_bytes: float | None
    max_moved_tables: int | None
    evaluations: int | None
    time_limit: float | None


def drift_options(command: Command) -> Command:
    """The flags themselves; they arrive as one ``asked`` argument."""
    return gathered(command, _OPTIONS, DriftFlags, "asked")


@click.command(
    short_help="Say what new data do to a plan, and whether a new plan pays.", epilog=EXAMPLES
)
@click.argument("workload", type=FILE)
@click.argument("plan", type=FILE)
@drift_options
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write the new plan, as plan.json.")
@problem_options
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    workload: Path,
    plan: Path,
    asked: DriftFlags,
    output: Path | None,
    flags: ProblemFlags,
) -> int:
    """Compare the data that a plan was made for with those of today.

    Prints what changed in each table, the iteration time of the plan then and now, the time of a
    new plan, the move to it with the training time that pays it back, and the tables that have too
    few rows for the ids in the data. With several days it also prints a trend: how long the plan
    lasts.

    Exit code 1 says that, under the latest data, a new plan saves more than --threshold, or the
    plan no longer fits in memory, or the data hold ids for which a table has no row.
    """
    from planner.cli.output import check_output, files_of
    from planner.cli.printing import drift_show as show

    data = (path for day in asked.days for path in day.files)
    read = (workload, plan, asked.before, asked.constraints, *data)
    check_output(output, (*filter(None, read), *files_of(flags, workload)))
    drift, warnings = _drift(workload, plan, asked, flags)
    warnings += drift.warnings
    if settings.json:
        write_json({**show.as_json(drift), "warnings": list(dict.fromkeys(warnings))})
    else:
        show.print_drift(settings, drift)
    warn(settings, tuple(warnings))
    if output is not None:  # last, so that a disk that is full takes none of the answer away
        from planner import io

        io.save_plan(output, drift.latest.assessment.result)
        remark(settings, f"wrote {shown_paths((output,))}")
    return EXIT_DRIFTED if drift.is_alarming else 0


def _drift(
    workload: Path, plan: Path, asked: DriftFlags, flags: ProblemFlags
) -> tuple[Drift, list[str]]:
    """The plan under the data of every day, and what reading it all had to remark."""
    from planner.cli.flags.inputs import load_plans, with_constraints, with_notes
    from planner.cli.flags.stats_inputs import ordered, stats_of
    from planner.cli.printing import drift_show as show

    files, before = ordered(asked.days), asked.before
    loaded = load_plans(workload, (plan,), flags, other_data=before is not None)
    inputs = with_constraints(loaded, asked.constraints)
    problem, warnings = inputs.problem, inputs.warnings
    from planner.drift.changes import assess, workload_under
    from planner.problem import MoveLimit
    from planner.settings import SearchSettings

    if before is not None:
        old = stats_of(before, problem.workload)
        then, _, notes = workload_under(problem.workload, old, str(before))
        problem, warnings = replace(problem, workload=then), with_notes(warnings, notes)
    limit = MoveLimit(
        start=inputs.plans[0],
        max_bytes=asked.max_moved_bytes,
        max_tables=asked.max_moved_tables,
    )
    search = SearchSettings(time_limit_s=asked.time_limit, max_evaluations=asked.evaluations)
    found = []
    with StopOnInterrupt(keeps=False) as stop:
        for file in files:
            now, rows, notes = workload_under(
                problem.workload, stats_of(file.path, problem.workload), file.name
            )
            warnings += notes
            assessment = assess(problem, now, limit, search=search, should_stop=stop)
            found.append(show.Day(file=file, assessment=assessment, rows=rows))
    drift = show.Drift(
        days=tuple(found),
        threshold_ratio=asked.threshold,
        predicted_s=None if inputs.made_for is None else inputs.made_for.predicted_s,
        before=before,
    )
    return drift, list(warnings)
