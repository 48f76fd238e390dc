"""How to search: the strategy, what to minimize, and when to end."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.errors import refuse_any
from planner.scenarios import ScenarioRule
from planner.search.base import AbstractStrategy
from planner.support.kinds import require_settled


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How :func:`planner.solve` searches.

    Attributes:
        strategy: name of a file in :mod:`planner.search`, or an
            instance of a strategy.
        objective: what to minimize, the name of a file in :mod:`planner.objectives`.
        robust: whether the worst or the mean over workload and scenarios is minimized.
        time_limit_s: a safety in seconds by the clock, above 0, from the listing of options to the
            pricing of the result; None for no limit. Where it cuts the search, the status of the
            result is ``time_limit``.
        kept_s: seconds of that limit that the caller needs afterwards, for example to write files.
        max_evaluations: budget of work, 1 or more: the search ends after work that is worth the
            pricing of so many plans. None for a budget that follows from the size of the problem
            (:func:`planner.space.budget.default_evaluations`).
        seed: 0 or more. The same seed and inputs give the same plan unless the clock cuts the
            search.
        with_baselines: whether to plan with the baseline strategies too.

    Raises:
        InvalidInputError: a value is one that no search can honour.

    Example:
        >>> SearchSettings(max_evaluations=100, seed=3).strategy
        'auto'
    """

    strategy: str | AbstractStrategy = "auto"
    objective: str = "iteration"
    robust: ScenarioRule = ScenarioRule.WORST
    time_limit_s: float | None = None
    kept_s: float = 0.0
    max_evaluations: int | None = None
    seed: int = 0
    with_baselines: bool = True

    def __post_init__(self) -> None:
        """Bring the fields to their kinds, and refuse values that no search can honour.

        Raises:
            InvalidInputError: a field is of another kind; or lists the numbers out of range.
        """
        require_settled(self)
        time_s, most = self.time_limit_s, self.max_evaluations
        rules = {
            f"time_limit_s must be above 0, or None, got {time_s!r}": time_s is None or time_s > 0,
            f"max_evaluations must be above 0, or None, got {most!r}": most is None or most > 0,
            f"kept_s must be 0 or more, got {self.kept_s!r}": 0 <= self.kept_s < math.inf,
            f"seed must be a whole number from 0, got {self.seed!r}": self.seed >= 0,
        }
        refuse_any([message for message, is_kept in rules.items() if not is_kept])
