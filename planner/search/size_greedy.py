"""Places whole tables: the largest first, each on the rank with the fewest bytes so far."""

from typing import final

from planner.search.construct.greedy import AbstractListGreedy, size_cost


@final
class SizeGreedy(AbstractListGreedy):
    """The size-greedy baseline of AutoShard, DreamShard and NeuroShard."""

    cost = staticmethod(size_cost)
