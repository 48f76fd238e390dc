"""What TorchRec's two objectives have in common: they are sums of maxima over ranks.

Each is a weighted sum over columns of the work of
:class:`planner.torchrec_terms.pipeline.TorchrecPipeline`, of which the largest rank counts. The
phases are these columns themselves, so that cuts have no error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final, Self

import numpy as np

from costmodels.datatypes import FloatArray
from planner.errors import InvalidInputError
from planner.space.evaluation import FITTING, SearchSpace
from planner.space.objective import AbstractNamedObjective, Cut, JudgedWork, MakePipeline
from planner.torchrec_terms.pipeline import DDR, TIMES, TorchrecPipeline, TorchrecPricing

_SAME_RATIO: Final = 1e-12


class ColumnMaxima(AbstractNamedObjective):
    """``sum_k weight[k] max_r work[r, column k]``; infinite if the DDR of a rank is overfull.

    Searches check host memory for each host, which is weaker than TorchRec's limit for each rank,
    so that this objective checks the latter.
    """

    name = "torchrec"
    unit = "s"
    asks_models = False
    by_phase: ClassVar[bool]
    """Whether forward compute, backward compute and exchanges have columns of their own."""

    @classmethod
    def of(cls, space: SearchSpace | JudgedWork) -> Self:
        """The objective over the columns that differ between options of the space."""
        return cls(space)

    @classmethod
    def priced_by(cls, make_pipeline: MakePipeline) -> MakePipeline:
        """What makes a pipeline with TorchRec's estimates; the caller's own if it is one."""
        known = make_pipeline if isinstance(make_pipeline, TorchrecPricing) else TorchrecPricing()
        return replace(known, by_phase=cls.by_phase)

    def __init__(self, space: SearchSpace | JudgedWork) -> None:
        """Choose the columns; one that is a multiple of another on all shards joins its phase.

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
        """``[K]`` how often the largest rank of each column counts."""
        return self._weights

    def values(self, work: FloatArray) -> FloatArray:
        """``[...]`` seconds of each plan."""
        largest = work[..., TIMES + self._columns].max(axis=-2) @ self._weights
        fits = (work[..., DDR] <= self._ddr_limits).all(axis=-1)
        return np.asarray(np.where(fits, largest, np.inf))

    def gradient(self, row: FloatArray) -> FloatArray:
        """``[K, F]``: the same everywhere, because columns are linear in work."""
        del row
        return self._gradient

    @property
    def prices(self) -> FloatArray:
        """``[F]`` the sum of all columns by weight."""
        return np.asarray(self._weights @ self._gradient)

    def always(self) -> Cut:
        """A cut that is exact: the value is the weighted sum of the largest phases."""
        return Cut(base=0.0, slopes=self._weights)


def _phases(times: FloatArray) -> tuple[np.ndarray, FloatArray]:
    """The columns to use, with their weights; columns that are multiples of another are merged."""
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
