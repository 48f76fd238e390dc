"""The straight line: workload and topology in, the best plan with its price and its proof out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

import planner.search as strategies
from costmodels import discovery
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType, Spread
from costmodels.stages import CostModels
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Workload
from planner.budget import Deadline, default_evaluations
from planner.collector import collector_paused
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.guard import guarded
from planner.models import default_models
from planner.objective import AbstractObjective
from planner.option_work import ListingProgress
from planner.problem import NO_CONSTRAINTS, Constraints, MoveLimit, PlanningProblem
from planner.result import Candidate, PlanningResult, SolverReport, Status
from planner.robust import Robust
from planner.search.base import AbstractStrategy, SearchOutcome, SearchProgress
from planner.search.parts.feasibility import least_excess_bytes, require_feasible
from planner.search.parts.objectives import MEMORY
from planner.search_problem import (
    search_objective,
    search_space,
    searched_options,
    with_context,
)
from planner.torchrec_space import priced_for

BASELINES: Final = (
    "torchrec_greedy",
    "split_hottest",
    "size_lookup_greedy",
    "lookup_greedy",
    "size_greedy",
)
"""Strategies whose plans are reported beside the best one."""

_Point = tuple[float, Assignment]
"""A plan with its value."""

_RUNNERS_UP: Final = 3


def plan(
    workload: Workload,
    topology: Topology,
    *,
    constraints: Constraints = NO_CONSTRAINTS,
    strategy: str | AbstractStrategy = "auto",
    objective: str = "iteration",
    time_limit_s: float | None = None,
    max_evaluations: int | None = None,
    seed: int = 0,
    progress: Callable[[SearchProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    make_pipeline: Callable[[Workload, Topology, CostModels], CostPipeline] = CostPipeline,
    with_baselines: bool = True,
    moves: MoveLimit | None = None,
    scenarios: Sequence[Workload] = (),
    robust: Robust = Robust.WORST,
) -> PlanningResult:
    """The best plan found for a workload on a topology.

    Args:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        constraints: limits on options and places of tables, and on memory.
        strategy: name of a file in :mod:`planner.search`, or an instance.
        objective: ``iteration`` (seconds), ``memory`` (bytes on the fullest device), ``cost`` (US
            dollars per billion samples), or another that ``shardplan list`` names.
        time_limit_s: by the clock, from the listing of options to the pricing of the result; None
            for no limit. Part of it is kept back for the baselines, which run last. The result says
            so where it cut the search (status ``time_limit``).
        max_evaluations: the search ends with work worth the pricing of so many plans. None for a
            budget that follows from the problem's size, or from the time limit if there is one;
            see :func:`planner.budget.default_work_s`.
        seed: of the search. The same seed and inputs give the same plan on any machine, busy or
            not, unless the clock cuts the search.
        progress: called with every improvement.
        should_stop: asked often; True ends the search with what it has.
        make_pipeline: prices plans; another one can count memory in another way.
        with_baselines: also plan with the baseline strategies.
        moves: the plan in use, and how much may move away from it.
        scenarios: the same tables under other index distributions or batch sizes; the plan is then
            the best for all of them.
        robust: what counts of workload and scenarios, the worst or the mean.

    Raises:
        InvalidInputError: unknown strategy or objective, constraints that leave no option or
            contradict each other, scenarios with other tables.
        InfeasibleError: proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.
        StoppedError: ``should_stop`` said so before there was anything to search.
    """
    baselines = len(BASELINES) if with_baselines else 0
    deadline = Deadline(
        time_limit_s, num_plans=1 + _RUNNERS_UP + baselines, num_baselines=baselines
    )
    problem = _problem(workload, topology, constraints, moves, scenarios)
    chosen = strategy if isinstance(strategy, AbstractStrategy) else strategy_named(strategy)

    listing = partial(
        search_space,
        problem,
        priced_for(objective, make_pipeline),
        progress=_listing_progress(progress),
        should_stop=should_stop,
    )
    for every_kernel in dict.fromkeys((objective == MEMORY, True)):
        space = _listed(partial(listing, every_kernel=every_kernel))
        target = search_objective(objective, space, robust)
        limit_s = deadline.for_search(partial(_candidate, space, _any(space), "probe"))
        most = max_evaluations or default_evaluations(space, time_limit_s)
        evaluate = Evaluator(space, target, Budget(time_limit_s=limit_s, max_evaluations=most))
        outcome = chosen.search(
            space, evaluate, seed=seed, progress=progress, should_stop=should_stop
        )
        if outcome.assignments or space.listing.has_every_kernel:
            break
    points = _baselines(space, evaluate.objective, seed, deadline) if with_baselines else {}
    return _result(strategy, outcome, points, evaluate, seed)


def estimate(
    workload: Workload, topology: Topology, plan: Plan, *, name: str = "plan"
) -> Candidate:
    """Price an existing plan, whoever made it.

    Raises:
        InvalidInputError: the plan is not one of this workload on this many ranks.
    """
    pipeline = CostPipeline(workload, topology, default_models(topology))
    try:
        return Candidate(
            name=name, plan=plan, estimate=pipeline.estimate(plan), memory=pipeline.memory(plan)
        )
    except InvalidValueError as error:
        msg = f"{name}: {error}"
        raise InvalidInputError(msg) from error


def compare(
    workload: Workload, topology: Topology, plans: Mapping[str, Plan]
) -> tuple[Candidate, ...]:
    """Price several plans by the same models, in the order given.

    Raises:
        InvalidInputError: a plan is not one of this workload on this many ranks.
    """
    return tuple(estimate(workload, topology, p, name=name) for name, p in plans.items())


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


def _problem(
    workload: Workload,
    topology: Topology,
    constraints: Constraints,
    moves: MoveLimit | None,
    scenarios: Sequence[Workload],
) -> PlanningProblem:
    return PlanningProblem(
        workload=workload,
        topology=constraints.limited(topology),
        constraints=constraints,
        move_limit=moves,
        scenarios=tuple(scenarios),
    )


def _listed(listing: Callable[[], SearchSpace]) -> SearchSpace:
    """The space of plans; refuses a problem that provably has no plan.

    Where kernels were left out, that nothing fits without them proves nothing.
    """
    with collector_paused():
        space = listing()
        if space.listing.has_every_kernel:
            require_feasible(space)
        return space


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


def _result(
    strategy: str | AbstractStrategy,
    outcome: SearchOutcome,
    points: dict[str, _Point | None],
    evaluate: Evaluator,
    seed: int,
) -> PlanningResult:
    """What was found and proven, beside the baselines' plans."""
    space = evaluate.space
    known = [p for p in points.values() if p is not None]
    if strategy == "auto":
        outcome = _no_worse(outcome, known)
    _check_found(space, outcome)
    outcome, remarks = guarded(outcome, [value for value, _ in known], evaluate)
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    found = [_candidate(space, a, name) for a in outcome.assignments[: 1 + _RUNNERS_UP]]
    return with_context(
        space,
        PlanningResult(
            problem=space.problem,
            best=found[0],
            solver=_report(name, outcome, evaluate, seed),
            runners_up=tuple(found[1:]),
            baselines=tuple(_candidate(space, p[1], n) for n, p in points.items() if p),
            unfit_baselines=tuple(n for n, p in points.items() if p is None),
            warnings=(*remarks, *found[0].estimate.warnings),
            searched=searched_options(space),
        ),
    )


