"""Computes the value of a plan for ``estimate --objective``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from costmodels.sharding import Plan
from planner.cli.flags import ProblemFlags, ScenarioFlags
from planner.cli.inputs import Inputs, load_scenarios
from planner.errors import InvalidInputError
from planner.io.plan.result_json import GIVEN
from planner.problem import PlanningProblem
from planner.result import SolverReport
from planner.scenarios import ScenarioRule
from planner.support.status import Status

if TYPE_CHECKING:
    from planner.report.base import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueQuestion:
    """The objective, with everything on which its value depends."""

    objective: str
    robust: ScenarioRule
    torchrec_defaults: bool
    problem: PlanningProblem

    def answer(self, plan: Plan) -> SolverReport:
        """The value of a plan, in the form of a search's report.

        Raises:
            InvalidInputError: the system lacks what the objective needs, or the objective takes no
                scenarios.
        """
        from planner.solving.prepare import objective_value

        value = objective_value(
            self.problem,
            plan,
            self.objective,
            robust=self.robust,
            torchrec_figures=self.torchrec_defaults,
        )
        scenarios = f"{self.robust} " if self.problem.scenarios else ""
        return SolverReport(
            strategy=GIVEN,
            objective=f"{scenarios}{self.objective}",
            status=Status.HEURISTIC,
            value=value,
            bound=None,
            seconds=0.0,
            seed=0,
            evaluations=1,
            torchrec_defaults=self.torchrec_defaults,
        )


def question(
    inputs: Inputs, flags: ProblemFlags, path: Path, objective: str | None, more: ScenarioFlags
) -> tuple[ValueQuestion, tuple[str, ...]]:
    """The objective of the flags, or else the one that the plan was made for; and warnings.

    Raises:
        InvalidInputError: a scenario breaks a rule.
    """
    from planner.objectives import objective_names

    saved = inputs.made_for
    robust, _, own = ("" if saved is None else saved.objective or "").rpartition(" ")
    is_known = own in objective_names() and robust in ("", *ScenarioRule)
    name = objective or (own if is_known else "iteration")
    if not is_known or name != own:
        saved, robust = None, ""
    rule = ScenarioRule(more.robust or robust or ScenarioRule.WORST)
    variants, warnings = load_scenarios(more.scenarios, inputs.problem, flags)
    if saved is not None and saved.num_scenarios and not variants:
        warnings.append(
            f"{path}: was made for the {robust or ScenarioRule.WORST} of the workload and "
            f"{saved.num_scenarios} scenarios; name them with --scenario to have that value, this "
            "is the workload's alone"
        )
    found = ValueQuestion(
        objective=name,
        robust=rule,
        torchrec_defaults=more.torchrec_defaults or (saved is not None and saved.torchrec_defaults),
        problem=replace(inputs.problem, scenarios=variants),
    )
    return found, tuple(dict.fromkeys((*inputs.warnings, *warnings)))


def answer(
    asked: ValueQuestion, plan: Plan, path: Path, *, is_explicit: bool
) -> tuple[SolverReport, tuple[str, ...]]:
    """The value of a plan.

    If the objective comes from the plan and cannot be priced, the value is the iteration time, with
    a warning.

    Raises:
        InvalidInputError: the objective that the user asked for cannot be priced.
    """
    try:
        return asked.answer(plan), ()
    except InvalidInputError as error:
        if is_explicit:
            raise
        simple = replace(asked, objective="iteration", torchrec_defaults=False)
        words = f"{path}: was made for objective {asked.objective}, which is left out here: {error}"
        return simple.answer(plan), (words,)


def fact(solver: SolverReport) -> Fact | None:
    """A line about the value; None if the prediction has it already."""
    from planner.report.base import Fact, format_cell
    from planner.report.figures import objective_kind

    if solver.objective == "iteration":
        return None
    if not math.isfinite(solver.value):
        words = "has no value: the plan takes more host memory than TorchRec's planner allows"
        return Fact(label="Objective", parts=(f"{solver.objective} {words}",))
    kind, unit = objective_kind(solver.objective)
    words = f"{solver.objective} {format_cell(kind, solver.value)}"
    more = ("on TorchRec's default figures",) if solver.torchrec_defaults else ()
    per = ("per billion samples",) if "samples" in unit else ()
    return Fact(label="Objective", parts=(words, *per, *more))
