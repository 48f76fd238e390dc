"""What a rank-free program says, and the sets of sharding types that each get one."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import ShardingType
from planner.search.common.basis import Basis
from planner.search.common.schedule import USUAL, Schedule
from planner.space.evaluation import SearchSpace

TypeSet = frozenset[ShardingType]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """A solution of the rank-free problem for one set of sharding types.

    Attributes:
        types: the types that plans use for which the bound holds, all but optional ones; None for
            all plans.
        bound: proven lower bound on the objective; infinite if nothing fits.
        shares: ``[n]`` value of y for each flat option; None if there is no solution.
        phases: ``[K]`` maxima over ranks in the solution, zero where no plan has any.
        reduced_costs: ``[n]`` how much the bound rises at least if a plan uses the option.
        basis: where a similar program can begin.
    """

    types: TypeSet | None
    bound: float
    shares: FloatArray | None = None
    phases: FloatArray | None = None
    reduced_costs: FloatArray | None = None
    basis: Basis | None = None

    def choice(self, space: SearchSpace) -> IntArray:
        """Option with the largest share for each table, as an index within the table."""
        if self.shares is None:
            return np.zeros(space.num_tables, dtype=np.int64)
        starts = space.first
        return np.array([int(np.argmax(self.shares[a:b])) for a, b in itertools.pairwise(starts)])


def usual_optional_types(space: SearchSpace, schedule: Schedule = USUAL) -> TypeSet:
    """Sharding types that sets leave open; many tables may be replicated in every set."""
    many = space.num_tables > schedule.replicated_tables
    replicated = frozenset({ShardingType.DATA_PARALLEL})
    return optional_types(space, replicated if many else frozenset(), schedule)


def optional_types(
    space: SearchSpace, given: TypeSet = frozenset(), schedule: Schedule = USUAL
) -> TypeSet:
    """Sharding types that sets leave open, so that there are few enough sets.

    Beside those given, the types with the fewest options are left open, one after the other.
    """
    counts = Counter(o.sharding_type for o in space.options)
    is_small = len(space.options) <= schedule.few_options
    most = schedule.type_sets_of_few if is_small else schedule.type_sets
    optional = set(given)
    for kind in sorted(counts, key=lambda t: (counts[t], t)):
        if len(type_sets(space, frozenset(optional))) <= most:
            break
        optional.add(kind)
    return frozenset(optional)


def type_sets(space: SearchSpace, optional: TypeSet = frozenset()) -> list[TypeSet]:
    """Sets of sharding types such that every plan belongs to one, the largest first.

    Args:
        space: the options.
        optional: types that are in every set, whether plans of it use them or not.
    """
    per_table = [
        {o.sharding_type for o in space.options[a:b]} for a, b in itertools.pairwise(space.first)
    ]
    kinds = {frozenset(types) for types in per_table}
    every = frozenset().union(*kinds)
    certain = sorted(every - optional)
    sets = [
        frozenset(chosen) | (every & optional)
        for size in range(len(certain), -1, -1)
        for chosen in itertools.combinations(certain, size)
    ]
    return [s for s in sets if all(types & s for types in kinds)]


def uses(types: TypeSet | None, space: SearchSpace) -> BoolArray:
    """``[n]`` options whose sharding type is in the set."""
    return np.array([types is None or o.sharding_type in types for o in space.options])
