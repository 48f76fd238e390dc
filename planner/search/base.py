"""The interface of a search strategy, and the record every search keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace

__all__ = [
    "AbstractStrategy",
    "Budget",
    "Record",
    "SearchOutcome",
    "SearchProgress",
    "Termination",
]

OPTIMALITY_GAP: Final = 1e-4
"""A plan this close to its bound counts as optimal."""

_POOL_SIZE: Final = 8
"""Plans with different options that a search keeps; the runners-up of the report come from them."""


class Termination(StrEnum):
    """Why a search ended; the values are those of :class:`planner.result.Status`."""

    OPTIMAL = "optimal"
    GAP = "gap"
    WORK_LIMIT = "work_limit"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    HEURISTIC = "heuristic"
    NO_PROOF = "no_proof"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """Where a search stands. ``incumbent`` is None until a plan that fits is found."""

    seconds: float
    incumbent: float | None
    bound: float | None
    gap_ratio: float | None
    evaluations: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """Plans found, best first with distinct options, and what was proven.

    ``bound`` holds for every plan of the search space, in the unit of the objective.
    """

    assignments: tuple[Assignment, ...]
    values: tuple[float, ...]
    bound: float | None
    termination: Termination
    progress: tuple[SearchProgress, ...]


ProgressCallback = Callable[[SearchProgress], None]
StopCallback = Callable[[], bool]


class Record:
    """Best plans, bound and history of one search; says when it has to end.

    The incumbent can be read at any time. ``stopped`` is polled by every loop of a strategy.
    """

    def __init__(
        self,
        evaluate: Evaluator,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> None:
        """Begin with nothing found and nothing proven."""
        self.evaluate = evaluate
        self.bound: float | None = None
        self._progress = progress
        self._should_stop = should_stop
        self._pool: dict[tuple[int, ...], tuple[float, Assignment]] = {}
        self._history: list[SearchProgress] = []
        self._interrupted = False

    @property
    def best(self) -> Assignment | None:
        """The incumbent."""
        found = min(self._pool.values(), key=lambda pair: pair[0], default=None)
        return None if found is None else found[1]

    @property
    def value(self) -> float:
        """Value of the incumbent, infinite without one."""
        return min((value for value, _ in self._pool.values()), default=np.inf)

    @property
    def gap_ratio(self) -> float | None:
        """(incumbent - bound) / incumbent, once there are both."""
        value = self.value
        if self.bound is None or not np.isfinite(value) or value <= 0:
            return None
        return max(0.0, (value - self.bound) / value)

    @property
    def proven(self) -> bool:
        """Whether the incumbent is as good as optimal."""
        gap = self.gap_ratio
        return gap is not None and gap <= OPTIMALITY_GAP

    @property
    def stopped(self) -> bool:
        """Whether the search has to end now: asked to, or out of budget."""
        return self.cut or self.evaluate.exhausted

    @property
    def cut(self) -> bool:
        """Whether something outside ends the search: the user, or the clock."""
        if not self._interrupted and self._should_stop is not None:
            self._interrupted = self._should_stop()
        return self._interrupted or self.evaluate.late

    def keep_if_good(self, assignment: Assignment, value: float, phase: str) -> bool:
        """Keep a plan if it is good enough; infinite values and broken rules are ignored.

        Returns:
            Whether it is the new incumbent.
        """
        if not np.isfinite(value) or not self.evaluate.space.keeps_rules(assignment):
            return False
        before = self.value
        known = self._pool.get(assignment.options)
        if known is None or value < known[0]:
            self._pool[assignment.options] = (value, assignment)
        if len(self._pool) > _POOL_SIZE:
            del self._pool[max(self._pool, key=lambda key: self._pool[key][0])]
        if value < before:
            self.report(phase)
            return True
        return False

    def consider(self, assignment: Assignment, phase: str) -> float:
        """Price a plan and offer it; returns its value."""
        value = self.evaluate.value(assignment)
        self.keep_if_good(assignment, value, phase)
        return value

    def keep_best_of(self, assignments: list[Assignment], values: FloatArray, phase: str) -> None:
        """Offer the best of many priced plans."""
        at = int(np.argmin(values))
        self.keep_if_good(assignments[at], float(values[at]), phase)

    def raise_bound(self, bound: float, phase: str) -> None:
        """Note a proven lower bound, if it is better than the last."""
        if self.bound is None or bound > self.bound:
            self.bound = bound
            self.report(phase)

    def report(self, phase: str) -> None:
        """Add a line to the history and tell the caller."""
        value = self.value
        line = SearchProgress(
            seconds=self.evaluate.seconds,
            incumbent=value if np.isfinite(value) else None,
            bound=self.bound,
            gap_ratio=self.gap_ratio,
            evaluations=self.evaluate.num_evaluations,
            phase=phase,
        )
        self._history.append(line)
        if self._progress is not None:
            self._progress(line)

    def outcome(self, *, proves: bool) -> SearchOutcome:
        """The result of the search as it stands.

        Args:
            proves: whether the strategy gives bounds at all.
        """
        ranked = sorted(self._pool.values(), key=lambda pair: (pair[0], pair[1].options))
        return SearchOutcome(
            assignments=tuple(a for _, a in ranked),
            values=tuple(v for v, _ in ranked),
            bound=self.bound,
            termination=self._termination(proves=proves),
            progress=tuple(self._history),
        )

    def _termination(self, *, proves: bool) -> Termination:
        if self.proven:
            return Termination.OPTIMAL
        if self._interrupted:
            return Termination.INTERRUPTED
        if self.evaluate.late:
            return Termination.TIME_LIMIT
        if self.evaluate.exhausted:
            return Termination.WORK_LIMIT
        return Termination.GAP if proves else Termination.HEURISTIC


class AbstractStrategy(ABC):
    """One way to search. A strategy keeps no state between searches."""

    __slots__ = ()

    @abstractmethod
    def search(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> SearchOutcome:
        """Look for the assignment of least value.

        The same seed gives the same outcome whenever the search ends by itself or by the number of
        evaluations in ``evaluate.budget``, and not by the clock.

        Args:
            space: options and places; every table has at least one option.
            evaluate: prices assignments and holds the budget.
            seed: of the one random generator used.
            progress: called with every improvement.
            should_stop: asked often; True ends the search with what it has.
        """
