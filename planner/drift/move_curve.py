"""What moving each number of tables gains, and which table a limit keeps from moving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from costmodels.pipeline import CostPipeline
from costmodels.sharding import TablePlacement
from planner import api
from planner.errors import InvalidInputError, PlannerError
from planner.explain import Explainer
from planner.problem import MoveLimit, PlanningProblem
from planner.result import Blocked, MovePoint, PlanningResult, SolverReport
from planner.rules.moved_bytes import MoveBudget, received_bytes
from planner.settings import SearchSettings
from planner.space.objective import MakePipeline

COUNTS: Final = (1, 2, 5, 10)
_GAIN: Final = 1e-4


def with_curve(
    result: PlanningResult,
    *,
    search: SearchSettings,
    counts: tuple[int, ...] = COUNTS,
    make_pipeline: MakePipeline = CostPipeline,
    should_stop: Callable[[], bool] = lambda: False,
) -> PlanningResult:
    """Add a point for each number of moved tables to a result, and the table that its limit blocks.

    All points keep the limit on bytes of the problem. A point is never worse than one with fewer
    moved tables. If the search of a point finds a faster plan than the result has, the result gets
    that plan.

    Args:
        result: the result of a search that started from a plan in use.
        search: how to search for every point.
        counts: the numbers of tables; those that the problem does not allow are left out.
        make_pipeline: makes what prices plans, as in :func:`planner.api.solve`.
        should_stop: called again and again; if it is True, points that are not done are left out.

    Raises:
        InvalidInputError: the problem has no plan in use.
    """
    problem, limit = result.problem, result.problem.move_limit
    if limit is None:
        message = "a curve of moves needs a plan in use: set the move limit of the problem"
        raise InvalidInputError(message)
    every = len(problem.workload.tables)
    most = every if limit.max_tables is None else min(every, limit.max_tables)
    best: PlanningResult | None = None
    points = []
    solve = partial(
        api.solve,
        search=replace(search, with_baselines=False),
        make_pipeline=make_pipeline,
        should_stop=should_stop,
    )
    for count in (0, *(c for c in counts if c < most)):
        found = _best(problem, limit, count, solve)
        if should_stop():
            break
        if found is not None and (best is None or found.solver.value < best.solver.value):
            best = found
        if best is not None:
            points.append(_point(count, best, _bound_s(found)))
    if best is not None and best.solver.value < result.solver.value * (1 - _GAIN):
        result = replace(
            result,
            best=best.best,
            reshard=best.reshard,
            scenarios=best.scenarios,
            solver=_with_value_of(result.solver, best.solver),
        )
    points.append(_point(None, result, _bound_s(result)))
    return replace(result, curve=tuple(points), blocked=_blocked(result, limit))


def _best(
    problem: PlanningProblem,
    limit: MoveLimit,
    count: int,
    solve: Callable[[PlanningProblem], PlanningResult],
) -> PlanningResult | None:
    """The best plan with at most ``count`` moved tables; None if none fits."""
    less = (
        replace(limit, max_tables=None, max_bytes=0.0)
        if count == 0
        else replace(limit, max_tables=count)
    )
    try:
        return solve(replace(problem, move_limit=less))
    except PlannerError:
        return None


def _with_value_of(report: SolverReport, better: SolverReport) -> SolverReport:
    """A report with the value of another plan, and with what is known of that plan."""
    return replace(
        report,
        value=better.value,
        separable_value=better.separable_value,
        balanced_value=better.balanced_value,
    )


def _bound_s(result: PlanningResult | None) -> float | None:
    """The bound that a search proved for the iteration time; None under other objectives."""
    if result is None or result.scenarios or result.solver.objective != "iteration":
        return None
    return result.bound


def _point(count: int | None, result: PlanningResult, bound_s: float | None) -> MovePoint:
    if result.reshard is None:
        message = "a point of the curve needs the price of its move"
        raise InvalidInputError(message)
    time_s = result.estimate.time.time_s
    return MovePoint(most_tables=count, iteration_s=time_s, move=result.reshard, bound_s=bound_s)


def _blocked(result: PlanningResult, limit: MoveLimit) -> Blocked | None:
    """The best change of one table that breaks the limit; None if there is no limit, or no gain."""
    if limit.max_bytes is None and limit.max_tables is None:
        return None
    problem = result.problem
    budget = MoveBudget(limit, problem.workload, problem.topology)
    unlimited = replace(limit, max_bytes=None, max_tables=None)
    explainer = Explainer(replace(problem, move_limit=unlimited), result.plan)
    names = [t.name for t in problem.workload.tables]

    def received(name: str, after: TablePlacement) -> float:
        before, table = limit.present.placement(name), problem.workload.table(name)
        return received_bytes(before, after, table, problem.workload)

    moved = np.array([received(n, result.plan.placement(n)) for n in names])
    for change in explainer.changes(limit=len(names)):
        if change.plan_time_s >= explainer.plan_time_s * (1 - _GAIN):
            return None
        bytes_then = received(change.table, change.after)
        then = moved.copy()
        then[names.index(change.table)] = bytes_then
        if not budget.keeps(then):
            return Blocked(
                table=change.table, iteration_s=change.plan_time_s, moved_bytes=bytes_then
            )
    return None
