"""Random options on random places: the baseline that any planner should beat."""

from collections.abc import Iterator
from typing import Final, final

import numpy as np

from planner.search.base import AbstractProposals, Record
from planner.space.evaluation import Assignment, Choice, SearchSpace

_SAMPLES: Final = 1000
"""Plans that are drawn, unless the budget ends first. With more of them the baseline takes longer
and is a little better."""


@final
class Random(AbstractProposals):
    """The best of a thousand plans that are drawn at random, without a look at memory."""

    def proposals(self, space: SearchSpace, record: Record, seed: int) -> Iterator[Assignment]:
        """Draw plans until there are enough or the budget ends."""
        del record
        rng = np.random.default_rng(seed)
        for _ in range(_SAMPLES):
            yield random_assignment(space, rng)


def random_assignment(space: SearchSpace, rng: "np.random.Generator") -> Assignment:
    """One plan: for each table one of its options, and then places for its pieces.

    All options of a table are equally likely, and so are its allowed ranks (or hosts). Pieces that
    have to share a host are drawn within one, and pieces of different widths on different ranks if
    there are enough.
    """
    choices: list[Choice] = []
    for t, table in enumerate(space.tables):
        index = int(rng.integers(len(table.options)))
        option = table.options[index]
        allowed = np.flatnonzero(space.allowed(t, option.spread))
        if option.keeps_pieces_on_host:
            near = allowed // space.local_world_size
            allowed = allowed[near == rng.choice(near)]
        drawn = rng.choice(allowed, option.num_pieces)
        if option.keeps_pieces_apart and len(allowed) >= len(drawn):
            drawn = rng.permutation(allowed)[: option.num_pieces]
        choices.append((index, tuple(int(p) for p in drawn)))
    return Assignment.of(choices)
