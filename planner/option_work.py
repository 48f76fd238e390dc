"""Work of an option, with rows that repeat kept once.

A row-wise table loads hundreds of ranks alike; kept in full, the options of a few thousand tables
on 512 ranks take gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionWork:
    """``rows[index]`` is the work as :meth:`CostPipeline.option_work` gives it.

    Attributes:
        rows: ``[distinct, F]``, neighbours that are equal once.
        index: ``[W]``, ``[pieces]`` or ``[pieces, L]``, by the option's spread.
    """

    rows: FloatArray
    index: IntArray

    @staticmethod
    def of(work: FloatArray) -> OptionWork:
        """From ``[..., F]``."""
        flat = work.reshape(-1, work.shape[-1])
        if len(flat) == 1:
            return OptionWork(rows=flat, index=np.zeros(work.shape[:-1], dtype=np.int64))
        new = np.ones(len(flat), dtype=bool)
        new[1:] = (flat[1:] != flat[:-1]).any(axis=-1)
        index = (np.cumsum(new) - 1).reshape(work.shape[:-1])
        return OptionWork(rows=flat[new], index=index)

    @property
    def full(self) -> FloatArray:
        """The work itself."""
        return np.asarray(self.rows[self.index])

    def __matmul__(self, coefficients: FloatArray) -> FloatArray:
        """``[...]`` of coefficients ``[F]``."""
        return np.asarray((self.rows @ coefficients)[self.index])
