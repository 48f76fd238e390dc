"""Branching on one table: which of its options a plan may have.

The linear program may mix the options of a table: most of it in device memory, and as much in host
memory as makes everything fit. No plan can, and where one table is a large part of all, the bound
is far below every plan. Of two parts, one with the options below the mix and one with those above
it, neither can mix them so again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.common.linear import LinearModel

_FULL_RATIO: Final = 0.999
"""From here on device memory counts as full; below it, nothing depends on who takes how much."""

_SAME_RATIO: Final = 1e-6
"""Of the objective: options that differ by less are alike."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSplit:
    """Two parts of the options.

    Attributes:
        worth: by how much of the objective the mixed options differ.
        lower, upper: ``[n]`` options of each part. They differ in the options of one table, of
            which each part has some and no option is in both.
    """

    worth: float
    lower: BoolArray
    upper: BoolArray


def widest_split(
    model: LinearModel, shares: FloatArray, slopes: FloatArray, incumbent: float
) -> TableSplit | None:
    """The split of the table whose mixed options differ most; None if no table is mixed.

    Options differ by the standard deviation, weighted with their shares, of what they add to the
    mean load of a rank in one phase, or to its device memory where that is full.

    Args:
        model: loads of the options.
        shares: ``[n]`` of each option in a solution.
        slopes: ``[K']`` by how much the objective grows with each phase in use.
        incumbent: value of the best plan; all device memory is taken to be worth as much.
    """
    space = model.space
    limit = max(float(space.pipeline.device_limits.mean()), 1.0)
    is_full = float(shares @ model.mean[:, -2]) > _FULL_RATIO * limit
    worth = np.append(slopes[model.phase_index], incumbent / limit if is_full else 0.0)
    loads = model.mean[:, : len(worth)] * worth
    weights, first = np.maximum(shares, 0.0)[:, None], space.first[:-1]
    total = np.add.reduceat(weights, first)
    means = np.add.reduceat(weights * loads, first) / total
    apart = weights * (loads - means[space.table_of]) ** 2
    spread = np.sqrt(np.add.reduceat(apart, first) / total)
    table, column = np.unravel_index(int(np.argmax(spread)), spread.shape)
    found = float(spread[table, column])
    if found <= _SAME_RATIO * incumbent:
        return None
    own = space.table_of == table
    below = own & (loads[:, column] <= means[table, column])
    return TableSplit(worth=found, lower=~own | below, upper=~below)
