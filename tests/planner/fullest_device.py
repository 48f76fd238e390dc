"""An objective that tests can check by hand: bytes on the fullest device."""

from __future__ import annotations

from typing import final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.options.table_limits import memory_coefficients
from planner.space.evaluation import SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork


@final
class FullestDevice(AbstractNamedObjective):
    """Bytes of tables and their buffers on the fullest device."""

    name = "memory"
    unit = "B"
    asks_models = False

    def __init__(self, space: SearchSpace | JudgedWork) -> None:
        """Compute the bytes per unit of work."""
        self._device, _ = memory_coefficients(space.pipeline)

    @property
    def weights(self) -> FloatArray:
        """``[1]``: there is one phase, the bytes of a rank."""
        return np.ones(1)

    def values(self, work: FloatArray) -> FloatArray:
        """``[...]`` bytes of the fullest device of each plan."""
        return np.asarray((work @ self._device).max(axis=-1))

    def gradient(self, row: FloatArray) -> FloatArray:
        """``[1, F]`` bytes per unit of work: the same everywhere, because bytes are linear."""
        del row
        return self._device[None, :]

    def always(self) -> Cut:
        """A cut that is exact: the value is the largest phase."""
        return Cut(base=0.0, slopes=np.ones(1))
