"""One search of a problem, with the baselines beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import planner.search as strategies
from costmodels import discovery
from costmodels.fields import is_in
from costmodels.sharding import Plan
from planner.errors import refuse
from planner.options.cuts import ListingProgress
from planner.problem import PlanningProblem
from planner.result import TORCHREC_BASELINE, PlanningResult
from planner.search.auto import Auto
from planner.search.base import AbstractStrategy, SearchOutcome, SearchProgress
from planner.search.bounds.feasibility import require_feasible
from planner.settings import SearchSettings
from planner.solving.answer import BASELINES, RUNNERS_UP, Point, answer, answer_without_tables
from planner.solving.prepare import search_objective, search_space
from planner.space.budget import Deadline, default_evaluations
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective, MakePipeline
from planner.support.kinds import require_kind
from planner.support.processes import collector_paused
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

    def again(
        self, narrower: PlanningProblem, found: Plan, *, started: float
    ) -> PlanningResult | None:
        """The result of another search under narrower rules; None if there is no time left for it.

        Args:
            narrower: the problem with the narrower rules.
            found: a good plan under wider rules. The search also begins with the plan that is most
                like it under the narrower ones.
            started: when the first search began, by ``time.perf_counter``.
        """
        limit_s = self.settings.time_limit_s
        left_s = None if limit_s is None else limit_s - (time.perf_counter() - started)
        is_over = left_s is not None and left_s <= _LEAST_S
        if is_over or (self.should_stop is not None and self.should_stop()):
            return None
        settings = replace(self.settings, time_limit_s=left_s)
        run = replace(
            self,
            problem=narrower.limited,
            settings=settings,
            deadline=deadline_of(settings),
            near=found,
        )
        return run.result()

    def search(self) -> tuple[SearchSpace, Evaluator, SearchOutcome]:
        """Search with the kernels that matter; if nothing fits, search again with all kernels."""
        named = self.settings.strategy
        strategy = named if isinstance(named, AbstractStrategy) else strategy_named(named)
        if named == _DEFAULT and self.near is not None:
            strategy = Auto(self.near)
        for every_kernel in (False, True):
            space = self.listed(every_kernel=every_kernel)
            evaluate = self._evaluator(space)
            outcome = strategy.search(
                space,
                evaluate,
                seed=self.settings.seed,
                progress=self.progress,
                should_stop=self.should_stop,
            )
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
            outcome = strategy_named(name).search(space, evaluate, seed=self.settings.seed)
            if outcome.termination is Status.TIME_LIMIT and not outcome.values:
                continue
            points[name] = (outcome.values[0], outcome.assignments[0]) if outcome.values else None
        return points

    def listed(self, *, every_kernel: bool = False) -> SearchSpace:
        """The space of plans; raises if it is proven that nothing fits.

        Where kernels are left out of the listing, "nothing fits" cannot be proven. If a table then
        has no option at all, all kernels are listed after all.
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
        limit_s = self.deadline.for_search(space)
        most = settings.max_evaluations or default_evaluations(space, settings.time_limit_s)
        return Evaluator(
            space,
            search_objective(settings.objective, space, settings.robust),
            Budget(time_limit_s=limit_s, max_evaluations=most),
        )


def _listing_progress(progress: Callable[[SearchProgress], None] | None) -> ListingProgress | None:
    """A callback that reports how many tables have their options listed; no plan exists then."""
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
