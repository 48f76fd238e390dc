"""What a rank-free program says, and the sets of sharding types that each get one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.sharding import ShardingType
from planner.evaluation import BoolArray, FloatArray, IntArray, SearchSpace

_MOST_TYPES: Final = 4
"""With more sharding types than this, sets of them are too many; the general cut has to do."""

TypeSet = frozenset[ShardingType]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """A solution of the rank-free problem for one set of sharding types.

    Attributes:
        types: exactly the types that plans use for which the bound holds; None for all plans.
        bound: proven lower bound on the objective; infinite if nothing fits.
        shares: ``[n]`` value of y for each flat option; None if there is no solution.
        phases: ``[K]`` maxima over ranks in the solution, zero where no plan has any.
        reduced_costs: ``[n]`` how much the bound rises at least if a plan uses the option.
    """

    types: TypeSet | None
    bound: float
    shares: FloatArray | None = None
    phases: FloatArray | None = None
    reduced_costs: FloatArray | None = None

    def choice(self, space: SearchSpace) -> IntArray:
        """Option with the largest share for each table, as an index within the table."""
        if self.shares is None:
            return np.zeros(space.num_tables, dtype=np.int64)
        starts = space.first
        return np.array([int(np.argmax(self.shares[a:b])) for a, b in itertools.pairwise(starts)])


def type_sets(space: SearchSpace, *, merged: bool = False) -> list[TypeSet | None]:
    """Sets of sharding types that some plan uses, the largest first; ``[None]`` if too many.

    Args:
        space: the options.
        merged: as for :class:`RankFreeBound`.
    """
    replicated = ShardingType.DATA_PARALLEL
    per_table = [
        {o.sharding_type for o in space.options[a:b]}
        for a, b in zip(space.first[:-1], space.first[1:], strict=True)
    ]
    every = sorted(set().union(*per_table))
    if len(every) > _MOST_TYPES:
        return [None]
    sets = [
        frozenset(chosen)
        for size in range(len(every), 0, -1)
        for chosen in itertools.combinations(every, size)
        if not merged or replicated in chosen or replicated not in every
    ]
    return [s for s in sets if all(types & s for types in per_table)]


def uses(types: TypeSet | None, space: SearchSpace) -> BoolArray:
    """``[n]`` options whose sharding type is in the set."""
    return np.array([types is None or o.sharding_type in types for o in space.options])
