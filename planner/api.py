"""From a workload and a topology to the best plan, with its price and its proof."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.errors import refusing
from planner.models import pipeline_of
from planner.objectives import objective_class
from planner.problem import NO_CONSTRAINTS, PLAN_HINT, Constraints, MoveLimit, PlanningProblem
from planner.result import Candidate, PlanningResult
from planner.search.base import SearchProgress
from planner.search.bounds.proofs import Floor, linear_floor
from planner.settings import SearchSettings
from planner.solving.prepare import search_objective
from planner.solving.run import SolvingRun
from planner.space.objective import MakePipeline
from planner.support.kinds import FUNCTION, require_kind

SEARCH: Final = SearchSettings()
"""The settings of a search unless others are given."""


def plan(
    workload: Workload,
    topology: Topology,
    *,
    constraints: Constraints = NO_CONSTRAINTS,
    moves: MoveLimit | None = None,
    scenarios: Sequence[Workload] = (),
    models: CostModels | None = None,
    progress: Callable[[SearchProgress], None] | bool | None = None,
    search: SearchSettings = SEARCH,
    **changes: Any,
) -> PlanningResult:
    """Find the best plan for a workload on a topology; the short form of :func:`solve`.

    Use :func:`solve` for a search that the caller may stop, or that prices plans in another way.

    Args:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        constraints: rules that the plan must keep.
        moves: the plan in use, and how much may move from it; None for a new job.
        scenarios: the same tables with other index distributions or batch sizes.
        models: the cost models that price plans; None for those that the system names.
        progress: called with every improvement; True redraws one line on standard error, which
            a notebook shows too.
        search: strategy, objective, limits and seed.
        **changes: fields of :class:`SearchSettings` that differ from ``search``, such as
            ``time_limit_s=5.0``.

    Returns:
        The plan with its predicted time in seconds, its bound, and its memory in bytes per rank.

    Raises:
        TypeError: a name among ``changes`` is no field of :class:`SearchSettings`.
        InvalidInputError: as for :func:`solve`.
        InfeasibleError: it is proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.

    Example:
        >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
        >>> result = plan(workload, system, max_evaluations=50)
        >>> len(result.plan.placements) == len(workload.tables)
        True
    """
    require_kind("scenarios", scenarios, Iterable, "give a list of workloads")
    require_kind("search", search, SearchSettings, "SearchSettings(seed=1) is one")
    problem = PlanningProblem(
        workload=workload,
        topology=topology,
        constraints=constraints,
        move_limit=moves,
        scenarios=tuple(scenarios),
        models=models,
    )
    return solve(problem, search=replace(search, **changes), progress=progress)


def solve(
    problem: PlanningProblem,
    *,
    search: SearchSettings = SEARCH,
    make_pipeline: MakePipeline = CostPipeline,
    progress: Callable[[SearchProgress], None] | bool | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PlanningResult:
    """Find the best plan for a problem.

    Args:
        problem: workload, topology, constraints, plan in use and scenarios.
        search: strategy, objective, limits and seed.
        make_pipeline: makes what prices plans; another one can, for example, count memory in
            another way.
        progress: called with every improvement; True redraws one line on standard error, which
            a notebook shows too.
        should_stop: called often; True ends the search with the best plan so far.

    Returns:
        The plan with its predicted time in seconds, its bound, and its memory in bytes per rank.

    Raises:
        InvalidInputError: an unknown strategy or objective, constraints that leave a table no
            option or contradict each other, a workload and a topology that do, or scenarios with
            other tables.
        InfeasibleError: it is proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.
        StoppedError: ``should_stop`` was True before there was any plan.

    Example:
        >>> problem = load_problem("small_demo", "h100_sxm", gpus=8)
        >>> result = solve(problem, search=SearchSettings(max_evaluations=50))
        >>> result.solver.seed
        0
    """
    require_kind("problem", problem, PlanningProblem, "planner.load_problem(...) reads one")
    require_kind("search", search, SearchSettings, "SearchSettings(seed=1) is one")
    kind = objective_class(search.objective)
    if isinstance(progress, bool):
        progress = _printed(in_seconds=kind.unit == "s") if progress else None
    for name, called in (("progress", progress), ("should_stop", should_stop)):
        require_kind(name, called, FUNCTION, "give one, or None", optional=True)
    require_kind("make_pipeline", make_pipeline, FUNCTION, "give one")
    run = SolvingRun(
        problem=problem.limited,
        settings=search,
        make_pipeline=kind.priced_by(make_pipeline),
        progress=progress,
        should_stop=should_stop,
    )
    return run.runnable()


def _printed(*, in_seconds: bool) -> Callable[[SearchProgress], None]:
    """A callback that redraws one line on standard error."""

    def show(step: SearchProgress) -> None:
        sys.stderr.write(f"\r{step.line(in_seconds=in_seconds):<100}")
        sys.stderr.flush()

    return show


def floor(problem: PlanningProblem, *, should_stop: Callable[[], bool] | None = None) -> Floor:
    """A lower bound on the iteration time of every plan of a problem, without a search for a plan.

    Where there are so many options that kernels in host memory are listed for uncut columns alone,
    the bound is about plans of the listed options.

    Raises:
        InvalidInputError: constraints that leave no option or contradict each other.
        InfeasibleError: proven that no plan fits.
        StoppedError: ``should_stop`` was True while options were listed.
    """
    run = SolvingRun(
        problem=problem.limited,
        settings=SEARCH,
        make_pipeline=CostPipeline,
        should_stop=should_stop,
    )
    if not problem.workload.tables:
        best = run.without_tables().best
        free_bytes = best.memory.fullest.headroom_bytes
        return Floor(value=best.estimate.time.time_s, free_bytes=free_bytes)
    space = run.listed()
    if not space.listing.bounds_hold_beyond and not space.listing.has_uncut_alone:
        space = run.listed(every_kernel=True)
    return linear_floor(space, search_objective(SEARCH.objective, space, SEARCH.robust))


def estimate(
    workload: Workload,
    topology: Topology,
    plan: Plan,
    *,
    name: str = "plan",
    models: CostModels | None = None,
) -> Candidate:
    """Price an existing plan, whoever made it.

    Args:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        plan: places every table of the workload on ranks of the topology.
        name: of the plan, in the result and in errors.
        models: the cost models that price it; None for those that the system names.

    Returns:
        The plan with its estimate (times in seconds) and its memory (bytes per rank).

    Raises:
        InvalidInputError: the plan is not one of this workload on this many ranks, workload and
            topology contradict each other, or an argument is of another class.

    Example:
        >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
        >>> found = plan(workload, system, max_evaluations=50)
        >>> priced = estimate(workload, system, found.plan)
        >>> priced.estimate.time.time_s == found.estimate.time.time_s
        True
    """
    problem = PlanningProblem(workload=workload, topology=topology, models=models)
    require_kind(name, plan, Plan, PLAN_HINT)
    pipeline = pipeline_of(problem)
    with refusing(f"{name}: "):
        return Candidate.of(name, plan, pipeline)


def compare(
    workload: Workload,
    topology: Topology,
    plans: Mapping[str, Plan],
    *,
    models: CostModels | None = None,
) -> tuple[Candidate, ...]:
    """Price several plans by the same models.

    Args:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        plans: plans by name.
        models: the cost models that price them; None for those that the system names.

    Returns:
        The priced plans in the order given, as :func:`estimate` returns them.

    Raises:
        InvalidInputError: a value is not a plan of this workload on this many ranks.

    Example:
        >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
        >>> found = plan(workload, system, max_evaluations=50)
        >>> plans = {"ours": found.plan, "theirs": found.baselines[0].plan}
        >>> [candidate.name for candidate in compare(workload, system, plans)]
        ['ours', 'theirs']
    """
    require_kind("plans", plans, Mapping, "give a dictionary of plans by name")
    return tuple(
        estimate(workload, topology, p, name=name, models=models) for name, p in plans.items()
    )