def _report(name: str, outcome: SearchOutcome, evaluate: Evaluator, seed: int) -> SolverReport:
    return SolverReport(
        strategy=name,
        objective=evaluate.objective.name,
        status=Status(outcome.termination.value),
        value=outcome.values[0],
        bound=outcome.bound,
        seconds=evaluate.seconds,
        seed=seed,
        evaluations=evaluate.num_evaluations,
        work=evaluate.work,
        separable_value=_separable_value(outcome, evaluate),
        balanced_value=_balanced_value(outcome, evaluate),
        progress=tuple((p.seconds, p.incumbent, p.bound) for p in outcome.progress if p.incumbent),
    )


def _separable_value(outcome: SearchOutcome, evaluate: Evaluator) -> float | None:
    best, space = outcome.assignments[0], evaluate.space
    found = evaluate.objective.separable_value(space.work(best), _types(space, best))
    return None if found is None else min(found, outcome.values[0])


def _balanced_value(outcome: SearchOutcome, evaluate: Evaluator) -> float | None:
    """The same of a made-up plan that gives every rank the mean of this one's work."""
    best, space, objective = outcome.assignments[0], evaluate.space, evaluate.objective
    speeds = space.problem.topology.speeds()
    if outcome.bound is None or speeds.min() < speeds.max():
        return None
    work = space.work(best)
    even = np.tile(work.mean(axis=0), (len(work), 1))
    found = objective.separable_value(even, _types(space, best))
    value = float(objective.values(even)) if found is None else found
    return value if np.isfinite(value) else None


