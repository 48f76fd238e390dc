"""Plans on TorchRec's terms: the rating its planner minimises, and the path its statistics print.

Both are separable: a largest sum over ranks, or a sum of such. The phases are columns of the work
rows of :class:`planner.torchrec_terms.pipeline.TorchrecPipeline`, so bounds and moves are exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final, Self

import numpy as np

from planner.errors import InvalidInputError
from planner.space.evaluation import FITTING, FloatArray, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork, MakePipeline
from planner.torchrec_terms.pipeline import DDR, TIMES, TorchrecPipeline, TorchrecPricing

_SAME_RATIO: Final = 1e-12


class ColumnMaxima(AbstractNamedObjective):
    """``sum_k weight[k] max_r work[r, column k]``; infinite where a rank's DDR is overfull.

    Host limits are checked per host by every search, which is weaker than TorchRec's per rank.
    """

    name = "torchrec"
    unit = "s"
    by_phase: ClassVar[bool]
    """Whether forward, backward and exchanges have columns of their own."""

    @classmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """The columns that differ in this space."""
        return cls(space)

    @classmethod
    def priced_by(cls, make_pipeline: MakePipeline) -> MakePipeline:
        """TorchRec's own estimates."""
        known = make_pipeline if isinstance(make_pipeline, TorchrecPricing) else TorchrecPricing()
        return replace(known, by_phase=cls.by_phase)

    def __init__(self, space: SearchSpace | JudgedWork) -> None:
        """Columns of which one is a multiple of another on every shard count as one phase.

        Raises:
            InvalidInputError: the work is not in TorchRec's estimates.
        """
        pipeline = space.pipeline
        if not isinstance(pipeline, TorchrecPipeline):
            msg = (
                f"objective {self.name!r} needs work counted in TorchRec's estimates; plan with "
                f"'shardplan plan --objective {self.name}' or planner.api.plan"
            )
            raise InvalidInputError(msg)
        if pipeline.workload.batch_share_ratio:
            msg = (
                f"batch_shares contradict objective {self.name!r}: TorchRec's planner knows one "
                "batch size for all ranks; remove one of them"
            )
            raise InvalidInputError(msg)
        self._ddr_limits = np.array(pipeline.machine.ddr_limits_bytes) * FITTING
        self._columns, self._weights = _phases(space.pool[..., TIMES:])
        self._gradient = np.zeros((len(self._columns), pipeline.num_features))
        self._gradient[np.arange(len(self._columns)), TIMES + self._columns] = 1.0

    @property
    def weights(self) -> FloatArray:
        """How often the largest of each column counts."""
        return self._weights

    def values(self, work: FloatArray) -> FloatArray:
        """Seconds."""
        largest = work[..., TIMES + self._columns].max(axis=-2) @ self._weights
        fits = (work[..., DDR] <= self._ddr_limits).all(axis=-1)
        return np.asarray(np.where(fits, largest, np.inf))

    def gradient(self, row: FloatArray) -> FloatArray:
        """Columns are linear in work, so the same everywhere."""
        del row
        return self._gradient

    @property
    def prices(self) -> FloatArray:
        """All phases by weight."""
        return np.asarray(self._weights @ self._gradient)

    def always(self) -> Cut:
        """The value is the sum of the phases."""
        return Cut(base=0.0, slopes=self._weights)


def _phases(times: FloatArray) -> tuple[np.ndarray, FloatArray]:
    """Columns to look at, and their weights; those that are multiples of one another are merged."""
    kept: list[int] = []
    weights: list[float] = []
    for column in np.flatnonzero(times.any(axis=0)):
        values = times[:, column]
        for i, known in enumerate(kept):
            ratio = float(values.max() / times[:, known].max())
            if np.allclose(values, ratio * times[:, known], rtol=_SAME_RATIO, atol=0.0):
                weights[i] += ratio
                break
        else:
            kept.append(int(column))
            weights.append(1.0)
    if not kept:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    return np.array(kept, dtype=np.int64), np.array(weights)
