"""Bounds by linear programs alone, without a search for plans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.bounds.relaxation import type_sets, usual_optional_types
from planner.search.common.linear import LinearModel
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractObjective

_ROUNDS: Final = 3
"""Most programs for each set of sharding types. The second one has the cut of the longest path;
more than three raise the bound by about 1e-5 of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What is proven for every plan of a problem.

    Attributes:
        value: no plan has a smaller objective; infinite if no plan fits.
        free_bytes: device bytes that the fullest rank can have left at most; negative if no plan
            fits.
    """

    value: float
    free_bytes: float


def linear_floor(space: SearchSpace, objective: AbstractObjective) -> Floor:
    """The least bound of the rank-free programs over all sets of sharding types.

    The fullest rank has no more memory left than a rank has on average, if every table has the
    option with the fewest device bytes.
    """
    model = LinearModel(space, objective)
    bounds = RankFreeBound(model, optional=usual_optional_types(space))
    value = bounds.relax(None).bound
    if objective.sees_types and math.isfinite(value):
        sets = type_sets(space, bounds.optional)
        value = max(value, min(bounds.relax(types, rounds=_ROUNDS).bound for types in sets))
    least = np.minimum.reduceat(model.mean[:, model.num_tangents], space.first[:-1]).sum()
    unlisted = RankFreeProgram(model).unlisted_bytes / space.world_size
    limits = space.pipeline.device_limits
    return Floor(value=float(value), free_bytes=float(limits.mean() + unlisted - least))
