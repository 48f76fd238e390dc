"""The objective ``phases``: the time of the slowest rank in each phase, added up."""

from typing import final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork


@final
class SynchronizedPhases(AbstractNamedObjective):
    """The seconds of the slowest rank in each phase, added up over phases.

    Ranks wait for each other after every one of these phases. The sum includes the times that do
    not depend on the plan. It leaves out kernel launches, overlap, and what collectives take
    however few the bytes. It is therefore at most the iteration time, except if batches are unequal
    and all tables are replicated (:func:`costmodels.floors.phases.lookups_add_up`). The objective
    is a weighted sum of maxima over ranks, so that only the choice of ranks for shards separates
    its bound from the best plan.
    """

    name = "phases"
    unit = "s"

    def __init__(self, space: SearchSpace | JudgedWork) -> None:
        """Keep the pipeline of the space, which prices phases."""
        self._pipeline = space.pipeline

    @property
    def weights(self) -> FloatArray:
        """``[K]`` the weights of the pipeline."""
        return np.asarray(self._pipeline.phases.weights, dtype=float)

    @property
    def slowness(self) -> FloatArray | None:
        """``[W, K]`` as the pipeline says, as if tables were cached."""
        return self._pipeline.phases.slowness(fetches=True)

    def values(self, work: FloatArray) -> FloatArray:
        """``[...]`` constant seconds plus the weighted largest phases of each plan."""
        phases = np.asarray(self._pipeline.phases.times(work)).max(axis=-2)
        return np.asarray(self._pipeline.phases.base_s + phases @ self.weights)

    def gradient(self, row: FloatArray) -> FloatArray:
        """Tangents of the pipeline's phases."""
        return self._pipeline.phases.gradient(row)

    def always(self) -> Cut:
        """A cut that is exact: the value is this sum."""
        return Cut(base=float(self._pipeline.phases.base_s), slopes=self.weights)
