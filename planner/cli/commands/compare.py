"""``shardplan compare``: plans side by side, and whether a new one is slower."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, remark, stdout_console, warn, write_json
from planner.cli.flags import ProblemFlags, StrictCommand, output_options, taking
from planner.cli.types import FILE, PERCENT

if TYPE_CHECKING:
    from planner.report.comparison import Comparison

EXIT_REGRESSION = 1


@click.command(cls=StrictCommand, short_help="Compare plans: time per stage, memory, moved tables.")
@click.argument("workload", type=FILE)
@click.argument("plans", nargs=-1, type=FILE, metavar="PLAN PLAN...")
@taking(ProblemFlags)
@click.option(
    "--fail-over",
    type=PERCENT,
    metavar="PERCENT",
    help="Exit code 1 if another plan is slower than the first by more than this, such as 3%.",
)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Write compare.html.")
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    workload: Path,
    plans: tuple[Path, ...],
    flags: ProblemFlags,
    fail_over: float | None,
    output: Path | None,
) -> int:
    """Price several plans of one workload by the same models, and compare them with the first.

    Prints the time of each stage, memory, the tables that moved or changed type, and the bytes that
    ranks must receive to go from the first plan to another (weights and optimizer state).

    Examples:
      shardplan compare dlrm.yaml old/plan.json new/plan.json
      shardplan compare dlrm.yaml old.json new.json --system h100_sxm --gpus 16 --fail-over 3%
      shardplan compare dlrm.yaml old.json new.json -o comparison
    """
    if len(plans) < 2:
        message = f"two or more plans are needed, got {len(plans)}"
        raise click.UsageError(message, click.get_current_context())
    from planner.cli.inputs import load_plans, plan_names
    from planner.models import pipeline_of
    from planner.report import comparison as difference

    inputs = load_plans(workload, plans, flags)
    problem = inputs.problem.limited
    from planner import api  # after the cheap checks: this import is the slow one

    named = dict(zip(plan_names(plans), inputs.plans, strict=True))
    candidates = api.compare(problem.workload, problem.topology, named, models=problem.models)
    pipeline = pipeline_of(problem)
    sure = tuple(pipeline.confidence_faster(p, inputs.plans[0]) for p in inputs.plans[1:])
    worst = max(difference.regression_ratio(candidates[0], other) for other in candidates[1:])
    failed = fail_over is not None and worst > fail_over
    comparison = difference.Comparison(pipeline=pipeline, plans=candidates, confidences=sure)
    from planner.cli.printing.show import print_assumed
    from planner.solving.assumed import priced_assumptions

    assumed = priced_assumptions(problem, inputs.plans[0], inputs.assumed)
    if output is not None:
        _write(output, comparison)
    if settings.json:
        data = difference.difference_data(comparison)
        extra = {"fail_over_ratio": fail_over, "failed": failed, "warnings": list(inputs.warnings)}
        found = [asdict(a) for a in assumed]
        write_json({**data, **extra, "assumed": found})
    else:
        from planner.report.terminal import print_sections

        print_sections(stdout_console(), difference.difference_sections(comparison))
        print_assumed(assumed, candidates[0].estimate.time.time_s)
    warn(settings, inputs.warnings)
    if failed:
        remark(settings, f"slower by {100 * worst:.1f} %, more than {100 * (fail_over or 0):g} %")
    return EXIT_REGRESSION if failed else 0


def _write(folder: Path, comparison: Comparison) -> None:
    """Write the page."""
    from planner.cli import output
    from planner.report.comparison import render_compare

    output.write_folder(folder, {output.COMPARE_FILE: render_compare(comparison).encode()})
