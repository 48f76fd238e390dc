"""A plan in use: how its data have changed, when a new plan pays, what moves give."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.pipeline import CostPipeline
from costmodels.sharding import TablePlacement
from costmodels.workload import Table, Workload
from planner import api
from planner.errors import PlannerError, StoppedError, refuse
from planner.explain.explainer import Explainer
from planner.models import models_of
from planner.problem import MoveLimit, PlanningProblem
from planner.profiling.stats import Stats, some_names, stats_key, with_stats
from planner.result import Blocked, MovePoint, PlanningResult, Reshard
from planner.rules.placement_rules import MoveBudget, received_bytes
from planner.settings import SearchSettings
from planner.space.objective import MakePipeline
from planner.support.status import Status

# ------------------ changes
#
# What has changed in the data of each table between two statistics, and which tables are full.

_HOT_RATIO: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures:
    """The figures of a table's indices that lookups depend on.

    Attributes:
        pooling_factor: mean indices per sample, over all features together.
        num_unique_rows: expected number of distinct rows in one batch of all ranks.
        hot_ratio: share of accesses that fall on the 1 % of rows that are accessed most.
    """

    pooling_factor: float
    num_unique_rows: float
    hot_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The figures of one table under both statistics.

    ``changed_bytes`` is by how much the bytes differ that the lookups of a batch read.
    """

    table: str
    before: IndexFigures
    now: IndexFigures
    changed_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """The number of rows that the data of one day need in a table, and the number that it has."""

    table: str
    num_rows_needed: int
    num_embeddings: int

    @property
    def is_outgrown(self) -> bool:
        """Whether the data have ids for which the table has no row."""
        return self.num_rows_needed > self.num_embeddings


def table_changes(before: Workload, now: Workload, *, world_size: int) -> tuple[TableChange, ...]:
    """The tables whose indices have changed, those with the largest change in bytes first.

    Args:
        before: the workload under the statistics that the plan was made with.
        now: the same tables under today's statistics.
        world_size: number of ranks; the figures are those of one batch of all ranks.
    """
    samples = before.batch_size_per_rank * world_size
    found = []
    for old, new in zip(before.tables, now.tables, strict=True):
        then, today = (_figures(t, samples) for t in (old, new))
        indices = samples * abs(new.pooling_factor - old.pooling_factor)
        changed = (indices + abs(today.num_unique_rows - then.num_unique_rows)) * old.row_bytes
        if then != today:
            found.append(TableChange(table=old.name, before=then, now=today, changed_bytes=changed))
    return tuple(sorted(found, key=lambda c: -c.changed_bytes))


def workload_under(
    workload: Workload, stats: Stats, place: str
) -> tuple[Workload, tuple[TableRows, ...], tuple[str, ...]]:
    """The workload under the statistics of a day.

    A table that is too small for the data keeps the law that it has, because ids without a row
    cannot be looked up, and so cannot be priced.

    Args:
        workload: the tables.
        stats: the statistics of the day.
        place: the file of the statistics, for messages.

    Returns:
        The workload, the rows that the data need in each measured table, and remarks.

    Raises:
        InvalidInputError: no table of the workload was measured.
    """
    keys = {t: key for t in workload.tables if (key := stats_key(t, stats)) is not None}
    needed = tuple(
        TableRows(
            table=table.name,
            num_rows_needed=stats.tables[key].num_rows_needed,
            num_embeddings=table.num_embeddings,
        )
        for table, key in keys.items()
    )
    outgrown = {rows.table for rows in needed if rows.is_outgrown}
    left_out = {key for table, key in keys.items() if table.name in outgrown}
    fitting = {name: table for name, table in stats.tables.items() if name not in left_out}
    measured, notes = workload, tuple[str, ...]()
    if not outgrown or len(outgrown) < len(needed):
        others = stats.model_copy(update={"tables": fitting})
        measured, notes = with_stats(workload, others, place)
    if outgrown:
        if len(needed) == len(workload.tables):  # only tables that were left out lack statistics
            notes = tuple(note for note in notes if "no statistics of" not in note)
        notes = (
            *notes,
            f"{place}: holds ids beyond the rows of {some_names(sorted(outgrown))}; such tables "
            "are priced with their old laws, and training on these data fails until they are "
            "enlarged",
        )
    return measured, needed, notes


