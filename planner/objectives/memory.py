"""The fullest device."""

from __future__ import annotations

from typing import Self, final

import numpy as np

from costmodels.pipeline import CostPipeline
from planner.options.memory import memory_coefficients
from planner.space.evaluation import FloatArray, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork


@final
class FullestDevice(AbstractNamedObjective):
    """Embedding bytes on the fullest device."""

    name = "memory"
    unit = "B"
    wants_every_kernel = True

    def __init__(self, pipeline: CostPipeline) -> None:
        """Work out the bytes per unit of work."""
        self._device, _ = memory_coefficients(pipeline)

    @classmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """Bytes as the pipeline of the space counts them."""
        return cls(space.pipeline)

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
