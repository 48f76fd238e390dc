"""How to search: the strategy, what is made small, and when to end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from planner.errors import InvalidInputError
from planner.scenarios import ScenarioRule

if TYPE_CHECKING:
    from planner.search.base import AbstractStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How :func:`planner.solve` searches.

    Attributes:
        strategy: name of a file in :mod:`planner.search`, or an instance.
        objective: what is made small, a name of ``shardplan list``.
        robust: what counts of a workload and its scenarios, the worst or the mean.
        time_limit_s: by the clock, from the listing of options to the pricing of the result; None
            for no limit. Where it cuts the search, the status is ``time_limit``.
        kept_s: seconds of that limit that the caller needs afterwards, to write files.
        max_evaluations: the search ends with work worth the pricing of so many plans; None for
            :func:`planner.space.budget.default_work_s`.
        seed: the same seed and inputs give the same plan unless the clock cuts the search.
        with_baselines: also plan with the baseline strategies.
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
        """Refuse values that no search could honour.

        Raises:
            InvalidInputError: lists them.
        """
        time_s, most, seed = self.time_limit_s, self.max_evaluations, self.seed
        broken = []
        if self.robust not in tuple(ScenarioRule):
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
        if broken:
            raise InvalidInputError(broken)


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def _is_positive(value: object) -> bool:
    return isinstance(value, Real) and float(value) > 0


def _is_amount(value: object) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < math.inf


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


class SearchChanges(TypedDict, total=False):
    """Fields of :class:`SearchSettings` as keywords of :func:`planner.plan`."""

    strategy: str | AbstractStrategy
    objective: str
    robust: ScenarioRule
    time_limit_s: float | None
    kept_s: float
    max_evaluations: int | None
    seed: int
    with_baselines: bool