def _types(space: SearchSpace, assignment: Assignment) -> frozenset[ShardingType]:
    chosen = (space.option(t, i) for t, i in enumerate(assignment.options))
    return frozenset(option.sharding_type for option in chosen)


def _check_found(space: SearchSpace, outcome: SearchOutcome) -> None:
    if outcome.assignments:
        return
    if outcome.bound is not None and np.isinf(outcome.bound):
        excess = least_excess_bytes(space)
        reason = "overfills a device or a host"
        reason += " or breaks a constraint" if space.rules else ""
        msg = (
            f"nothing fits: every combination of options and places {reason}; balanced by size, "
            f"the fullest rank is {format_bytes(excess)} over its limit"
        )
        advice = ("use more GPUs, or GPUs with more memory", "allow more sharding types or kernels")
        raise InfeasibleError(msg, shortfall_bytes=excess, advice=advice)
    excess = least_excess_bytes(space)
    short = f"balanced by size, the fullest rank is {format_bytes(excess)} over its limit; "
    rules = "; drop or widen constraints" if space.rules else ""
    msg = (
        "the search ended before it found a plan that fits, which is no proof that there is none; "
        f"{short if excess > 0 else ''}give it more time, or more memory{rules}"
    )
    raise NoPlanFoundError(msg)


def _candidate(space: SearchSpace, assignment: Assignment, name: str) -> Candidate:
    found = space.plan(assignment)
    pipeline = space.pipeline
    return Candidate(
        name=name, plan=found, estimate=pipeline.estimate(found), memory=pipeline.memory(found)
    )


def _baselines(
    space: SearchSpace, objective: AbstractObjective, seed: int, deadline: Deadline
) -> dict[str, _Point | None]:
    """Best plan of each baseline strategy; None for those that found none that fits."""
    points: dict[str, _Point | None] = {}
    for left, name in zip(range(len(BASELINES), 0, -1), BASELINES, strict=True):
        evaluate = Evaluator(space, objective, deadline.for_baseline(space, left))
        outcome = strategy_named(name).search(space, evaluate, seed=seed)
        points[name] = (outcome.values[0], outcome.assignments[0]) if outcome.values else None
    return points


def _no_worse(outcome: SearchOutcome, points: list[_Point]) -> SearchOutcome:
    """The outcome, led by the best of ``points`` where a short search found none as good."""
    best = min(points, key=lambda p: p[0], default=None)
    if best is None or (outcome.values and outcome.values[0] <= best[0]):
        return outcome
    return replace(
        outcome,
        values=(best[0], *outcome.values),
        assignments=(best[1], *outcome.assignments),
    )


def _any(space: SearchSpace) -> Assignment:
    """Each table's first option, its pieces in turn; whether it fits is not looked at."""
    places = []
    for t in range(space.num_tables):
        option = space.option(t, 0)
        count = space.num_hosts if option.spread is Spread.HOSTS else space.world_size
        places.append(tuple((t + piece) % count for piece in range(option.num_pieces)))
    return Assignment(options=(0,) * space.num_tables, places=tuple(places))
