"""What the bound says about options, for methods that choose among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.bounds.relaxation import Relaxation, uses
from planner.search.common.linear import LinearModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guide:
    """What the bound says about each option.

    Attributes:
        reduced_costs: ``[n]`` by how much the bound rises if a plan has the option; where that is
            not known, the sum of the option's mean loads, which also says what is cheap.
        allowed: ``[n]`` True for options that can be part of a plan better than the best one.
    """

    reduced_costs: FloatArray
    allowed: BoolArray


def guide_of(
    model: LinearModel, relaxation: Relaxation, known: Iterable[Relaxation], incumbent: float
) -> Guide:
    """Read reduced costs and allowed options off the solutions of the bound.

    Args:
        model: tangents and options.
        relaxation: the solution for the sharding types in question. Options of other types cost
            more than all of these.
        known: the solutions of all sets of sharding types. An option is allowed if, in
            any of them, the bound plus its reduced cost is not above the incumbent.
        incumbent: the objective of the best plan.
    """
    space = model.space
    prices = model.mean[:, : model.num_tangents].sum(axis=1)
    if relaxation.reduced_costs is not None:
        spread = float(prices.max()) * space.num_tables
        inside = uses(relaxation.types, space)
        prices = np.where(inside, relaxation.reduced_costs, spread + prices)
    allowed = np.zeros(len(space.options), dtype=bool)
    for other in known:
        if other.reduced_costs is None:
            continue
        lifted = other.bound + np.maximum(other.reduced_costs, 0.0)
        allowed |= uses(other.types, space) & (lifted <= incumbent)
    return Guide(reduced_costs=prices, allowed=allowed if allowed.any() else np.ones_like(allowed))
