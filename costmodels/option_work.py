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
    """``rows[index]`` is the work as :meth:`costmodels.pipeline.CostPipeline.option_work` gives it.

    Attributes:
        rows: ``[distinct, F]``, in the order in which ``index`` first names them.
        index: ``[W]``, ``[pieces]`` or ``[pieces, L]``, by the option's spread. Options share it,
            so it is read-only.
    """

    rows: FloatArray
    index: IntArray

    @staticmethod
    def of(work: FloatArray) -> OptionWork:
        """From ``[..., F]``; neighbours that are equal become one row."""
        return OptionWork(
            rows=work.reshape(-1, work.shape[-1]),
            index=np.arange(np.prod(work.shape[:-1])).reshape(work.shape[:-1]),
        ).merged()

    @property
    def full(self) -> FloatArray:
        """The work itself."""
        return np.asarray(self.rows[self.index])

    def merged(self) -> OptionWork:
        """The same with rows made one that are equal to the row before them."""
        new = np.ones(len(self.rows), dtype=bool)
        new[1:] = (self.rows[1:] != self.rows[:-1]).any(axis=-1)
        if new.all():
            return self
        return OptionWork(rows=self.rows[new], index=(np.cumsum(new) - 1)[self.index])

    def __matmul__(self, coefficients: FloatArray) -> FloatArray:
        """``[...]`` of coefficients ``[F]``."""
        return np.asarray((self.rows @ coefficients)[self.index])
