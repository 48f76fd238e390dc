"""Solutions of the bound that are solved again, so that they can be rounded to plans.

The solutions found here are no bounds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import Relaxation, TypeSet
from planner.search.bounds.room import Room
from planner.search.common.milp import Rows

_LEAST_ROOM: Final = 1e-60
"""Least room of a phase, so that loads can be divided by it even if a phase has no work at all."""


class Roundable:
    """Finds solutions that are close to those of the bound, and from which plans can be made.

    Args:
        bounds: solves the rank-free problem.
    """

    def __init__(self, bounds: RankFreeBound) -> None:
        """Nothing is solved yet."""
        self._bounds, self._model = bounds, bounds.model
        self._room = Room(bounds.space) if bounds.builder.unlisted_bytes > 0 else None
        self._fitted: dict[tuple[TypeSet | None, float], Relaxation] = {}

    def within_memory(self, relaxation: Relaxation) -> Relaxation:
        """A solution that needs no more device memory than there is.

        Where kernels in host memory are not listed, the bound allows more
        (:mod:`planner.search.bounds.room`).
        """
        room = self._room
        if room is None or relaxation.shares is None or room.holds(relaxation.shares):
            return relaxation
        key = relaxation.types, relaxation.bound
        if key not in self._fitted:
            self._fitted[key] = replace(relaxation, shares=room.shrunk(relaxation))
        return self._fitted[key]

    def packable(self, relaxation: Relaxation, slack_ratio: float) -> Relaxation:
        """A solution whose shards can be packed as wholes.

        In a solution the share of a giant shard is small, but in a plan the shard is whole. Let the
        room of a phase be its largest load in the solution, raised by ``slack_ratio``. Then no
        shard may be larger than the room. A rank has room for one shard that is larger than half of
        it, or for two that are larger than a third.
        """
        if relaxation.shares is None:
            return relaxation
        model, builder = self._model, self._bounds.builder
        groups = model.phase_maxima(self._bounds.loads.peaks(relaxation.shares)[-1])
        room = np.maximum(groups * (1 + slack_ratio), 1e-9 * float(groups.max()) + _LEAST_ROOM)
        room = room[model.phase_index]
        share = model.extreme(np.maximum)[:, : len(room)] / room
        kept = builder.uniform | (share <= 1.0).all(axis=-1)
        taken = np.where(share > 0.5, 1.0, np.where(share > 1 / 3, 0.5, 0.0))
        counted = taken * builder.shards[:, None] / self._bounds.space.world_size
        upper = np.ones(counted.shape[1])
        rows = Rows.dense(counted.T, np.full(len(upper), -math.inf), upper)
        more = [rows, *(self._room.rows() if self._room is not None else ())]
        return self._bounds.relax(relaxation.types, kept=kept, more=more, rounds=4)
