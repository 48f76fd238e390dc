"""The solution of a rank-free program, and the sets of sharding types that each get a program."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingType
from planner.search.common.lp import ProgramBasis
from planner.search.common.schedule import USUAL
from planner.space.evaluation import SearchSpace

TypeSet = frozenset[ShardingType]
"""Sharding types that plans may use together. Plans that use a type have collectives of it, so that
another set has another longest path, and gets a bound of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """A solution of the rank-free problem for one set of sharding types.

    Attributes:
        types: the set. The bound holds for plans that use all these types, the optional ones or
            not, and no others; None if it holds for all plans.
        bound: none of these plans has a smaller objective; infinite if none fits.
        shares: ``[n]`` share of each option; None if there is no solution.
        phases: ``[K]`` the largest value of each phase over ranks; 0 for phases that are not in
            use; None if there is no solution.
        reduced_costs: ``[n]`` by how much the bound rises at least if a plan has the option; None
            if nothing is known.
        basis: where the solver can begin a similar program; None if there is none.
    """

    types: TypeSet | None
    bound: float
    shares: FloatArray | None = None
    phases: FloatArray | None = None
    reduced_costs: FloatArray | None = None
    basis: ProgramBasis | None = None

    def choice(self, space: SearchSpace) -> IntArray:
        """``[T]`` index of the option with the largest share of each table."""
        if self.shares is None:
            return np.zeros(space.num_tables, dtype=np.int64)
        starts = space.first
        return np.array([int(np.argmax(self.shares[a:b])) for a, b in itertools.pairwise(starts)])


def usual_optional_types(space: SearchSpace) -> TypeSet:
    """The sharding types that every set leaves open in a search.

    If there are many tables, replication is always one of them.
    """
    many = space.num_tables > USUAL.few_tables
    replicated = frozenset({ShardingType.DATA_PARALLEL})
    return optional_types(space, replicated if many else frozenset())


def optional_types(space: SearchSpace, given: TypeSet = frozenset()) -> TypeSet:
    """The sharding types that every set leaves open, so that there are few enough sets.

    These are the given ones, and then the types with the fewest options, as many as are needed.
    """
    counts = Counter(o.sharding_type for o in space.options)
    optional = set(given)
    for kind in sorted(counts, key=lambda t: (counts[t], t)):
        if len(type_sets(space, frozenset(optional))) <= USUAL.type_sets:
            break
        optional.add(kind)
    return frozenset(optional)


def type_sets(space: SearchSpace, optional: TypeSet = frozenset()) -> list[TypeSet]:
    """The sets of sharding types, the largest first; every plan belongs to exactly one of them.

    Sets in which some table has no option are left out.

    Args:
        space: the options.
        optional: types that are in every set. A plan of the set may use them or not.
    """
    kinds = space.type_choices
    every = frozenset().union(*kinds)
    certain = sorted(every - optional)
    sets = [
        frozenset(chosen) | (every & optional)
        for size in range(len(certain), -1, -1)
        for chosen in itertools.combinations(certain, size)
    ]
    return [s for s in sets if all(types & s for types in kinds)]


def uses(types: TypeSet | None, space: SearchSpace) -> BoolArray:
    """``[n]`` True for options whose sharding type is in the set; for all if it is None."""
    return np.array([types is None or o.sharding_type in types for o in space.options])
