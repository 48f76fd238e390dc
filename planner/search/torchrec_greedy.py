"""The plan that TorchRec's planner makes by itself: its walk over its own estimates."""

from __future__ import annotations

import contextlib
from typing import final

from planner.errors import InvalidInputError
from planner.options.torchrec_default import torchrec_default
from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.space.evaluation import Evaluator, SearchSpace


@final
class TorchrecGreedy(AbstractStrategy):
    """``EmbeddingShardingPlanner`` with its defaults; its plan is priced by this project's models.

    Reference: torchrec/distributed/planner (planners.py, proposers.py, partitioners.py), version
    1.8. Finds nothing where that plan does not fit by this project's memory ledger, or breaks a
    rule that TorchRec does not know.
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
        """TorchRec's plan, the same for every seed."""
        del seed
        record = Record(evaluate, progress, should_stop)
        found = torchrec_default(space.problem).plan
        if found is not None:
            with contextlib.suppress(InvalidInputError):  # an option that is not listed here
                record.consider(space.assignment(found), "torchrec_greedy")
        return record.outcome(proves=False)
