"""The straight line: workload and topology in, the best plan with its price and its proof out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Unpack

import planner.search as strategies
from costmodels import discovery
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, Spread
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.answer import RUNNERS_UP, Point, answer, answer_without_tables, candidate
from planner.errors import InvalidInputError
from planner.models import models_of
from planner.objectives import objective_class
from planner.options.work import ListingProgress
from planner.prepare import (
    search_objective,
    search_space,
)
from planner.problem import (
    NO_CONSTRAINTS,
    PLAN_HINT,
    Constraints,
    MoveLimit,
    PlanningProblem,
)
from planner.result import TORCHREC_BASELINE, Candidate, PlanningResult
from planner.search.base import AbstractStrategy, SearchOutcome, SearchProgress
from planner.search.bounds.feasibility import require_feasible
from planner.search.bounds.quick import Floor, linear_floor
from planner.settings import SearchChanges, SearchSettings
from planner.space.budget import Deadline, default_evaluations
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective, MakePipeline
from planner.support.collector import collector_paused
from planner.support.kinds import require_function, require_kind

BASELINES: Final = (
    TORCHREC_BASELINE,
    "split_hottest",
    "size_lookup_greedy",
    "lookup_greedy",
    "size_greedy",
)
"""Strategies whose plans are reported beside the best one."""


SEARCH: Final = SearchSettings()
"""How a search goes unless told otherwise."""


def plan(
    workload: Workload,
    topology: Topology,
    *,
    constraints: Constraints = NO_CONSTRAINTS,
    moves: MoveLimit | None = None,
    scenarios: Sequence[Workload] = (),
    models: CostModels | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
    search: SearchSettings = SEARCH,
    **changes: Unpack[SearchChanges],
) -> PlanningResult:
    """The best plan found for a workload on a topology: the short form of :func:`solve`.

    A search that something else may stop, or that counts memory in another way, is asked of
    :func:`solve`.

    Args:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        constraints: limits on options and places of tables, and on memory.
        moves: the plan in use, and how much may move away from it.
        scenarios: the same tables under other index distributions or batch sizes.
        models: what prices plans; None for the models that the system names.
        progress: called with every improvement.
        search: strategy, objective, limits and seed.
        **changes: fields of :class:`SearchSettings` that differ from ``search``, such as
            ``time_limit_s=5.0``.

    Raises:
        TypeError: a name among ``changes`` is no field of :class:`SearchSettings`.
        InvalidInputError: as of :func:`solve`.
        InfeasibleError: proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.
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
    progress: Callable[[SearchProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PlanningResult:
    """The best plan found for a problem.

    Args:
        problem: workload, topology, constraints, plan in use and scenarios.
        search: strategy, objective, limits and seed.
        make_pipeline: prices plans; another one can count memory in another way.
        progress: called with every improvement.
        should_stop: asked often; True ends the search with what it has.

    Raises:
        InvalidInputError: unknown strategy or objective, constraints that leave no option or
            contradict each other, scenarios with other tables.
        InfeasibleError: proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.
        StoppedError: ``should_stop`` said so before there was anything to search.
    """
    require_kind("problem", problem, PlanningProblem, "planner.load_problem(...) reads one")
    require_kind("search", search, SearchSettings, "SearchSettings(seed=1) is one")
    for name, called in (("progress", progress), ("should_stop", should_stop)):
        require_function(name, called)
    run = _Run(
        problem=replace(problem, topology=problem.constraints.limited(problem.topology)),
        settings=search,
        deadline=_deadline(search),
        make_pipeline=objective_class(search.objective).priced_by(make_pipeline),
        progress=progress,
        should_stop=should_stop,
    )
    if not problem.workload.tables:
        return answer_without_tables(run.problem, run.make_pipeline, search)
    space, evaluate, outcome = run.search()
    points = run.baselines(space, evaluate.objective) if search.with_baselines else {}
    return answer(search.strategy, outcome, points, evaluate, search.seed)


def floor(problem: PlanningProblem, *, should_stop: Callable[[], bool] | None = None) -> Floor:
    """What no plan of a problem can go below, in seconds per iteration, without looking for one.

    Where options are so many that host kernels are listed for uncut columns alone, it is about
    plans of the listed options.

    Raises:
        InvalidInputError: constraints that leave no option or contradict each other.
        InfeasibleError: proven that no plan fits.
        StoppedError: ``should_stop`` said so while options were listed.
    """
    run = _Run(
        problem=replace(problem, topology=problem.constraints.limited(problem.topology)),
        settings=SEARCH,
        deadline=_deadline(SEARCH),
        make_pipeline=CostPipeline,
        progress=None,
        should_stop=should_stop,
    )
    if not problem.workload.tables:
        best = answer_without_tables(run.problem, CostPipeline, SEARCH).best
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
        plan: of these tables on these ranks.
        name: what the result and errors call it.
        models: what prices it; None for the models that the system names.

    Raises:
        InvalidInputError: the plan is not one of this workload on this many ranks, or an argument
            is of another class.
    """
    problem = PlanningProblem(workload=workload, topology=topology, models=models)
    require_kind(name, plan, Plan, PLAN_HINT)
    pipeline = CostPipeline(workload, topology, models_of(problem))
    try:
        return Candidate(
            name=name, plan=plan, estimate=pipeline.estimate(plan), memory=pipeline.memory(plan)
        )
    except InvalidValueError as error:
        msg = f"{name}: {error}"
        raise InvalidInputError(msg) from error


def compare(
    workload: Workload,
    topology: Topology,
    plans: Mapping[str, Plan],
    *,
    models: CostModels | None = None,
) -> tuple[Candidate, ...]:
    """Price several plans by the same models, in the order given; see :func:`estimate`.

    Raises:
        InvalidInputError: a plan is not one of this workload on this many ranks, or no plan.
    """
    require_kind("plans", plans, Mapping, "give a dictionary of plans by name")
    return tuple(
        estimate(workload, topology, p, name=name, models=models) for name, p in plans.items()
    )


def strategy_names() -> tuple[str, ...]:
    """Strategies that ``plan`` knows by name."""
    return discovery.names(strategies)


def strategy_named(name: str) -> AbstractStrategy:
    """The strategy in ``planner/search/<name>.py``.

    Raises:
        InvalidInputError: there is none; the message lists those there are.
    """
    if name not in strategy_names():
        known = ", ".join(strategy_names())
        msg = f"strategy {name!r} is not one of {known}"
        raise InvalidInputError(msg)
    return discovery.load(strategies, name, AbstractStrategy)()


def _deadline(search: SearchSettings) -> Deadline:
    baselines = len(BASELINES) if search.with_baselines else 0
    return Deadline(
        search.time_limit_s,
        kept_s=search.kept_s,
        num_plans=1 + RUNNERS_UP + baselines,
        num_baselines=baselines,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One search of a problem, and the baselines beside it."""

    problem: PlanningProblem
    settings: SearchSettings
    deadline: Deadline
    make_pipeline: MakePipeline
    progress: Callable[[SearchProgress], None] | None
    should_stop: Callable[[], bool] | None

    def search(self) -> tuple[SearchSpace, Evaluator, SearchOutcome]:
        """Search the kernels that matter, and then all of them if nothing fits without them."""
        named = self.settings.strategy
        strategy = named if isinstance(named, AbstractStrategy) else strategy_named(named)
        at_once = objective_class(self.settings.objective).wants_every_kernel
        for every_kernel in dict.fromkeys((at_once, True)):
            space = self.listed(every_kernel=every_kernel)
            evaluate = self._evaluator(space)
            outcome = strategy.search(
                space,
                evaluate,
                seed=self.settings.seed,
                progress=self.progress,
                should_stop=self.should_stop,
            )
            if outcome.assignments or space.listing.has_every_kernel:
                break
        return space, evaluate, outcome

    def baselines(
        self, space: SearchSpace, objective: AbstractObjective
    ) -> dict[str, Point | None]:
        """Best plan of each baseline strategy; None for those that found none that fits."""
        points: dict[str, Point | None] = {}
        for left, name in zip(range(len(BASELINES), 0, -1), BASELINES, strict=True):
            evaluate = Evaluator(space, objective, self.deadline.for_baseline(space, left))
            outcome = strategy_named(name).search(space, evaluate, seed=self.settings.seed)
            points[name] = (outcome.values[0], outcome.assignments[0]) if outcome.values else None
        return points

    def listed(self, *, every_kernel: bool = False) -> SearchSpace:
        """The space of plans; where kernels were left out, that nothing fits is not proven.

        They are all listed where a table fits with none of those that would be.
        """
        with collector_paused():
            space = search_space(
                self.problem,
                self.make_pipeline,
                every_kernel=every_kernel,
                progress=_listing_progress(self.progress),
                should_stop=self.should_stop,
            )
            if space.listing.has_every_kernel:
                require_feasible(space)
        if not every_kernel and not all(t.options for t in space.tables):
            return self.listed(every_kernel=True)
        return space

    def _evaluator(self, space: SearchSpace) -> Evaluator:
        settings = self.settings
        limit_s = self.deadline.for_search(partial(candidate, space, _any(space), "probe"))
        most = settings.max_evaluations or default_evaluations(space, settings.time_limit_s)
        return Evaluator(
            space,
            search_objective(settings.objective, space, settings.robust),
            Budget(time_limit_s=limit_s, max_evaluations=most),
        )


def _listing_progress(progress: Callable[[SearchProgress], None] | None) -> ListingProgress | None:
    """Tells of the tables whose options are listed, before there is any plan."""
    if progress is None:
        return None
    started = time.perf_counter()

    def tell(done: int, total: int) -> None:
        progress(
            SearchProgress(
                seconds=time.perf_counter() - started,
                incumbent=None,
                bound=None,
                gap_ratio=None,
                evaluations=0,
                phase=f"options of {done:,} of {total:,} tables listed",
            )
        )

    return tell


def _any(space: SearchSpace) -> Assignment:
    """Each table's first option, its pieces in turn; whether it fits is not looked at."""
    places = []
    for t in range(space.num_tables):
        option = space.option(t, 0)
        count = space.num_hosts if option.spread is Spread.HOSTS else space.world_size
        places.append(tuple((t + piece) % count for piece in range(option.num_pieces)))
    return Assignment(options=(0,) * space.num_tables, places=tuple(places))
