"""The same search with other random numbers in a process of its own, for plans alone.

It proves nothing and hears nothing of the first one; its plan is taken when both have ended, so
that neither depends on how fast the other is.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from planner.evaluation import AbstractObjective, Assignment, Budget, Evaluator, SearchSpace
from planner.search.base import AbstractStrategy
from planner.search.parts.other_process import OtherProcess, serve_standard_streams

_FEWEST: Final = 200
"""Tables times ranks below which starting a process takes longer than it is worth."""
_MOST_BYTES: Final = 3e8
"""Work rows that are not copied to another process."""
_SHORTEST_S: Final = 3.0
_MARGIN_S: Final = 0.3
"""It ends this long before the first search has to, so that its plan arrives in time."""
_OTHER_SEED: Final = 7919


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A search; ``ends_at_s`` is a time of day, so that starting the process counts."""

    strategy: AbstractStrategy
    space: SearchSpace
    objective: AbstractObjective
    seed: int
    ends_at_s: float | None


class SecondSearch:
    """Begins at once; ask :meth:`worth_it` first."""

    def __init__(self, strategy: AbstractStrategy, evaluate: Evaluator, seed: int) -> None:
        """Send ``strategy`` and all it needs to another process."""
        left_s = _left_s(evaluate)
        self._other = OtherProcess(__name__)
        self._other.send(
            Request(
                strategy=strategy,
                space=evaluate.space,
                objective=evaluate.objective,
                seed=seed + _OTHER_SEED,
                ends_at_s=None if left_s is None else time.time() + left_s - _MARGIN_S,
            )
        )

    @staticmethod
    def worth_it(evaluate: Evaluator) -> bool:
        """Whether there is a core, the time and something to do for it.

        A process that is one of several workers leaves the other cores to them.
        """
        space, left_s = evaluate.space, _left_s(evaluate)
        return (
            evaluate.budget.max_evaluations is None
            and (left_s is None or left_s >= _SHORTEST_S)
            and space.num_tables * space.world_size >= _FEWEST
            and space.pool.nbytes <= _MOST_BYTES
            and not space.rules
            and _cores() > 1
            and multiprocessing.parent_process() is None
        )

    def plan(self, stopped: Callable[[], bool]) -> Assignment | None:
        """What it has found, once it has ended; None if it has not before ``stopped`` says so."""
        self._other.wait(stopped)
        return next(iter(self._other.replies), None)

    def close(self) -> None:
        """End the process."""
        self._other.close()


def _left_s(evaluate: Evaluator) -> float | None:
    limit_s = evaluate.budget.time_limit_s
    return None if limit_s is None else limit_s - evaluate.seconds


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def answer(request: Request) -> Iterator[Assignment]:
    """The best plan of the search, if there is one."""
    left_s = None if request.ends_at_s is None else request.ends_at_s - time.time()
    evaluate = Evaluator(request.space, request.objective, Budget(time_limit_s=left_s))
    found = request.strategy.search(request.space, evaluate, seed=request.seed)
    yield from found.assignments[:1]


if __name__ == "__main__":
    serve_standard_streams(answer)
