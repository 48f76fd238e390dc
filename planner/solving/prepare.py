"""From a problem to what a search is given: the space of plans, and the objective."""

from dataclasses import replace
from typing import Final

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, check_plan
from planner.errors import refuse, refusing
from planner.models import pipeline_of
from planner.objectives import objective_class, objective_named
from planner.options.enumeration import ListingProgress, enumerate_options
from planner.options.table_limits import refuse_hopeless
from planner.options.torchrec_rules import COLUMN_MULTIPLE
from planner.problem import PlanningProblem
from planner.replan import reshard
from planner.result import Candidate, PlanningResult, ScenarioTime
from planner.scenarios import RobustObjective, ScenarioPipeline, ScenarioRule, check_scenarios
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractObjective, JudgedWork, MakePipeline
from planner.torchrec_terms import TorchrecPipeline, TorchrecPricing, torchrec_space

# ------------------ prepare
#
# From a problem to what a search is given: the space of plans, and the objective.

BOUND_OF_LISTED: Final = "the bound does not hold for plans that have them"
"""Said of options that were left out if a plan with them might lie below the bound."""


def search_space(
    problem: PlanningProblem,
    make_pipeline: MakePipeline,
    *,
    every_kernel: bool = False,
    every_name: bool = False,
    progress: ListingProgress | None = None,
) -> SearchSpace:
    """The space of all plans that the problem allows, with their work in each scenario.

    Args:
        problem: the question.
        make_pipeline: makes what prices plans.
        every_kernel: also list kernels in host memory for tables that device memory has room for.
        every_name: list a cut under every sharding type that gives it. Otherwise one sharding type
            stands for another where both give the same shards.
        progress: called again and again with how many of how many tables are listed; what it
            raises ends the listing.

    Raises:
        InvalidInputError: constraints that leave no option or contradict each other, or scenarios
            with other tables.
        InfeasibleError: the sizes of tables and memories alone rule out every plan.
    """
    pipeline = search_pipeline(problem, make_pipeline)
    refuse_hopeless(problem, pipeline)
    if isinstance(pipeline, TorchrecPipeline):
        return torchrec_space(problem, pipeline, every_kernel=every_kernel)
    listing = enumerate_options(
        problem, pipeline, every_kernel=every_kernel, every_name=every_name, progress=progress
    )
    return SearchSpace(problem, pipeline, listing)


def search_pipeline(problem: PlanningProblem, make_pipeline: MakePipeline) -> CostPipeline:
    """The pipeline that counts and prices the work of plans, in all scenarios at once.

    Raises:
        InvalidInputError: scenarios have other tables, the objective takes no scenarios, or a
            workload and the system contradict each other.
    """
    check_scenarios(problem.workload, problem.scenarios)
    alone = replace(problem, scenarios=())
    pipeline = pipeline_of(alone, make_pipeline)
    if not problem.scenarios:
        return pipeline
    if isinstance(pipeline, TorchrecPipeline):
        refuse("TorchRec's estimates do not see index distributions; leave scenarios out")
    others = [pipeline_of(replace(alone, workload=w), make_pipeline) for w in problem.scenarios]
    return ScenarioPipeline([pipeline, *others])


