"""Whole tables by decreasing elements read, each on the rank that reads least so far."""

from __future__ import annotations

from typing import final

import numpy as np

from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.construct.greedy import list_greedy, lookup_cost
from planner.space.evaluation import Evaluator, SearchSpace


@final
class LookupGreedy(AbstractStrategy):
    """The lookup-greedy baseline of AutoShard, DreamShard and NeuroShard."""

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
        """One plan, the same for every seed."""
        del seed
        record = Record(evaluate, progress, should_stop)
        costs = np.array([lookup_cost(t) for t in space.problem.workload.tables])
        record.consider(list_greedy(space, costs), "lookup_greedy")
        return record.outcome(proves=False)
