"""``shardplan compare``: plans side by side, and whether a new one is slower."""

from pathlib import Path

from planner import api, models
from planner.cli import inputs, spec
from planner.cli.console import assumed_section, remark, tell
from planner.cli.output import write_folder
from planner.report import comparison as difference
from planner.solving import assumed as assuming


@spec.command("Compare plans: time per stage, memory, moved tables.")
def command(
    workload: Path,
    flags: spec.ProblemFlags,
    plans: tuple[Path, ...] = spec.argument(nargs=-1, metavar="PLAN PLAN..."),
    fail_over: spec.MaybePercent = None,
    output: spec.Folder = None,
) -> int:
    """Price several plans of one workload by the same models, and compare them with the first.

    Prints the time of each stage, memory, the tables that moved or changed type, and the bytes that
    ranks must receive to go from the first plan to another (weights and optimizer state).

    Args:
        fail_over: Exit code 1 if another plan is slower than the first by more than this, such as
            3%.
        output: Write compare.html.

    Examples:
      shardplan compare dlrm.yaml old/plan.json new/plan.json
      shardplan compare dlrm.yaml old.json new.json --system h100_sxm --gpus 16 --fail-over 3%
      shardplan compare dlrm.yaml old.json new.json -o comparison
    """
    spec.refuse(len(plans) < 2, f"two or more plans are needed, got {len(plans)}")

    loaded = inputs.load_plans(workload, plans, flags)
    problem = loaded.problem.limited

    named = dict(zip(inputs.plan_names(plans), loaded.plans, strict=True))
    first, *others = api.compare(problem.workload, problem.topology, named, models=problem.models)
    pipeline = models.pipeline_of(problem)
    sure = tuple(pipeline.confidence_faster(other.plan, first.plan) for other in others)
    worst = max(difference.regression_ratio(first, other) for other in others)
    failed = fail_over is not None and worst > fail_over
    comparison = difference.Comparison(pipeline=pipeline, plans=(first, *others), confidences=sure)
    assumed = assuming.priced_assumptions(problem, loaded.plans[0], loaded.assumed)
    if output is not None:
        write_folder(output, {"compare.html": difference.render_compare(comparison).encode()})
    told = {"fail_over_ratio": fail_over, "failed": failed, "assumed": assumed}
    sections = difference.difference_sections(comparison)
    shown = (*sections, assumed_section(assumed, first.estimate.time.time_s))
    tell({**difference.difference_data(comparison), **told}, shown, loaded.warnings)
    if failed:
        remark(f"slower by {100 * worst:.1f} %, more than {100 * (fail_over or 0):g} %")
    return int(failed)
