"""``shardplan estimate``: what an existing plan costs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import planner
from planner import api, objectives, scenarios
from planner import result as results
from planner.cli import inputs, spec
from planner.cli.console import result_sections, settings, tell
from planner.errors import InvalidInputError
from planner.io.plan import result_json
from planner.options import torchrec_rules
from planner.report import figures
from planner.report.base import Fact, Section, format_cell
from planner.solving import assumed as assuming
from planner.solving import prepare
from planner.support.status import Status


class EstimateFlags(spec.ScenarioFlags):
    """The objective, and all on which its value depends.

    Attributes:
        objective: Also print the value of this objective.  [default: the plan's own, or iteration]
    """

    objective: Annotated[str | None, spec.OBJECTIVE, "NAME"] = None


@spec.command("Price an existing plan.")
def command(
    workload: Path, flags: spec.ProblemFlags, more: EstimateFlags, plan: Path | None = None
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
    read = inputs.load_plans(workload, () if plan is None else (plan,), flags)
    problem = read.problem.limited
    read = replace(read, problem=problem)

    (placed,) = read.plans
    candidate = api.estimate(problem.workload, problem.topology, placed, models=problem.models)
    asked, solver, warnings = _valued(read, flags, plan or workload, more)
    candidate, times = prepare.in_scenarios(asked, candidate)
    result = planner.PlanningResult(
        problem=problem,
        best=candidate,
        warnings=(*warnings, *torchrec_rules.runtime_warnings(candidate.plan, problem.workload)),
        solver=solver,
        scenarios=times,
        assumed=assuming.priced_assumptions(problem, candidate.plan, read.assumed),
    )
    sections = result_sections(result, leave_out=("Solver", "Verdict"))
    sections.append(Section("", _facts(solver)))
    tell(result_json.result_to_json(result) if settings().json else {}, sections)
    return 0 if candidate.memory.fits else 1


def _valued(
    read: inputs.Inputs, flags: spec.ProblemFlags, path: Path, more: EstimateFlags
) -> tuple[planner.PlanningProblem, results.SolverReport, tuple[str, ...]]:
    """The value of the plan by the objective of the flags, or else by that it was made for.

    If the objective comes from the plan and cannot be priced, the value is the iteration time, with
    a warning. Returned are the problem with its scenarios, the report, and warnings.

    Raises:
        InvalidInputError: a scenario breaks a rule, the system lacks what the objective needs, or
            the objective takes no scenarios.
    """
    saved = read.made_for
    robust, _, own = ("" if saved is None else saved.objective or "").rpartition(" ")
    is_known = own in objectives.objective_names() and robust in ("", *scenarios.ScenarioRule)
    name = more.objective or (own if is_known else "iteration")
    if not is_known or name != own:
        saved, robust = None, ""
    rule = scenarios.ScenarioRule(more.robust or robust or scenarios.ScenarioRule.WORST)
    variants, warnings = inputs.load_scenarios(more.scenarios, read.problem, flags)
    if saved is not None and saved.num_scenarios and not variants:
        warnings.append(
            f"{path}: was made for the {rule} of the workload and {saved.num_scenarios} scenarios; "
            "name them with --scenario to have that value, this is the workload's alone"
        )
    more.check_figures(name)
    defaults = more.torchrec_defaults or (saved is not None and saved.torchrec_defaults)
    asked, (plan,) = replace(read.problem, scenarios=variants), read.plans
    price = partial(prepare.objective_value, asked, plan, robust=rule)
    try:
        value = price(name, make_pipeline=prepare.pricing_of(torchrec_figures=defaults))
    except InvalidInputError as error:
        if more != EstimateFlags():
            raise
        told = f"{path}: was made for objective {name}, which is left out here: {error}"
        warnings.append(told)
        name, defaults = "iteration", False
        value = price(name)
    solver = results.SolverReport(
        strategy=result_json.GIVEN,
        objective=f"{rule} {name}" if variants else name,
        status=Status.HEURISTIC,
        value=value,
        bound=None,
        seconds=0.0,
        seed=0,
        evaluations=1,
        torchrec_defaults=defaults,
    )
    return asked, solver, tuple(dict.fromkeys((*read.warnings, *warnings)))


def _facts(solver: results.SolverReport) -> tuple[Fact, ...]:
    """A line about the value; none if the prediction has it already."""
    if solver.objective == "iteration":
        return ()
    value = format_cell(figures.objective_kind(solver.objective), solver.value)
    if not math.isfinite(solver.value):
        value = "has no value: the plan takes more host memory than TorchRec's planner allows"
    source = ("on TorchRec's default figures",) if solver.torchrec_defaults else ()
    return (Fact("Objective", (f"{solver.objective} {value}", *source)),)
