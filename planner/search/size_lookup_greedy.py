"""Places whole tables by their cost: elements read times the logarithm of the number of rows."""

from typing import final

from planner.search.construct.greedy import AbstractListGreedy, size_lookup_cost


@final
class SizeLookupGreedy(AbstractListGreedy):
    """The size-lookup-greedy baseline of AutoShard, DreamShard and NeuroShard."""

    cost = staticmethod(size_lookup_cost)