def searched_options(space: SearchSpace) -> tuple[str, ...]:
    """Lines that say which options a search considered, and whether its bound holds for others."""
    listing, topology = space.listing, space.problem.topology
    kinds = sorted({o.sharding_type for t in listing.tables for o in t.options})
    named = [*kinds, *(left_out for left_out, kept in listing.names.items() if kept in kinds)]
    kernels = sorted({o.kernel for t in listing.tables for o in t.options})
    ratios = {o.cache_load_factor_ratio or 0.0 for t in listing.tables for o in t.options} - {0.0}
    cached = ", ".join(f"{100 * ratio:g} %" for ratio in sorted(ratios))
    lines = [
        f"sharding types {', '.join(sorted(set(named)))}",
        f"kernels {', '.join(kernels)}" + (f", with {cached} of a table cached" if cached else ""),
    ]
    if any(len(o.column_widths) > 1 for t in listing.tables for o in t.options):
        lines.append(
            f"column cuts: equal, multiples of {COLUMN_MULTIPLE}, up to {topology.world_size}"
        )
    if listing.left_out_tables:
        holds = "the bound still holds" if listing.bounds_hold_beyond else BOUND_OF_LISTED
        lines.append(
            f"host-memory kernels skipped for {len(listing.left_out_tables):,} of "
            f"{len(listing.tables):,} tables, which are small or fit on GPUs by far ({holds})"
        )
    if listing.has_uncut_alone:
        lines.append(
            "host-memory kernels skipped for cut columns, and caches of other sizes than 20 % that "
            "no constraint names: too many options"
        )
    if listing.is_pruned:
        lines.append("left out: options that no better plan than a first one has, as is proven")
    return tuple(lines)


def search_objective(
    name: str, space: SearchSpace | JudgedWork, robust: ScenarioRule
) -> AbstractObjective:
    """The objective of that name; with scenarios, its worst value or its mean over them.

    Raises:
        InvalidInputError: there is no objective of that name, or the system lacks what it needs.
    """
    pipeline = space.pipeline
    if not isinstance(pipeline, ScenarioPipeline):
        return objective_named(name, space)
    inner = []
    for one in pipeline.pipelines:
        judged = JudgedWork(pipeline=one, pool=space.pool, options=space.options)
        inner.append(objective_named(name, judged))
    return RobustObjective(inner, robust)


def with_context(space: SearchSpace, result: PlanningResult) -> PlanningResult:
    """The result with the move from the plan in use and the time in each scenario added."""
    problem, pipeline = result.problem, space.pipeline
    if isinstance(pipeline, TorchrecPipeline) and pipeline.asked.torchrec_figures:
        result = replace(result, solver=replace(result.solver, torchrec_defaults=True))
    if problem.move_limit is not None:
        plans, of = (problem.move_limit.start, result.plan), (problem.workload, problem.topology)
        before_s, after_s = (float(pipeline.iteration_times(pipeline.plan_work(p))) for p in plans)
        move = reshard(*plans, *of, before_s=before_s, after_s=after_s)
        result = replace(result, reshard=move)
    if isinstance(pipeline, ScenarioPipeline):
        result = replace(result, scenarios=scenario_times(pipeline, result.plan))
    return result


def scenario_times(pipeline: ScenarioPipeline, plan: Plan) -> tuple[ScenarioTime, ...]:
    """Iteration times of a plan in the workload and in each scenario."""
    priced = [(one.workload.name, one.estimate(plan)) for one in pipeline.pipelines]
    return tuple(
        ScenarioTime(
            name=name,
            time_s=estimate.time.time_s,
            low_s=estimate.time.low_s,
            high_s=estimate.time.high_s,
            samples_per_s=estimate.samples_per_s,
        )
        for name, estimate in priced
    )


# ------------------ pricing
#
# The value of any given plan under any objective that a search can have.


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
    make_pipeline: MakePipeline = CostPipeline,
) -> float:
    """The value that a search for ``objective`` would give a plan.

    Args:
        problem: workload, system and scenarios. A plan that does not fit in memory has an infinite
            value only under objectives that define it so.
        plan: a plan of this workload on these ranks.
        objective: as in :class:`planner.SearchSettings`.
        robust: whether the worst or the mean over workload and scenarios counts.
        make_pipeline: makes what prices plans.

    Returns:
        In the unit of the objective: seconds, bytes, or US dollars per billion samples.

    Raises:
        InvalidInputError: the plan is not one of this problem, there is no such objective, or the
            system lacks what the objective needs.
    """
    own = objective_class(objective).priced_by(make_pipeline)
    pipeline = search_pipeline(problem, own)
    with refusing():
        check_plan(plan, problem.workload, problem.topology.world_size)
        if isinstance(pipeline, TorchrecPipeline):
            work = pipeline.torchrec_work(plan)
        else:
            work = pipeline.plan_work(plan)
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
