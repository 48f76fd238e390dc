"""The plan that TorchRec's default planner makes, by its own estimates."""

from __future__ import annotations

import contextlib
from typing import final

from planner.errors import InvalidInputError, StoppedError
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
    """The plan of ``EmbeddingShardingPlanner`` with its defaults, priced by this project's models.

    It finds no plan if TorchRec's plan does not fit by this project's account of memory, or breaks
    a rule that TorchRec does not know.

    Reference: torchrec/distributed/planner (planners.py, proposers.py, partitioners.py), version
    1.8.
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
        """Make TorchRec's plan; the seed has no effect."""
        del seed
        record = Record(evaluate, progress, should_stop)
        # Late, or its option of a table is not listed.
        with contextlib.suppress(StoppedError, InvalidInputError):
            found = torchrec_default(space.problem, lambda: record.cut).plan
            if found is not None:
                record.consider(space.assignment(found), "torchrec_greedy")
        return record.outcome(proves=False)
