"""Solutions of the bound that keep to the device memory there is.

Kernels in host memory may be left out of the list of options. The bound holds for plans with them
too, and therefore allows more device memory than there is
(:attr:`planner.search.bounds.bound_program.RankFreeProgram.unlisted_bytes`). Such a solution often
cannot be rounded to a plan.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.sharding import ComputeKernel
from planner.search.bounds.relaxation import Relaxation
from planner.search.common.milp import Rows
from planner.space.evaluation import SearchSpace

_TOLERANCE: Final = 1e-5
"""Share of all device memory by which a solution may be above it, because solvers round."""
_PRICES: Final = 60
"""Prices of device memory that are tried; each halves the interval of prices, so that after so many
it is as narrow as numbers can tell."""


class Room:
    """Device memory of all ranks together, and what options take of it.

    Args:
        space: the options.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Work out the device memory of every option."""
        self._space = space
        limit = max(float(space.pipeline.device_limits.mean()), 1.0)
        self._share: FloatArray = np.asarray(space.mean_work @ space.device / limit)
        """``[n]`` the device bytes of each option as a share of all device memory."""

    def holds(self, shares: FloatArray) -> bool:
        """Whether options with these shares, ``[n]``, fit into all device memory together."""
        return bool(shares @ self._share <= 1 + _TOLERANCE)

    def rows(self) -> list[Rows]:
        """The limit of all device memory, as a row of a program over the options."""
        return [Rows.dense(self._share[None], np.full(1, -math.inf), np.ones(1))]

    def shrunk(self, relaxation: Relaxation) -> FloatArray:
        """``[n]`` shares of whole options, 0 or 1, that fit into all device memory if any do.

        Each table takes the option with the smallest sum of its reduced cost and of a price for its
        device memory. The price is the smallest one at which all options fit: the Lagrangian
        relaxation of the limit.
        """
        size, table = self._share, self._space.table_of
        costs = np.zeros(len(self._share))
        if relaxation.reduced_costs is not None:
            costs = np.abs(relaxation.reduced_costs)

        def picked(price: float) -> IntArray:
            score = costs + price * size
            least = np.minimum.reduceat(score, self._space.first[:-1])
            where = np.flatnonzero(score <= least[table])
            return np.asarray(where[np.unique(table[where], return_index=True)[1]])

        low, high = 0.0, (float(costs.max()) + 1.0) / float(size[size > 0].min(initial=1.0))
        for _ in range(_PRICES):
            middle = 0.5 * (low + high)
            fits = float(size[picked(middle)].sum()) <= 1.0
            low, high = (low, middle) if fits else (middle, high)
        whole = np.zeros(len(self._share))
        whole[picked(high)] = 1.0
        return whole


def unlisted_bytes(space: SearchSpace) -> float:
    """Device bytes that tables listed without kernels in host memory hold at most.

    With these kernels the bytes would be in host memory.
    """
    workload, left_out = space.problem.workload, set(space.listing.left_out_tables)
    most = 0.0
    for table, listed in zip(workload.tables, space.tables, strict=True):
        fused = (o for o in listed.options if o.kernel is not ComputeKernel.DENSE)
        widths = {o.column_widths for o in fused} if table.name in left_out else set()
        most += max((workload.trained_bytes(table, w) for w in widths), default=0.0)
    return most
