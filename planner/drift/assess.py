"""What the plan in use costs under today's data, and what a new plan would cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from costmodels.sharding import Plan
from costmodels.workload import Workload
from planner import api
from planner.drift.changes import TableChange, table_changes
from planner.errors import InvalidInputError, StoppedError
from planner.models import models_of
from planner.problem import MoveLimit, PlanningProblem
from planner.result import Candidate, PlanningResult
from planner.settings import SearchSettings
from planner.support.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The plan in use, and a new plan, under the data of one day.

    Attributes:
        changes: tables whose indices have changed, the largest change first.
        before_s: seconds per iteration of the plan in use under the data that it was made with.
        now_s: seconds per iteration of the plan in use under the day's data.
        fits: whether the plan in use still fits in the memory that constraints leave.
        result: the best plan found for the day's data, with the move to it. It is never slower than
            the plan in use, if that fits.
    """

    changes: tuple[TableChange, ...]
    before_s: float
    now_s: float
    fits: bool
    result: PlanningResult

    @property
    def new_s(self) -> float:
        """Seconds per iteration of the new plan under the day's data."""
        return self.result.estimate.time.time_s

    @property
    def saved_ratio(self) -> float:
        """Share of the iteration that the new plan saves, 0..1."""
        return max(0.0, 1.0 - self.new_s / self.now_s)

    @property
    def payback_s(self) -> float | None:
        """Seconds of training until the new plan has saved the time of the move; None for never."""
        move = self.result.reshard
        return None if move is None else move.payback_s


def assess(
    problem: PlanningProblem,
    now: Workload,
    limit: MoveLimit,
    *,
    search: SearchSettings,
    should_stop: Callable[[], bool] | None = None,
) -> Assessment:
    """Price the plan in use under today's data, and search for a better one.

    Args:
        problem: the workload under the data that the plan was made with, on its system.
        now: the same workload under today's data.
        limit: the plan in use, and how much may move.
        search: how to search; there are never any baselines.
        should_stop: called again and again; True ends the search without an answer.

    Raises:
        StoppedError: ``should_stop`` was True.
        InvalidInputError: the plan does not fit the problem's tables or ranks, or the two workloads
            differ in more than their data.
        InfeasibleError: it is proven that no plan fits under today's data.
        NoPlanFoundError: the search ended without a plan that fits.
    """
    names = [[t.name for t in w.tables] for w in (problem.workload, now)]
    if names[0] != names[1]:
        message = "the two workloads of a drift must have the same tables in the same order"
        raise InvalidInputError(message)
    system = problem.topology
    before, today = (_priced(problem, w, limit.start) for w in (problem.workload, now))
    result = api.solve(
        replace(problem, workload=now, move_limit=limit),
        search=replace(search, with_baselines=False),
        should_stop=should_stop,
    )
    if result.solver.status is Status.INTERRUPTED:
        message = "stopped before it was known what a new plan saves"
        raise StoppedError(message)
    return Assessment(
        changes=table_changes(problem.workload, now, world_size=system.world_size),
        before_s=before.estimate.time.time_s,
        now_s=today.estimate.time.time_s,
        fits=today.memory.fits,
        result=result,
    )


def _priced(problem: PlanningProblem, workload: Workload, plan: Plan) -> Candidate:
    return api.estimate(workload, problem.limited.topology, plan, models=models_of(problem))
