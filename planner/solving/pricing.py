"""The value of any given plan under any objective that a search can have."""

from __future__ import annotations

from dataclasses import replace

from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, check_plan
from planner.errors import InvalidInputError
from planner.objectives import objective_class
from planner.problem import PlanningProblem
from planner.result import Candidate, ScenarioTime
from planner.scenarios import ScenarioPipeline, ScenarioRule
from planner.solving.prepare import scenario_times, search_objective, search_pipeline
from planner.space.objective import JudgedWork, MakePipeline
from planner.torchrec_terms.pipeline import TorchrecPipeline, TorchrecPricing


def pricing_of(*, torchrec_figures: bool) -> MakePipeline:
    """What makes the pipeline that prices plans.

    TorchRec's objectives use TorchRec's estimates in any case; this chooses the figures for them.

    Args:
        torchrec_figures: whether to use TorchRec's default bandwidths and memories, not the
            system's.
    """
    return TorchrecPricing(torchrec_figures=True) if torchrec_figures else CostPipeline


def objective_value(
    problem: PlanningProblem,
    plan: Plan,
    objective: str = "iteration",
    *,
    robust: ScenarioRule = ScenarioRule.WORST,
    torchrec_figures: bool = False,
    make_pipeline: MakePipeline | None = None,
) -> float:
    """The value that a search for ``objective`` would give a plan.

    Args:
        problem: workload, system and scenarios. A plan that does not fit in memory has an infinite
            value only under objectives that define it so.
        plan: a plan of this workload on these ranks.
        objective: as in :class:`planner.SearchSettings`.
        robust: whether the worst or the mean over workload and scenarios counts.
        torchrec_figures: whether to use TorchRec's default bandwidths and memories, not the
            system's.
        make_pipeline: makes what prices plans; it takes the place of ``torchrec_figures``.

    Returns:
        In the unit of the objective: seconds, bytes, or US dollars per billion samples.

    Raises:
        InvalidInputError: the plan is not one of this problem, there is no such objective, or the
            system lacks what the objective needs.
    """
    asked = make_pipeline or pricing_of(torchrec_figures=torchrec_figures)
    own = objective_class(objective).priced_by(asked)
    pipeline = search_pipeline(problem, own)
    try:
        check_plan(plan, problem.workload, problem.topology.world_size)
        if isinstance(pipeline, TorchrecPipeline):
            work = pipeline.torchrec_work(plan)
        else:
            work = pipeline.plan_work(plan)
    except InvalidValueError as error:
        raise InvalidInputError(str(error)) from error
    judged = JudgedWork(pipeline=pipeline, pool=work)
    return float(search_objective(objective, judged, robust).values(work))


def in_scenarios(
    problem: PlanningProblem, candidate: Candidate
) -> tuple[Candidate, tuple[ScenarioTime, ...]]:
    """A priced plan with the memory of the scenario that leaves least free, and its times.

    Without scenarios, the candidate is returned as it is, with no times.

    Args:
        problem: workload, system and scenarios.
        candidate: a plan as the workload alone prices it.
    """
    pipeline = search_pipeline(problem, CostPipeline) if problem.scenarios else None
    if not isinstance(pipeline, ScenarioPipeline):
        return candidate, ()
    memory = pipeline.memory(candidate.plan)
    return replace(candidate, memory=memory), scenario_times(pipeline, candidate.plan)
