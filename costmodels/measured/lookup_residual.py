"""Learned factors of lookups, which :class:`costmodels.lookup.residual.Corrected` applies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.errors import require
from costmodels.fields import require_measured

REUSE_BINS: Final = 17
"""Bins of the reuse histogram, as in Lin et al. 2024: rows accessed once, twice, up to 4 times, up
to 8, and so on to 2^15; the last bin has the rest."""


NUM_FEATURES: Final = 6 + REUSE_BINS
"""Numbers that describe a shard; see :func:`shards_features`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedFactor:
    """A factor exp(intercept + weights . (features - center) / spread), at most exp(+-limit).

    It consists of numbers only. :mod:`costmodels.calibration.fit_residual`, which fits it, needs
    scikit-learn; using it does not.

    Attributes:
        center_ratio: mean of each feature over the points of the fit, ``NUM_FEATURES`` numbers.
        spread_ratio: standard deviation of each feature over these points.
        weights_ratio: weight of each feature after it was centred and divided by its spread.
        intercept_ratio: logarithm of the factor of a shard whose features are the means.
        limit_ratio: largest absolute value of the logarithm of the factor; ln 2 by default, so that
            the factor stays between 1/2 and 2.
    """

    center_ratio: tuple[float, ...]
    spread_ratio: tuple[float, ...]
    weights_ratio: tuple[float, ...]
    intercept_ratio: float
    limit_ratio: float = math.log(2.0)

    def __post_init__(self) -> None:
        """Check that there is one number per feature, and every number."""
        sizes = {len(v) for v in (self.center_ratio, self.spread_ratio, self.weights_ratio)}
        require(
            sizes == {NUM_FEATURES}, f"a learned factor needs {NUM_FEATURES} numbers of each kind"
        )
        signed = ("center_ratio", "weights_ratio", "intercept_ratio")
        require_measured(self, "learned factor: ", signed)
        require(all(s > 0 for s in self.spread_ratio), "spreads of features must be above 0")

    def at(self, features: FloatArray) -> FloatArray:
        """The factors ``[...]`` of shards with these features, ``[..., NUM_FEATURES]``."""
        scaled = (features - np.array(self.center_ratio)) / np.array(self.spread_ratio)
        value = self.intercept_ratio + (scaled * np.array(self.weights_ratio)).sum(axis=-1)
        return np.asarray(np.exp(np.clip(value, -self.limit_ratio, self.limit_ratio)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResidual:
    """The factors of forward and backward pass; None if the fit found that one does not help."""

    forward: LearnedFactor | None = None
    backward: LearnedFactor | None = None
