"""Bounds by linear programs alone, without a search for plans or before a walk over all plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.bounds.relaxation import type_sets, usual_optional_types
from planner.search.common.linear import LinearModel
from planner.search.construct.walk import price_all
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
    value = _linear_bound(model)
    least = np.minimum.reduceat(model.mean[:, model.num_tangents], space.first[:-1]).sum()
    unlisted = RankFreeProgram(model).unlisted_bytes / space.world_size
    limits = space.pipeline.device_limits
    return Floor(value=float(value), free_bytes=float(limits.mean() + unlisted - least))


def price_all_above_floor(space: SearchSpace, record: Record) -> None:
    """Price every assignment; a search that has to end before has a bound all the same.

    Under a time limit linear programs come before the walk, because they take a small part of its
    time. Otherwise only the user can end the walk early, and one program follows then.
    """
    model = LinearModel(space, record.evaluate.objective)
    if record.evaluate.budget.time_limit_s is not None:
        record.raise_bound(_linear_bound(model, lambda: record.cut), "linear bound")
    price_all(space, record)
    if record.bound is None:
        record.raise_bound(_linear_bound(model, lambda: True), "linear bound")


def _linear_bound(model: LinearModel, cut: Callable[[], bool] = lambda: False) -> float:
    """The bound over all sets of sharding types, of all at once if ``cut`` says True before."""
    bounds = RankFreeBound(model, optional=usual_optional_types(model.space), cut=cut)
    value = bounds.relax(None).bound
    if not model.objective.sees_types or not math.isfinite(value) or cut():
        return value
    least = math.inf
    for types in type_sets(model.space, bounds.optional):
        least = min(least, bounds.relax(types, rounds=_ROUNDS).bound)
        if cut():
            return value
    return max(value, least)
