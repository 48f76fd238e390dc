"""Solutions of the bound brought within the device memory that listed options have.

Where kernels in host memory are not listed, the bound holds for them too, and so allows more memory
than there is (:attr:`planner.search.bounds.bound_program.RankFreeProgram.unlisted_bytes`). No plan
can be made from such a solution.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.bounds.relaxation import Relaxation
from planner.search.common.milp import Rows
from planner.space.evaluation import SearchSpace

_TOLERANCE: Final = 1e-5
"""Share of device memory by which a solution may be over it for the rounding of the solver."""
_PRICES: Final = 60
"""Prices of device memory tried: each halves the interval."""


class Room:
    """Device memory of all ranks together, and what options take of it.

    Args:
        space: the options.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Measure every option once."""
        self._space = space
        limit = max(float(space.pipeline.device_limits.mean()), 1.0)
        self._share: FloatArray = np.asarray(space.mean_work @ space.device / limit)
        """``[n]`` device bytes of each option as a share of all device memory."""

    def holds(self, shares: FloatArray) -> bool:
        """Whether the device bytes of a solution are there, on the mean over ranks."""
        return bool(shares @ self._share <= 1 + _TOLERANCE)

    def rows(self) -> list[Rows]:
        """The limit, as a row of a program over the options."""
        return [Rows.dense(self._share[None], np.full(1, -math.inf), np.ones(1))]

    def shrunk(self, relaxation: Relaxation) -> FloatArray:
        """Shares of whole options that fit on the mean over ranks, if any do.

        Each table takes the option of least reduced cost once device memory has a price, and the
        price is the least at which all fit (the Lagrangian relaxation of the limit).
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
