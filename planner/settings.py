"""How to search: the strategy, what to minimize, and when to end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from costmodels.fields import is_in
from planner.errors import refuse_any
from planner.scenarios import ScenarioRule

if TYPE_CHECKING:
    from planner.search.base import AbstractStrategy


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
        InvalidInputError: lists every value that no search can honour.

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
        """Refuse values that no search can honour; a text for ``robust`` becomes the member.

        Raises:
            InvalidInputError: lists them.
        """
        time_s, most, seed = self.time_limit_s, self.max_evaluations, self.seed
        broken = []
        if is_in(self.robust, tuple(ScenarioRule)):
            object.__setattr__(self, "robust", ScenarioRule(self.robust))
        else:
            broken.append(f"robust {self.robust!r} is not one of {', '.join(ScenarioRule)}")
        if time_s is not None and not _is_positive(time_s):
            broken.append(f"time_limit_s must be above 0, or None, got {time_s!r}")
        if most is not None and not _is_whole(most, least=1):
            broken.append(f"max_evaluations must be a whole number above 0, or None, got {most!r}")
        if not _is_amount(self.kept_s):
            broken.append(f"kept_s must be a number of seconds of 0 or more, got {self.kept_s!r}")
        if not _is_flag(self.with_baselines):
            broken.append(f"with_baselines must be True or False, got {self.with_baselines!r}")
        if not _is_whole(seed, least=0):
            broken.append(f"seed must be a whole number from 0, got {seed!r}")
        refuse_any(broken)


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, Integral) and not _is_flag(value) and int(value) >= least


def _is_positive(value: object) -> bool:
    return isinstance(value, Real) and not _is_flag(value) and float(value) > 0


def _is_amount(value: object) -> bool:
    return isinstance(value, Real) and not _is_flag(value) and 0 <= float(value) < math.inf


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


class SearchChanges(TypedDict, total=False):
    """The fields of :class:`SearchSettings` as keyword arguments of :func:`planner.plan`."""

    strategy: str | AbstractStrategy
    objective: str
    robust: ScenarioRule
    time_limit_s: float | None
    kept_s: float
    max_evaluations: int | None
    seed: int
    with_baselines: bool
