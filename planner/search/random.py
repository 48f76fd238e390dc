"""Random options on random places, many times: what no thought at all achieves."""

from __future__ import annotations

from typing import Final, final

import numpy as np

from costmodels.sharding import Spread
from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.space.evaluation import Assignment, Evaluator, SearchSpace

_SAMPLES: Final = 1000
"""Plans drawn, unless the budget ends first."""


@final
class Random(AbstractStrategy):
    """The best of a thousand plans drawn at random, memory unseen."""

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
        """Each table: an option, then places, all alike likely."""
        rng = np.random.default_rng(seed)
        record = Record(evaluate, progress, should_stop)
        for _ in range(_SAMPLES):
            record.consider(random_assignment(space, rng), "random")
            if record.stopped:
                break
        return record.outcome(proves=False)


def random_assignment(space: SearchSpace, rng: np.random.Generator) -> Assignment:
    """One draw."""
    options: list[int] = []
    places: list[tuple[int, ...]] = []
    for t, table in enumerate(space.tables):
        index = int(rng.integers(len(table.options)))
        option = table.options[index]
        hosts = option.spread is Spread.HOSTS
        allowed = np.flatnonzero(space.may_use_host[t] if hosts else space.may_use_rank[t])
        if option.keeps_pieces_on_host:
            near = allowed // space.local_world_size
            allowed = allowed[near == rng.choice(near)]
        options.append(index)
        drawn = rng.choice(allowed, option.num_pieces)
        unequal = option.keeps_pieces_apart
        if unequal and len(allowed) >= len(drawn):
            drawn = rng.permutation(allowed)[: option.num_pieces]
        places.append(tuple(int(p) for p in drawn))
    return Assignment(options=tuple(options), places=tuple(places))
