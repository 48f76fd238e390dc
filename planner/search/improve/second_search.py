"""A second search with other random numbers, in another process, which looks for plans alone.

It proves nothing. It may do as much work as the first search has left when it begins. The two do
not talk to each other: the plan of the second is taken when both have ended, so that no outcome
depends on how fast the other is. If no process can be started, or a cost model is a class of a
function or of the caller's main module, the second search runs after the first one, with the same
outcome.

It is a process and not a thread, because a search holds the interpreter most of the time. The
process does not import the main module of the caller, so that it works from scripts and from
notebooks. It ends with this process, also if this one is killed
(:mod:`planner.support.processes`).
"""

import contextlib
import math
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pickle import PicklingError
from typing import Final

from costmodels.errors import CostModelError
from planner.search.base import AbstractStrategy, Record
from planner.search.common.schedule import USUAL
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.space.objective import AbstractObjective
from planner.support.processes import ProcessDiedError, WorkerPool

_MARGIN_S: Final = 0.3
"""Seconds before the time limit of the first search at which the second ends, so that its plan
arrives in time. It is lost for the search."""
_OTHER_SEED: Final = 7919
"""What is added to the seed, so that the second search draws other random numbers; any number would
do."""


class SecondSearch:
    """A search in another process, which begins at once; ask :meth:`worth_it` first.

    Args:
        strategy: how to search.
        evaluate: of the first search; its budget says what is left.
        seed: of the first search.
    """

    def __init__(self, strategy: AbstractStrategy, evaluate: Evaluator, seed: int) -> None:
        """Send all that the search needs to another process."""
        most, ends_at_s = evaluate.budget.max_evaluations, time.time() + evaluate.left_s - _MARGIN_S
        work = None if most is None else most - evaluate.work
        asked = evaluate.space, evaluate.objective, seed + _OTHER_SEED, work
        self._answer = partial(answer, strategy, *asked)
        self._ends_at_s = ends_at_s if math.isfinite(ends_at_s) else None
        self._pool = WorkerPool(1, quiet=True)
        self._has_begun = False
        # Where no process can be started, or it cannot be told of a class inside a function.
        unsent = (PicklingError, AttributeError, TypeError)
        with contextlib.suppress(OSError, *unsent):
            self._pool.begin(self._answer, self._ends_at_s)
            self._has_begun = True

    @staticmethod
    def worth_it(evaluate: Evaluator) -> bool:
        """Whether a second search is worth its process; the answer is the same on every machine.

        It is if enough work is left, the problem is large enough but not too large to be copied,
        and no rules couple tables.
        """
        space = evaluate.space
        return (
            evaluate.meter.left_s >= USUAL.further_s
            and space.num_tables * space.world_size >= USUAL.second_size
            and space.pool.size <= USUAL.most_entries
            and not space.rules
        )

    def plan(self, stopped: Callable[[], bool]) -> Assignment | None:
        """Wait until the search has ended, and return its best plan.

        Args:
            stopped: is asked often; True ends the search.

        Returns:
            None if it has found no plan, or was ended before.

        Raises:
            CostModelError: a cost model has given a value that cannot be, as in this process.
        """
        if not self._has_begun:
            return self._answer(self._ends_at_s, stopped)
        done = next(self._pool.run(self._answer, [], should_stop=stopped), None)
        error = None if done is None else done[1].exception()
        # A class of the caller's main module is not known there.
        if isinstance(error, AttributeError | ImportError) and "__main__" in str(error):
            return self._answer(self._ends_at_s, stopped)
        if isinstance(error, CostModelError):
            raise error
        if error is not None and not isinstance(error, ProcessDiedError):
            text = "".join(traceback.format_exception_only(error))
            told = f"a process beside the search failed, please report it:\n{text}"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        return None if done is None or error is not None else done[1].result()

    def close(self) -> None:
        """End the process, even while it searches."""
        self._pool.close()


def answer(
    strategy: AbstractStrategy,
    space: SearchSpace,
    objective: AbstractObjective,
    seed: int,
    max_evaluations: int | None,
    ends_at_s: float | None,
    stopped: Callable[[], bool] = lambda: False,
) -> Assignment | None:
    """Search; returns the best plan, None if there is none.

    Args:
        strategy: how to search.
        space: where to search.
        objective: what to minimise.
        seed: of the random numbers.
        max_evaluations: budget of work, in priced plans; None for no limit.
        ends_at_s: when the search has to end, in seconds since 1970, so that the time to start the
            process counts; None for no limit.
        stopped: is asked often; True ends the search with what it has.
    """
    left_s = None if ends_at_s is None else ends_at_s - time.time()
    budget = Budget(time_limit_s=left_s, max_evaluations=max_evaluations)
    record = Record(Evaluator(space, objective, budget), should_stop=stopped)
    return next(iter(strategy.search(record, seed=seed).assignments), None)
