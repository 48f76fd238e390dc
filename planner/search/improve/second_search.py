"""The same search with other random numbers in a process of its own, for plans alone.

It proves nothing and hears nothing of the first one; it has as much work as the first one has left,
and its plan is taken when both have ended, so that neither depends on how fast the other is. Where
no process can be started it runs afterwards, with the same outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from planner.search.base import AbstractStrategy
from planner.search.common.other_process import OtherProcess, serve_standard_streams
from planner.search.common.schedule import USUAL, Schedule
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective

_MARGIN_S: Final = 0.3
"""It ends this long before the first search has to, so that its plan arrives in time."""
_OTHER_SEED: Final = 7919
"""Added to the seed, so that the second search draws other numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A search; ``ends_at_s`` is a time of day, so that starting the process counts."""

    strategy: AbstractStrategy
    space: SearchSpace
    objective: AbstractObjective
    seed: int
    max_evaluations: int | None
    ends_at_s: float | None


class SecondSearch:
    """Begins at once; ask :meth:`worth_it` first."""

    def __init__(self, strategy: AbstractStrategy, evaluate: Evaluator, seed: int) -> None:
        """Send ``strategy`` and all it needs to another process."""
        limit_s, most = evaluate.budget.time_limit_s, evaluate.budget.max_evaluations
        left_s = None if limit_s is None else limit_s - evaluate.seconds
        self._request = Request(
            strategy=strategy,
            space=evaluate.space,
            objective=evaluate.objective,
            seed=seed + _OTHER_SEED,
            max_evaluations=None if most is None else most - evaluate.work,
            ends_at_s=None if left_s is None else time.time() + left_s - _MARGIN_S,
        )
        self._other = OtherProcess(__name__)
        self._is_beside = self._other.send(self._request)

    @staticmethod
    def worth_it(evaluate: Evaluator, schedule: Schedule = USUAL) -> bool:
        """Whether there is work and something to do for it; the same on every machine."""
        space = evaluate.space
        return (
            evaluate.meter.left_s >= schedule.second_work_s
            and space.num_tables * space.world_size >= schedule.second_size
            and space.pool.nbytes <= schedule.second_bytes
            and not space.rules
        )

    def plan(self, stopped: Callable[[], bool]) -> Assignment | None:
        """What it has found, once it has ended; None if it has not before ``stopped`` says so."""
        if not self._is_beside:
            return next(answer(self._request, stopped), None)
        self._other.wait(stopped)
        return next(iter(self._other.replies), None)

    def close(self) -> None:
        """End the process."""
        self._other.close()


def answer(request: Request, stopped: Callable[[], bool] = lambda: False) -> Iterator[Assignment]:
    """The best plan of the search, if there is one."""
    left_s = None if request.ends_at_s is None else request.ends_at_s - time.time()
    budget = Budget(time_limit_s=left_s, max_evaluations=request.max_evaluations)
    evaluate = Evaluator(request.space, request.objective, budget)
    found = request.strategy.search(request.space, evaluate, seed=request.seed, should_stop=stopped)
    yield from found.assignments[:1]


if __name__ == "__main__":
    serve_standard_streams(answer)
