"""Places whole tables: those that read most elements first, each on the rank that reads least."""

from typing import final

from planner.search.construct.greedy import AbstractListGreedy, lookup_cost


@final
class LookupGreedy(AbstractListGreedy):
    """The lookup-greedy baseline of AutoShard, DreamShard and NeuroShard."""

    cost = staticmethod(lookup_cost)
