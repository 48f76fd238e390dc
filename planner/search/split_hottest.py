"""Places whole tables by decreasing cost, then splits the table of the hottest shard repeatedly."""

from collections.abc import Iterator
from typing import final

from planner.search.base import AbstractProposals, Record
from planner.search.common.linear import LinearModel
from planner.search.construct.greedy import split_walk
from planner.space.evaluation import Assignment, SearchSpace


@final
class SplitHottest(AbstractProposals):
    """What HugeCTR's planner does (samples/dlrm/sharding), with this project's costs."""

    def proposals(self, space: SearchSpace, record: Record, seed: int) -> Iterator[Assignment]:
        """The plans of the walk; the seed has no effect."""
        del seed
        yield from split_walk(LinearModel(space, record.evaluate.objective))
