"""One search of a problem, with the baselines beside it, and another one if TorchRec needs it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import planner.search as strategies
from costmodels import discovery
from costmodels.fields import is_in
from costmodels.sharding import Plan
from costmodels.workload import Pipeline, Workload
from planner.errors import (
    InfeasibleError,
    InvalidInputError,
    NoPlanFoundError,
    StoppedError,
    refuse,
)
from planner.options import enumeration
from planner.options.torchrec_rules import piece_widths, pooling_problems, width_problems
from planner.problem import PlanningProblem
from planner.result import TORCHREC_BASELINE, PlanningResult
from planner.search.auto import Auto
from planner.search.base import (
    OPTIMALITY_GAP,
    AbstractStrategy,
    Record,
    SearchOutcome,
    SearchProgress,
)
from planner.search.bounds.feasibility import require_feasible
from planner.settings import SearchSettings
from planner.solving.answer import BASELINES, RUNNERS_UP, Point, answer, answer_without_tables
from planner.solving.prepare import search_objective, search_space
from planner.space.budget import Deadline, default_evaluations
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective, MakePipeline
from planner.support.kinds import require_kind
from planner.support.status import Status

_DEFAULT: Final = "auto"
"""The strategy that can begin near a plan."""
_LEAST_S: Final = 0.2
"""Seconds left of a time limit below which no further search begins."""


def strategy_names() -> tuple[str, ...]:
    """The names of all strategies."""
    return discovery.names(strategies)


def strategy_named(name: str) -> AbstractStrategy:
    """Make the strategy in ``planner/search/<name>.py``.

    Raises:
        InvalidInputError: there is no such file; the message lists the names of all strategies.
    """
    if not is_in(name, strategy_names()):
        refuse(f"strategy {name!r} is not one of {', '.join(strategy_names())}")
    return discovery.load(strategies, name, AbstractStrategy)()


def deadline_of(search: SearchSettings) -> Deadline:
    """The clock of a search, its baselines and the pricing of what they found."""
    baselines = len(BASELINES) if search.with_baselines else 0
    return Deadline(
        search.time_limit_s,
        kept_s=search.kept_s,
        num_plans=1 + RUNNERS_UP + baselines,
        num_baselines=baselines,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvingRun:
    """One search of a problem, and the baselines that it is compared with.

    The default strategy also begins with the plan that is most like ``near``.
    """

    problem: PlanningProblem
    settings: SearchSettings
    deadline: Deadline
    make_pipeline: MakePipeline
    progress: Callable[[SearchProgress], None] | None
    should_stop: Callable[[], bool] | None
    near: Plan | None = None

    def result(self) -> PlanningResult:
        """The best plan found, beside those of the baselines."""
        if not self.problem.workload.tables:
            return answer_without_tables(self.problem, self.make_pipeline, self.settings)
        space, evaluate, outcome = self.search()
        is_compared = self.settings.with_baselines
        points = self.baselines(space, evaluate.objective) if is_compared else {}
        return answer(self.settings, outcome, points, evaluate, self.deadline)

    def runnable(self) -> PlanningResult:
        """The result if TorchRec runs its plan correctly, otherwise the best of further searches.

        TorchRec cannot run some plans, and under others it computes something else than the model
        does. This depends on several tables of a module together, and the search does not know of
        it. If the plan of the search is such a plan, the problem is searched again under narrower
        rules (:mod:`planner.options.enumeration`), and the best plan of these searches is the
        answer. The bound of the first search holds for it as well, because all these plans are also
        plans of the first search. If no search finds a plan that runs, the first result is returned
        with its warnings. Otherwise runners-up that TorchRec does not run correctly are left out.
        """
        first, workload = self.result(), self.problem.workload
        if runs(first.plan, workload):
            return _with_runners_up_that_run(first)
        results = list(self._searched_anew(first))
        found = [result for result in results if runs(result.plan, workload)]
        if not found:
            return first
        best = _with_runners_up_that_run(min(found, key=lambda result: result.solver.value))
        seconds = sum(result.solver.seconds for result in (first, *results))
        solver = replace(best.solver, bound=first.solver.bound, seconds=seconds)
        gap = solver.gap_ratio
        if solver.status in (Status.OPTIMAL, Status.OPTIMAL_FOR_WIDTHS) and (
            gap is None or gap > OPTIMALITY_GAP
        ):
            solver = replace(solver, status=Status.GAP)
        return replace(best, problem=self.problem, solver=solver, searched=(*best.searched, _LINE))

    def _searched_anew(self, first: PlanningResult) -> Iterator[PlanningResult]:
        """Results under narrower rules, and under still narrower ones where these are not enough.

        Rules that are narrowed less are searched first. Each search begins near the plan found
        under the wider rules. They end with the time limit.
        """
        constraints, given = self.problem.constraints, enumeration.rules_of(self.problem)
        seen, waiting = {given}, deque([(first, given)])
        while waiting:
            found, rules = waiting.popleft()
            for narrower in _narrower(found, rules):
                if narrower in seen or len(seen) > _SEARCHES:
                    continue
                seen.add(narrower)
                left_s = self.deadline.left_s + self.settings.kept_s
                if left_s <= _LEAST_S or (self.should_stop is not None and self.should_stop()):
                    return
                limit_s = left_s if math.isfinite(left_s) else None
                settings = replace(self.settings, time_limit_s=limit_s)
                tables = (*constraints.tables, *narrower)
                again = replace(
                    self,
                    problem=replace(self.problem, constraints=replace(constraints, tables=tables)),
                    settings=settings,
                    deadline=deadline_of(settings),
                    near=found.plan,
                )
                try:
                    result = again.result()
                except (InfeasibleError, InvalidInputError, NoPlanFoundError, StoppedError):
                    continue
                yield result
                waiting.append((result, narrower))

    def search(self) -> tuple[SearchSpace, Evaluator, SearchOutcome]:
        """Search with the kernels that matter; if nothing fits, search again with all kernels."""
        named = self.settings.strategy
        strategy = named if isinstance(named, AbstractStrategy) else strategy_named(named)
        if named == _DEFAULT and self.near is not None:
            strategy = Auto(self.near)
        for every_kernel in (False, True):
            space = self.listed(every_kernel=every_kernel)
            evaluate = self._evaluator(space)
            record = Record(evaluate, self.progress, self.should_stop)
            outcome = strategy.search(record, seed=self.settings.seed)
            hint = "AbstractStrategy.search says what to return"
            require_kind("what the strategy returned", outcome, SearchOutcome, hint)
            if outcome.assignments or space.listing.has_every_kernel:
                break
        return space, evaluate, outcome

    def baselines(
        self, space: SearchSpace, objective: AbstractObjective
    ) -> dict[str, Point | None]:
        """The best plan of each baseline strategy; None where it found no plan that fits.

        A baseline that the clock leaves no time for is not among them.
        """
        points: dict[str, Point | None] = {}
        for left, name in zip(range(len(BASELINES), 0, -1), BASELINES, strict=True):
            budget = self.deadline.for_baseline(space, left, alone=name == TORCHREC_BASELINE)
            if budget.time_limit_s == 0.0:
                continue
            evaluate = Evaluator(space, objective, budget)
            outcome = strategy_named(name).search(Record(evaluate), seed=self.settings.seed)
            if outcome.termination is Status.TIME_LIMIT and not outcome.values:
                continue
            points[name] = (outcome.values[0], outcome.assignments[0]) if outcome.values else None
        return points

    def listed(self, *, every_kernel: bool = False) -> SearchSpace:
        """The space of plans; raises if it is proven that nothing fits, or if asked to stop.

        Where kernels are left out of the listing, "nothing fits" cannot be proven. If a table then
        has no option at all, all kernels are listed after all.
        """
        started = time.perf_counter()

        def tell(done: int, total: int) -> None:
            if self.should_stop is not None and self.should_stop():
                msg = f"stopped while options of tables were listed, {done:,} of {total:,}"
                raise StoppedError(msg)
            if self.progress is not None:
                phase = f"options of {done:,} of {total:,} tables listed"
                seconds = time.perf_counter() - started
                self.progress(SearchProgress(seconds=seconds, phase=phase))

        space = search_space(
            self.problem, self.make_pipeline, every_kernel=every_kernel, progress=tell
        )
        if space.listing.has_every_kernel:
            require_feasible(space)
        if not every_kernel and not all(t.options for t in space.tables):
            return self.listed(every_kernel=True)
        return space

    def _evaluator(self, space: SearchSpace) -> Evaluator:
        settings = self.settings
        limit_s = self.deadline.for_search(space)
        most = settings.max_evaluations or default_evaluations(space, settings.time_limit_s)
        return Evaluator(
            space,
            search_objective(settings.objective, space, settings.robust),
            Budget(time_limit_s=limit_s, max_evaluations=most),
        )


# ------------------ a plan that TorchRec runs correctly

_SEARCHES: Final = 10
"""At most this many further searches. Most problems need one or two: several only where means and
widths both have to change, or where a module has pieces of many widths."""
_LINE: Final = (
    "left out: plans that TorchRec cannot run or runs as another model (mean-pooled tables of a "
    "module cut by rows beside others that are not, unpooled ones in columns of several widths); "
    "the bound counts them"
)

_WIDTHS: Final = 3
"""At most this many widths of a plan are tried as the only one of a module."""


def runs(plan: Plan, workload: Workload) -> bool:
    """Whether TorchRec runs a plan correctly; HugeCTR, which is not TorchRec, runs every plan."""
    if workload.pipeline is Pipeline.HUGECTR:
        return True
    return not (pooling_problems(plan, workload) or width_problems(plan, workload))


def _with_runners_up_that_run(result: PlanningResult) -> PlanningResult:
    workload = result.problem.workload
    kept = tuple(c for c in result.runners_up if runs(c.plan, workload))
    return result if kept == result.runners_up else replace(result, runners_up=kept)


def _narrower(found: PlanningResult, rules: enumeration.Rules) -> Iterator[enumeration.Rules]:
    """Rules that leave out what TorchRec does not run correctly in the plan found under ``rules``.

    If means are pooled wrongly, either no mean is cut by rows, or all tables of their modules are.
    Otherwise, if pieces have several widths, either no columns are cut, or one of the widths stays,
    the most common ones first.
    """
    workload = found.problem.workload
    if pooling_problems(found.plan, workload):
        for by_rows in (False, True):
            yield enumeration.pooled_alike(workload, rules, by_rows=by_rows)
    elif modules := width_problems(found.plan, workload):
        widths = piece_widths(found.plan, workload)
        each = [{m: widths[m][min(i, len(widths[m]) - 1)] for m in modules} for i in range(_WIDTHS)]
        for chosen in (dict.fromkeys(modules, 0), *each):
            yield enumeration.pieces_of_one_width(workload, rules, found.plan, chosen)
