"""``shardplan estimate``: what an existing plan costs."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, write_json
from planner.cli.flags import FILE, ProblemFlags, output_options, problem_options
from planner.cli.show import print_result

EXAMPLES = """\b
Examples:
  shardplan estimate dlrm.yaml run1/plan.json
  shardplan estimate dlrm.yaml torchrec_plan.json --system h100_sxm --gpus 16 -v
  shardplan estimate dlrm.yaml run1/plan.json --batch-size 8192 --json"""


@click.command(short_help="Price an existing plan.", epilog=EXAMPLES)
@click.argument("workload", type=FILE)
@click.argument("plan", type=FILE)
@problem_options
@output_options
@click.pass_obj
def command(settings: Settings, *, workload: Path, plan: Path, flags: ProblemFlags) -> int:
    """Predict iteration time and memory of a plan made here or by TorchRec.

    System and number of ranks come from the plan where it names them; flags win. Exit code 1 says
    that the plan does not fit in memory.
    """
    from planner.cli.inputs import as_result, load_plans

    inputs = load_plans(workload, (plan,), flags)
    problem = inputs.problem
    from planner import api  # after the cheap checks: this import is the slow one

    candidate = api.estimate(problem.workload, problem.topology, inputs.plans[0])
    result = as_result(inputs, candidate)
    if settings.json:
        from planner import io

        write_json(io.result_to_json(result))
    else:
        print_result(settings, result, leave_out=("Solver",))
    return 0 if candidate.memory.fits else 1
