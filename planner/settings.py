"""How to search: the strategy, what to minimize, and when to end."""

from dataclasses import dataclass
from typing import Annotated

from costmodels.fields import Amount, Range
from planner.errors import refuse
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
    kept_s: Amount = 0.0
    max_evaluations: Annotated[int, Range(1)] | None = None
    seed: Annotated[int, Range(0)] = 0
    with_baselines: bool = True

    def __post_init__(self) -> None:
        """Bring the fields to their kinds, and refuse values that no search can honour.

        Raises:
            InvalidInputError: names the first field of another kind or out of range.
        """
        require_settled(self)
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            refuse(f"time_limit_s must be above 0, or None, got {self.time_limit_s!r}")
