"""The plan that TorchRec's default planner makes, by its own estimates."""

import contextlib
from collections.abc import Iterator
from typing import final

from planner.errors import InvalidInputError, StoppedError
from planner.options.torchrec_default import torchrec_default
from planner.search.base import AbstractProposals, Record
from planner.space.evaluation import Assignment, SearchSpace


@final
class TorchrecGreedy(AbstractProposals):
    """The plan of ``EmbeddingShardingPlanner`` with its defaults, priced by this project's models.

    It finds no plan if TorchRec's plan does not fit by this project's account of memory, or breaks
    a rule that TorchRec does not know.

    Reference: torchrec/distributed/planner (planners.py, proposers.py, partitioners.py), version
    1.8.
    """

    def proposals(self, space: SearchSpace, record: Record, seed: int) -> Iterator[Assignment]:
        """Make TorchRec's plan; the seed has no effect."""
        del seed
        # Late, or its option of a table is not listed.
        with contextlib.suppress(StoppedError, InvalidInputError):
            found = torchrec_default(space.problem, lambda: record.cut).plan
            if found is not None:
                yield space.assignment(found)
