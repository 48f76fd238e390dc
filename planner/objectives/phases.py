"""The slowest rank of each phase, added up."""

from __future__ import annotations

from typing import Self, final

import numpy as np

from costmodels.pipeline import CostPipeline
from planner.space.evaluation import FloatArray, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork


@final
class SynchronizedPhases(AbstractNamedObjective):
    """The slowest rank's seconds in each phase that ranks wait for one another after, added up.

    What does not depend on the plan is part of it; launches, overlap and start-up costs of the
    collectives are not, so it is no more than the iteration time, but where batches are unequal and
    all tables replicated (:func:`costmodels.floors.phases.lookups_add_up`). It is separable, and
    its bound exact up to how shards share ranks.
    """

    name = "phases"
    unit = "s"

    def __init__(self, pipeline: CostPipeline) -> None:
        """Keep the pipeline that prices phases."""
        self._pipeline = pipeline

    @classmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """Phases as the pipeline of the space prices them."""
        return cls(space.pipeline)

    @property
    def weights(self) -> FloatArray:
        """The pipeline's own."""
        return np.asarray(self._pipeline.phase_weights, dtype=float)

    @property
    def slowness(self) -> FloatArray | None:
        """The pipeline's own, with a cache fetch wherever it could be."""
        return self._pipeline.phase_slowness(fetches=True)

    def values(self, work: FloatArray) -> FloatArray:
        """Base plus weighted phase maxima."""
        phases = np.asarray(self._pipeline.phase_times(work)).max(axis=-2)
        return np.asarray(self._pipeline.base_s + phases @ self.weights)

    def gradient(self, row: FloatArray) -> FloatArray:
        """The pipeline's own tangents."""
        return self._pipeline.phase_gradient(row)

    def always(self) -> Cut:
        """The value is this sum."""
        return Cut(base=float(self._pipeline.base_s), slopes=self.weights)
