"""``shardplan estimate``: what an existing plan costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner.cli import flags as spec
from planner.cli.console import Settings, stdout_console, write_json
from planner.cli.printing.show import print_result
from planner.cli.types import OBJECTIVE, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateFlags(spec.ScenarioFlags):
    """The objective, and all on which its value depends."""

    objective: Text = spec.option(
        "Also print the value of this objective.  [default: the plan's own, or iteration]",
        type=OBJECTIVE,
        metavar="NAME",
    )


@spec.command("Price an existing plan.")
def command(
    settings: Settings,
    workload: Path,
    flags: spec.ProblemFlags,
    more: EstimateFlags,
    plan: Path | None = None,
) -> int:
    """Predict iteration time and memory of a plan made here or by TorchRec.

    System and number of ranks come from the plan if it names them; flags replace them. The value of
    an objective is the one that a search for it would give this plan; with --json it is under
    solver.value. A workload without tables needs no PLAN.

    Exit code 1 says that the plan does not fit in memory, in the workload or in one of the
    scenarios.

    Examples:
      shardplan estimate dlrm.yaml run1/plan.json
      shardplan estimate dlrm.yaml run1/plan.json --objective torchrec
      shardplan estimate dlrm.yaml torchrec_plan.json --system h100_sxm --gpus 16 -v
      shardplan estimate dlrm.yaml run1/plan.json --batch-size 8192 --json
      shardplan estimate transformer.yaml --system h100_sxm --gpus 8
    """
    from planner.cli.inputs import load_plans

    inputs = load_plans(workload, () if plan is None else (plan,), flags)
    problem = inputs.problem.limited
    inputs = replace(inputs, problem=problem)
    from planner import api  # after the cheap checks: this import is the slow one
    from planner.cli.printing import valuing
    from planner.options.torchrec_rules import runtime_warnings
    from planner.report.terminal import print_facts
    from planner.result import PlanningResult
    from planner.solving.assumed import priced_assumptions
    from planner.solving.prepare import in_scenarios

    path, (placed,) = plan or workload, inputs.plans
    asked, warnings = valuing.question(inputs, flags, path, more.objective, more)
    more.check_figures(asked.objective)
    candidate = api.estimate(problem.workload, problem.topology, placed, models=problem.models)
    solver, left_out = valuing.answer(asked, placed, path, is_explicit=more != EstimateFlags())
    candidate, times = in_scenarios(asked.problem, candidate)
    result = PlanningResult(
        problem=problem,
        best=candidate,
        warnings=(*warnings, *left_out, *runtime_warnings(candidate.plan, problem.workload)),
        solver=solver,
        scenarios=times,
        assumed=priced_assumptions(problem, candidate.plan, inputs.assumed),
    )
    if settings.json:
        from planner import io

        write_json(io.result_to_json(result))
    else:
        print_result(settings, result, leave_out=("Solver", "Verdict"))
        line = valuing.fact(solver)
        if line is not None:
            print_facts(stdout_console(), (line,))
    return 0 if candidate.memory.fits else 1
