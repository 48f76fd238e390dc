"""A strategy: a short search around a plan in use, within a limit on what moves."""

from __future__ import annotations

from typing import final

from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.improve.under_rules import finish_under_rules, start_under_rules
from planner.space.evaluation import Evaluator, SearchSpace


@final
class NearPlanInUse(AbstractStrategy):
    """Tries chains of moves from the plan in use and one descent; more only if nothing fits."""

    __slots__ = ()

    def search(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> SearchOutcome:
        """The best plan found within the limit, without a proof."""
        record = Record(evaluate, progress, should_stop)
        start_under_rules(space, record, seed=seed)
        if record.best is None:
            finish_under_rules(space, record, seed=seed)
        return record.outcome(proves=False)
