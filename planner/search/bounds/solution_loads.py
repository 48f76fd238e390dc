"""The loads that a solution of the rank-free program puts on ranks, and which rows these break."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.bounds.scope import Name

_SEEN: Final = 1e-5
"""Shares of uniform options up to this are taken for the rounding of the solver."""


class SolutionLoads:
    """Works out loads from the shares that options have in a solution.

    Args:
        builder: knows the model, and which ranks differ.
    """

    def __init__(self, builder: RankFreeProgram) -> None:
        """Keep the model."""
        self._builder, self._model = builder, builder.model
        self._uniform = builder.uniform

    def peaks(self, shares: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Loads that some rank has at least, where options have these shares, ``[n]``.

        Returns:
            Loads of the largest shards of each table or tied group, beside what uniform options put
            on every rank, ``[rows, P + 2]``; loads of uniform options on each of the ranks that
            differ, ``[ranks, P + 2]``; and the largest of both and of the means, ``[P + 2]``.
        """
        uniform = np.where(self._uniform, shares, 0.0)
        base = uniform @ self._model.extreme(np.minimum)
        largest = self._builder.one_place.all_loads(shares) + base
        everywhere = self._uniform_loads(uniform)
        peaks = np.maximum(largest.max(axis=0), everywhere.max(axis=0))
        return largest, everywhere, np.maximum(peaks, shares @ self._model.mean)

    def broken(self, loads: FloatArray, allowed: FloatArray) -> set[Name]:
        """Names of the rows that loads break, ``[rows, P + 2]``, with the row in ``loads`` first.

        Args:
            loads: what rows add up to.
            allowed: the most that they may, of a shape that fits ``loads``.
        """
        model = self._model
        phases = np.append(model.used, len(model.objective.weights))
        groups = np.concatenate([model.phase_index, [len(model.used)] * 2])
        within = np.arange(len(groups)) - np.append(model.starts, model.num_tangents)[groups]
        where = np.argwhere(loads > allowed)
        return {(int(i), int(phases[groups[c]]), int(within[c])) for i, c in where}

    def _uniform_loads(self, uniform: FloatArray) -> FloatArray:
        """``[ranks, P + 2]`` loads of uniform options with these shares, on ranks that differ."""
        ranks = self._builder.ranks
        loads = np.zeros((len(ranks), self._model.num_tangents + 2))
        chosen = uniform[self._uniform]
        for i in np.flatnonzero(chosen > _SEEN):
            own = self._model.columns[self._builder.uniform_rows[i, ranks]]
            loads += chosen[i] * self._model.at(own, ranks)
        return loads
