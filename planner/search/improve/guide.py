"""What the bound says of options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.bounds.relaxation import Relaxation, uses
from planner.search.common.linear import LinearModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guide:
    """What the bound says of options: their prices, and which can be part of a better plan."""

    reduced_costs: FloatArray
    allowed: BoolArray


def guide_of(
    model: LinearModel, relaxation: Relaxation, known: Iterable[Relaxation], incumbent: float
) -> Guide:
    """Reduced costs, and which options can be part of a plan better than the incumbent."""
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
