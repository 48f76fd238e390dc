"""TorchRec's default planner in outline: a greedy walk, placement by decreasing storage."""

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
from planner.search.construct.greedy import torchrec_walk
from planner.space.evaluation import Evaluator, SearchSpace


@final
class TorchrecGreedy(AbstractStrategy):
    """GreedyProposer and GreedyPerfPartitioner over this project's costs, not TorchRec's own.

    Reference: torchrec/distributed/planner (proposers.py, partitioners.py), version 1.8.
    """

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
        """The best plan of the walk, the same for every seed."""
        del seed
        record = Record(evaluate, progress, should_stop)
        for proposal in torchrec_walk(LinearModel(space, evaluate.objective)):
            record.consider(proposal, "torchrec_greedy")
            if record.stopped:
                break
        return record.outcome(proves=False)
