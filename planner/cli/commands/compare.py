"""``shardplan compare``: plans side by side, and whether a new one is slower."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, remark, stdout_console, write_json
from planner.cli.flags import FILE, Percent, ProblemFlags, output_options, problem_options

EXIT_REGRESSION = 1

EXAMPLES = """\b
Examples:
  shardplan compare dlrm.yaml old/plan.json new/plan.json
  shardplan compare dlrm.yaml old.json new.json --system h100_sxm --gpus 16 --fail-over 3%"""


@click.command(short_help="Compare plans: time per stage, memory, moved tables.", epilog=EXAMPLES)
@click.argument("workload", type=FILE)
@click.argument("plans", nargs=-1, type=FILE, metavar="PLAN PLAN...")
@problem_options
@click.option(
    "--fail-over",
    type=Percent(),
    metavar="PERCENT",
    help="Exit code 1 if a later plan is slower than the first by more, such as 3%.",
)
@output_options
@click.pass_obj
def command(
    settings: Settings,
    *,
    workload: Path,
    plans: tuple[Path, ...],
    flags: ProblemFlags,
    fail_over: float | None,
) -> int:
    """Price several plans of one workload by the same models; the first is the reference.

    Shows the time of each stage, memory, the tables that moved or changed type, and the bytes that
    ranks must receive to go from the first plan to another (weights and optimizer state).
    """
    if len(plans) < 2:
        message = f"two or more plans are needed, got {len(plans)}"
        raise click.UsageError(message, click.get_current_context())
    from planner.cli.inputs import load_plans, plan_names
    from planner.report import _difference as difference

    inputs = load_plans(workload, plans, flags)
    problem = inputs.problem
    from costmodels.pipeline import CostPipeline
    from planner import api  # after the cheap checks: this import is the slow one

    named = dict(zip(plan_names(plans), inputs.plans, strict=True))
    candidates = api.compare(problem.workload, problem.topology, named)
    pipeline = CostPipeline(problem.workload, problem.topology)
    sure = tuple(pipeline.confidence_faster(p, inputs.plans[0]) for p in inputs.plans[1:])
    worst = max(difference.regression_ratio(candidates[0], other) for other in candidates[1:])
    failed = fail_over is not None and worst > fail_over
    if settings.json:
        data = difference.difference_data(problem.workload, candidates, sure)
        write_json({**data, "fail_over_ratio": fail_over, "failed": failed})
    else:
        from planner.report._terminal import print_sections

        sections = difference.build_difference(problem.workload, candidates, sure)
        print_sections(stdout_console(), sections)
        for text in inputs.warnings:
            remark(settings, f"warning: {text}")
    if failed:
        remark(settings, f"slower by {100 * worst:.1f} %, more than {100 * (fail_over or 0):g} %")
    return EXIT_REGRESSION if failed else 0