def _figures(table: Table, samples: float) -> IndexFigures:
    law = table.distribution
    return IndexFigures(
        pooling_factor=table.pooling_factor,
        num_unique_rows=law.expected_unique_rows(samples * table.pooling_factor),
        hot_ratio=law.access_share(_HOT_RATIO * table.num_embeddings),
    )


# ------------------ assess
#
# What the plan in use costs under today's data, and what a new plan would cost.


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
        rows: the rows that the data need in each measured table.
    """

    changes: tuple[TableChange, ...]
    before_s: float
    now_s: float
    fits: bool
    result: PlanningResult
    rows: tuple[TableRows, ...] = ()

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

    @property
    def pays(self) -> bool:
        """Whether the new plan is faster."""
        return self.payback_s is not None and self.saved_ratio > 0

    @property
    def move(self) -> Reshard | None:
        """The move to the new plan; None where that is only another one as slow."""
        return None if self.fits and not self.pays else self.result.reshard


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
        refuse("the two workloads of a drift must have the same tables in the same order")
    system, models = problem.limited.topology, models_of(problem)
    before, today = (
        api.estimate(workload, system, limit.start, models=models)
        for workload in (problem.workload, now)
    )
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


# ------------------ trend
#
# A line through the values of several days, for forecasts such as how long a plan lasts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A least-squares line through values of several days.

    Attributes:
        slope_per_day: change per day, in the unit of the values.
        spread_per_day: standard error of the slope; infinite with fewer than three days.
        at_last_day: the value of the line on the latest day.
    """

    slope_per_day: float
    spread_per_day: float
    at_last_day: float

    def days_until(self, level: float) -> tuple[float, float, float]:
        """Days from the latest day until the line reaches ``level``: (soonest, likely, latest).

        The first and the last one use a slope that differs by its standard error. They are infinite
        if the line never reaches the level.
        """
        left, slope, spread = level - self.at_last_day, self.slope_per_day, self.spread_per_day
        if left <= 0:
            return 0.0, 0.0, 0.0
        soon, likely, late = (
            left / s if s > 0 else math.inf for s in (slope + spread, slope, slope - spread)
        )
        return soon, likely, late


def trend(days: Sequence[float], values: Sequence[float]) -> Trend | None:
    """The line through the values of at least two different days; None for fewer days.

    Args:
        days: when each value was measured, in days from any origin.
        values: one value for each entry of ``days``.
    """
    if len(set(days)) < 2:
        return None
    from scipy.stats import linregress  # which takes long to load

    line = linregress(days, values)
    return Trend(
        slope_per_day=float(line.slope),
        spread_per_day=float(line.stderr) if len(days) > 2 else math.inf,
        at_last_day=float(line.intercept + line.slope * max(days)),
    )


# ------------------------------------------------------------------ curve of moves


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
        refuse("a curve of moves needs a plan in use: set the move limit of the problem")
    every = len(problem.workload.tables)
    most = every if limit.max_tables is None else min(every, limit.max_tables)
    best: PlanningResult | None = None
    points = []
    bare = replace(search, with_baselines=False)
    for count in (0, *(c for c in counts if c < most)):
        less = replace(limit, max_tables=count)
        found: PlanningResult | None = None
        with suppress(PlannerError):  # none fits
            found = api.solve(
                replace(problem, move_limit=less),
                search=bare,
                make_pipeline=make_pipeline,
                should_stop=should_stop,
            )
        if should_stop():
            break
        if found is not None and (best is None or found.solver.value < best.solver.value):
            best = found
        if best is not None:
            points.append(_point(count, best, found))
    if best is not None and best.solver.value < result.solver.value * (1 - _GAIN):
        known = ("value", "separable_value", "balanced_value")
        solver = replace(result.solver, **{name: getattr(best.solver, name) for name in known})
        changed = {name: getattr(best, name) for name in ("best", "reshard", "scenarios")}
        result = replace(result, solver=solver, **changed)
    points.append(_point(None, result, result))
    return replace(result, curve=tuple(points), blocked=_blocked(result, limit))


def _point(count: int | None, result: PlanningResult, searched: PlanningResult | None) -> MovePoint:
    """A point with the bound that its search proved, which is one on the time of an iteration."""
    assert result.reshard is not None
    bound_s = None
    if searched and not searched.scenarios and searched.solver.objective == "iteration":
        bound_s = searched.bound
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
        before, table = limit.start.placement(name), problem.workload.table(name)
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
