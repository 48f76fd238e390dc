"""The straight line: workload and topology in, the best plan with its price and its proof out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

import planner.search as strategies
from costmodels import discovery
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.units import format_bytes
from costmodels.workload import Workload
from planner.enumeration import enumerate_options
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.evaluation import AbstractObjective, Assignment, Budget, Evaluator, SearchSpace
from planner.models import default_models
from planner.problem import NO_CONSTRAINTS, Constraints, PlanningProblem
from planner.result import Candidate, PlanningResult, SolverReport, Status
from planner.search.base import AbstractStrategy, SearchOutcome, SearchProgress
from planner.search.parts.feasibility import least_excess_bytes, require_feasible
from planner.search.parts.objectives import objective_named

BASELINES: Final = (
    "torchrec_greedy",
    "split_hottest",
    "size_lookup_greedy",
    "lookup_greedy",
    "size_greedy",
)
"""Strategies whose plans are reported beside the best one."""

_RUNNERS_UP: Final = 3
_BASELINE_LIMIT_S: Final = 1.0


def plan(
    workload: Workload,
    topology: Topology,
    *,
    constraints: Constraints = NO_CONSTRAINTS,
    strategy: str | AbstractStrategy = "auto",
    objective: str = "iteration",
    time_limit_s: float | None = 10.0,
    max_evaluations: int | None = None,
    seed: int = 0,
    progress: Callable[[SearchProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PlanningResult:
    """The best plan found for a workload on a topology.

    Args:
        workload: tables, dense part and how a step is run.
        topology: ranks, memories and links.
        constraints: limits on the options of tables.
        strategy: name of a file in :mod:`planner.search`, or an instance.
        objective: ``iteration`` (seconds) or ``memory`` (bytes on the fullest device).
        time_limit_s: the search ends after this many seconds; None for no limit.
        max_evaluations: the search ends after pricing this many plans; None for no limit.
        seed: of the search. The same seed gives the same plan when the search ends by itself.
        progress: called with every improvement.
        should_stop: asked often; True ends the search with what it has.

    Raises:
        InvalidInputError: unknown strategy or objective, or constraints that leave no option.
        InfeasibleError: proven that no plan fits.
        NoPlanFoundError: the search ended without a plan that fits.
    """
    problem = PlanningProblem(workload=workload, topology=topology, constraints=constraints)
    chosen = strategy if isinstance(strategy, AbstractStrategy) else strategy_named(strategy)
    pipeline = CostPipeline(workload, topology, default_models(topology))
    space = SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))
    require_feasible(space)
    target = objective_named(objective, space)
    budget = Budget(time_limit_s=time_limit_s, max_evaluations=max_evaluations)
    evaluate = Evaluator(space, target, budget)
    outcome = chosen.search(space, evaluate, seed=seed, progress=progress, should_stop=should_stop)
    _check_found(space, outcome)
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    found = [_candidate(space, a, name) for a in outcome.assignments[: 1 + _RUNNERS_UP]]
    baselines, unfit = _baselines(space, target, seed)
    return PlanningResult(
        problem=problem,
        best=found[0],
        solver=_report(name, outcome, evaluate, seed),
        runners_up=tuple(found[1:]),
        baselines=baselines,
        unfit_baselines=unfit,
        warnings=found[0].estimate.warnings,
    )


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
        progress=tuple((p.seconds, p.incumbent, p.bound) for p in outcome.progress if p.incumbent),
    )


def _check_found(space: SearchSpace, outcome: SearchOutcome) -> None:
    if outcome.assignments:
        return
    if outcome.bound is not None and np.isinf(outcome.bound):
        excess = least_excess_bytes(space)
        msg = (
            "nothing fits: every combination of options overfills a device or a host; balanced by "
            f"size, the fullest rank is {format_bytes(excess)} over its limit"
        )
        advice = ("use more GPUs, or GPUs with more memory", "allow more sharding types or kernels")
        raise InfeasibleError(msg, shortfall_bytes=excess, advice=advice)
    msg = (
        "the search ended before it found a plan that fits, which is no proof that there is none; "
        "give it more time, or more memory"
    )
    raise NoPlanFoundError(msg)


def _candidate(space: SearchSpace, assignment: Assignment, name: str) -> Candidate:
    found = space.plan(assignment)
    pipeline = space.pipeline
    return Candidate(
        name=name, plan=found, estimate=pipeline.estimate(found), memory=pipeline.memory(found)
    )


def _baselines(
    space: SearchSpace, objective: AbstractObjective, seed: int
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """Plans of the baseline strategies, and the names of those that found none that fits."""
    found: list[Candidate] = []
    unfit: list[str] = []
    for name in BASELINES:
        evaluate = Evaluator(space, objective, Budget(time_limit_s=_BASELINE_LIMIT_S))
        outcome = strategy_named(name).search(space, evaluate, seed=seed)
        if outcome.assignments:
            found.append(_candidate(space, outcome.assignments[0], name))
        else:
            unfit.append(name)
    return tuple(found), tuple(unfit)
