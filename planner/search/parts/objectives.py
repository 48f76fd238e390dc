"""What can be minimised, by name."""

from __future__ import annotations

from typing import Final, final

import numpy as np

from costmodels.pipeline import CostPipeline
from planner.errors import InvalidInputError
from planner.evaluation import FloatArray, SearchSpace
from planner.objective import AbstractObjective, Cut
from planner.option_memory import memory_coefficients
from planner.search.parts.iteration_time import IterationTime
from planner.search.parts.priced import Cost
from planner.search.parts.torchrec import TorchrecCriticalPath, TorchrecRating


@final
class FullestDevice(AbstractObjective):
    """Embedding bytes on the fullest device."""

    name = "memory"

    def __init__(self, pipeline: CostPipeline) -> None:
        """Work out the bytes per unit of work."""
        self._device, _ = memory_coefficients(pipeline)

    @property
    def weights(self) -> FloatArray:
        """One phase: the bytes themselves."""
        return np.ones(1)

    def values(self, work: FloatArray) -> FloatArray:
        """Largest device."""
        return np.asarray((work @ self._device).max(axis=-1))

    def gradient(self, row: FloatArray) -> FloatArray:
        """Bytes are linear in work, so the same everywhere."""
        del row
        return self._device[None, :]

    def always(self) -> Cut:
        """The value is the phase."""
        return Cut(base=0.0, slopes=np.ones(1))


@final
class SynchronizedPhases(AbstractObjective):
    """The slowest rank's seconds in each phase that ranks wait for one another after, added up.

    What does not depend on the plan is part of it; launches, overlap and start-up costs of the
    collectives are not, so it is no more than the iteration time. It is separable, and its
    bound exact up to how shards share ranks.
    """

    name = "phases"

    def __init__(self, pipeline: CostPipeline) -> None:
        """Keep the pipeline that prices phases."""
        self._pipeline = pipeline

    @property
    def weights(self) -> FloatArray:
        """The pipeline's own."""
        return np.asarray(self._pipeline.phase_weights, dtype=float)

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


MEMORY: Final = FullestDevice.name

OBJECTIVES: Final = (
    IterationTime.name,
    SynchronizedPhases.name,
    FullestDevice.name,
    Cost.name,
    TorchrecRating.name,
    TorchrecCriticalPath.name,
)


def objective_named(name: str, space: SearchSpace) -> AbstractObjective:
    """The objective of that name, for plans of ``space``.

    Raises:
        InvalidInputError: there is none; the message lists those there are.
    """
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        msg = f"objective {name!r} is not one of {known}"
        raise InvalidInputError(msg)
    if name == FullestDevice.name:
        return FullestDevice(space.pipeline)
    if name == SynchronizedPhases.name:
        return SynchronizedPhases(space.pipeline)
    if name == TorchrecRating.name:
        return TorchrecRating(space)
    if name == TorchrecCriticalPath.name:
        return TorchrecCriticalPath(space)
    time = IterationTime(space.pipeline, [(o.sharding_type, o.kernel) for o in space.options])
    if name == Cost.name:
        return Cost(time, space.pipeline.workload, space.pipeline.topology)
    return time
