"""Places whole tables by decreasing cost, then splits the table of the hottest shard repeatedly."""

from __future__ import annotations

from typing import final

from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.common.linear import LinearModel
from planner.search.construct.greedy import split_walk
from planner.space.evaluation import Evaluator, SearchSpace


@final
class SplitHottest(AbstractStrategy):
    """What HugeCTR's planner does (samples/dlrm/sharding), with this project's costs."""

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
        """Find the best plan of the walk; the seed has no effect."""
        del seed
        record = Record(evaluate, progress, should_stop)
        for proposal in split_walk(LinearModel(space, evaluate.objective)):
            record.consider(proposal, "split_hottest")
            if record.stopped:
                break
        return record.outcome(proves=False)
