"""Branching on the options of one table.

A linear program may mix the options of a table: for example a large share of an option in device
memory, and as much of one in host memory as makes everything fit. No plan can do this. If the table
is a large part of all, the bound is far below every plan. Therefore the options are divided in two
parts: those with less load than the mix, and those with more. Neither part can make the same mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.common.linear import LinearModel

_FULL_RATIO: Final = 0.999
"""Share of all device memory above which it counts as full. Below it, no plan is worse because a
table needs more of it."""

_SAME_RATIO: Final = 1e-6
"""Share of the objective up to which options count as alike, so that splitting them is useless."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSplit:
    """Two parts of the options, which divide the options of one table.

    Attributes:
        worth: how much the mixed options of that table differ, in the unit of the objective.
        lower, upper: ``[n]`` True for the options of each part: all options of other tables, and
            some of that table; none of these is in both parts.
    """

    worth: float
    lower: BoolArray
    upper: BoolArray


def widest_split(
    model: LinearModel, shares: FloatArray, slopes: FloatArray, incumbent: float
) -> TableSplit | None:
    """The split of the table whose mixed options differ most.

    How much the options of a table differ is the standard deviation of what they add to the mean
    load of a rank in one phase, or to its device memory if that is full, weighted by their shares.

    Args:
        model: loads of the options.
        shares: ``[n]`` share of each option in a solution.
        slopes: ``[K']`` how fast the objective grows with each phase in use.
        incumbent: the objective of the best plan; all device memory counts as much.

    Returns:
        None if the solution mixes the options of no table.
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
