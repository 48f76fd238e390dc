"""The interface of a search strategy, and the record that every search keeps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels import units
from planner.space.evaluation import Assignment, Evaluator, SearchSpace
from planner.support.status import Status

OPTIMALITY_GAP: Final = 1e-4
"""A plan counts as optimal if (its value - the bound) / its value is at most this. A smaller number
would make searches longer for plans that no user could tell apart."""

_POOL_SIZE: Final = 8
"""Plans with different options that a record keeps, the best ones. Reports show the first few of
them as runners-up, so that a larger number would only cost memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProgress:
    """Where a search stands at one moment.

    Attributes:
        seconds: since the search began, by the clock.
        incumbent: the objective of the best plan so far; None until a plan is found that fits.
        bound: the proven lower bound of the objective; None if nothing is proven yet.
        gap_ratio: (incumbent - bound) / incumbent; None until there are both.
        evaluations: number of plans priced so far.
        phase: the part of the search that has just improved plan or bound.
    """

    seconds: float
    incumbent: float | None = None
    bound: float | None = None
    gap_ratio: float | None = None
    evaluations: int = 0
    phase: str

    def line(self, *, in_seconds: bool = True) -> str:
        """One line: phase, incumbent, bound, gap, plans priced, seconds.

        Args:
            in_seconds: whether the objective is a time.
        """

        def shown(value: float | None) -> str:
            if value is None or value == math.inf:
                return "-"
            return units.format_time(value) if in_seconds else f"{value:.4g}"

        parts = [self.phase, f"best {shown(self.incumbent)}", f"bound {shown(self.bound)}"]
        if self.gap_ratio is not None:
            parts.append(f"gap {100 * self.gap_ratio:.2f} %")
        return "   ".join([*parts, f"{self.evaluations:,} plans", f"{self.seconds:.1f} s"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """What a search has found and proven.

    Attributes:
        assignments: the plans that were kept, the best one first; no two have the same options.
        values: the objective of each of them.
        bound: no plan of the search space has a smaller objective; None if nothing was proven.
        termination: why the search ended.
        progress: one entry for each improvement of plan or bound, the oldest first.
    """

    assignments: tuple[Assignment, ...]
    values: tuple[float, ...]
    bound: float | None
    termination: Status
    progress: tuple[SearchProgress, ...]


StopCallback = Callable[[], bool]


class Record:
    """The best plans, the bound and the history of one search.

    It also says when the search has to end: every loop of a strategy asks ``stopped``.

    Args:
        evaluate: prices plans and holds the budget.
        progress: is called with every improvement of plan or bound.
        should_stop: is asked often; once it says True, the search has to end.

    Attributes:
        evaluate: the same.
        bound: the best lower bound proven so far; None if nothing is proven yet.
    """

    def __init__(
        self,
        evaluate: Evaluator,
        progress: Callable[[SearchProgress], None] | None = None,
        should_stop: StopCallback | None = None,
    ) -> None:
        """Begin without a plan and without a bound."""
        self.evaluate = evaluate
        self.bound: float | None = None
        self._progress = progress
        self._should_stop = should_stop
        self._pool: dict[tuple[int, ...], tuple[float, Assignment]] = {}
        self._history: list[SearchProgress] = []
        self._interrupted = False

    @property
    def best(self) -> Assignment | None:
        """The incumbent; None if no plan that fits has been found."""
        found = min(self._pool.values(), key=lambda pair: pair[0], default=None)
        return None if found is None else found[1]

    @property
    def value(self) -> float:
        """The objective of the incumbent; infinite if there is none."""
        return min((value for value, _ in self._pool.values()), default=np.inf)

    @property
    def gap_ratio(self) -> float | None:
        """(incumbent - bound) / incumbent; None until there are both."""
        value = self.value
        if self.bound is None or not np.isfinite(value) or value <= 0:
            return None
        return max(0.0, (value - self.bound) / value)

    @property
    def proven(self) -> bool:
        """Whether the gap is so small that the incumbent counts as optimal."""
        gap = self.gap_ratio
        return gap is not None and gap <= OPTIMALITY_GAP

    @property
    def stopped(self) -> bool:
        """Whether the search has to end now: it was asked to, or its budget is spent."""
        return self.cut or self.evaluate.exhausted

    @property
    def cut(self) -> bool:
        """Whether something outside ends the search: the user, or the clock."""
        if not self._interrupted and self._should_stop is not None:
            self._interrupted = self._should_stop()
        return self._interrupted or self.evaluate.late

    def keep_if_good(self, assignment: Assignment, value: float, phase: str) -> None:
        """Keep a plan if it is among the best; one that does not fit or breaks a rule is ignored.

        Args:
            assignment: the plan.
            value: its objective; infinite if it does not fit.
            phase: the part of the search that found it, for the history.
        """
        if not np.isfinite(value) or not self.evaluate.space.keeps_rules(assignment):
            return
        before = self.value
        known = self._pool.get(assignment.options)
        if known is None or value < known[0]:
            self._pool[assignment.options] = (value, assignment)
        if len(self._pool) > _POOL_SIZE:
            del self._pool[max(self._pool, key=lambda key: self._pool[key][0])]
        if value < before:
            self.report(phase)

    def consider(self, assignment: Assignment, phase: str) -> float:
        """Price a plan, keep it if it is among the best, and return its objective."""
        value = self.evaluate.value(assignment)
        self.keep_if_good(assignment, value, phase)
        return value

    def raise_bound(self, bound: float, phase: str) -> None:
        """Take a proven lower bound of the objective, if it is higher than the last one."""
        if bound > (-np.inf if self.bound is None else self.bound):
            self.bound = bound
            self.report(phase)

    def report(self, phase: str) -> None:
        """Add an entry to the history, and tell it to the caller of the search."""
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
        """The outcome of the search as it stands now.

        Args:
            proves: whether the strategy computes bounds at all.
        """
        ranked = sorted(self._pool.values(), key=lambda pair: (pair[0], pair[1].options))
        return SearchOutcome(
            assignments=tuple(a for _, a in ranked),
            values=tuple(v for v, _ in ranked),
            bound=self.bound,
            termination=self._termination(proves=proves),
            progress=tuple(self._history),
        )

    def _termination(self, *, proves: bool) -> Status:
        """Why the search ends, if it ended now."""
        if self.proven:
            return Status.OPTIMAL
        if self._interrupted:
            return Status.INTERRUPTED
        if self.evaluate.late:
            return Status.TIME_LIMIT
        if self.evaluate.exhausted:
            return Status.WORK_LIMIT
        return Status.GAP if proves else Status.HEURISTIC


class AbstractStrategy(ABC):
    """One way to search for plans. A strategy keeps no state between searches."""

    @abstractmethod
    def search(self, record: Record, *, seed: int) -> SearchOutcome:
        """Look for the assignment with the smallest objective.

        The same seed gives the same outcome if the search ends by itself or by the number of
        evaluations in the budget of the record. A search that the clock ends may give another one.

        Args:
            record: keeps the plans and bounds that are found. Its evaluator has the space (the
                options of every table, at least one for each, and the places they may have), prices
                assignments and holds the budget.
            seed: of the one random generator of the search.

        Returns:
            The outcome of the record.
        """


class AbstractProposals(AbstractStrategy):
    """A strategy that proposes plans one after the other; the best that fits is kept."""

    @abstractmethod
    def proposals(self, space: SearchSpace, record: Record, seed: int) -> Iterator[Assignment]:
        """The plans, in the order in which they are priced.

        Args:
            space: the options of every table, and the places they may have.
            record: has the objective, and says when the search has to end.
            seed: of the random generator.
        """

    def search(self, record: Record, *, seed: int) -> SearchOutcome:
        """Price the proposals until there are no more or the budget ends; nothing is proven."""
        for proposal in self.proposals(record.evaluate.space, record, seed):
            record.consider(proposal, type(self).__module__.rpartition(".")[2])
            if record.stopped:
                break
        return record.outcome(proves=False)
