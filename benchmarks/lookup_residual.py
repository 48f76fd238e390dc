"""Fits the learned factor of a lookup model, and keeps it only if it predicts new tables better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.calibration.fitting import geomean_error
from costmodels.datatypes import FloatArray
from costmodels.errors import require
from costmodels.measured.lookup_residual import LearnedFactor

_FEWEST_POINTS: Final = 24
"""Fewest points of a fit: about as many as a shard has features."""
_FEWEST_TABLES: Final = 6
"""Fewest tables of a fit, so that each fold of tables still leaves several for the fit."""
_FOLDS: Final = 5
"""Parts of the tables that are left out in turn. More parts leave fewer tables out of each fit,
and take more fits."""
_PENALTIES: Final = (0.1, 1.0, 10.0, 100.0)
"""Penalties of the ridge regression that are tried; the best one on tables left out is taken."""
_LIMIT: Final = math.log(2.0)
"""Largest absolute value of the logarithm of a factor."""
_WORTH: Final = 0.95
"""Error with the factor over the error without it, above which the factor is not kept. A smaller
gain may be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualFit:
    """The result of a fit.

    Attributes:
        factor: the learned factor; None if it was not kept.
        num_points: points of the fit.
        num_tables: different tables that the points measure.
        analytic_ratio: geometric mean error of the lookup model without the factor.
        corrected_ratio: the same with the factor, on tables that were left out of its fit; NaN if
            there were too few points.
        reason: why the factor was kept or not.
    """

    factor: LearnedFactor | None
    num_points: int
    num_tables: int
    analytic_ratio: float
    corrected_ratio: float
    reason: str


def fit_residual(
    features: FloatArray, log_ratio: FloatArray, tables: Sequence[object]
) -> ResidualFit:
    """Fit ln(measured / predicted) of lookups by a ridge regression on the features of shards.

    A fifth of the tables is left out at a time. The penalty is chosen among the other tables, by
    leaving out a fifth of those in turn.

    Args:
        features: ``[points, NUM_FEATURES]`` numbers that describe each shard.
        log_ratio: ``[points]`` ln(measured / predicted).
        tables: ``[points]`` which table each point measures. Points of one table are left out
            together.

    Raises:
        InvalidValueError: the arguments have different lengths.
    """
    require(
        len(features) == len(log_ratio) == len(tables), "one row, ratio and table per point needed"
    )
    names = sorted({repr(t) for t in tables})
    numbers = np.array([names.index(repr(t)) for t in tables], dtype=int)
    analytic = geomean_error(log_ratio)
    if len(log_ratio) < _FEWEST_POINTS or len(names) < _FEWEST_TABLES:
        reason = f"needs {_FEWEST_POINTS} points of {_FEWEST_TABLES} tables"
        return ResidualFit(
            factor=None,
            num_points=len(log_ratio),
            num_tables=len(names),
            analytic_ratio=analytic,
            corrected_ratio=math.nan,
            reason=reason,
        )
    left = _held_out(features, log_ratio, numbers)
    corrected = geomean_error(left)
    helps = corrected <= _WORTH * analytic
    return ResidualFit(
        factor=_fit(features, log_ratio, numbers) if helps else None,
        num_points=len(log_ratio),
        num_tables=len(names),
        analytic_ratio=analytic,
        corrected_ratio=corrected,
        reason="lowers the held-out error" if helps else "does not lower the held-out error",
    )


def _held_out(features: FloatArray, log_ratio: FloatArray, tables: FloatArray) -> FloatArray:
    """Logarithmic errors ``[points]`` that remain with a factor fitted without a point's table."""
    from sklearn.model_selection import GroupKFold

    left = np.zeros_like(log_ratio)
    splits = GroupKFold(n_splits=min(_FOLDS, len(set(tables))))
    for kept, held in splits.split(features, log_ratio, tables):
        factor = _fit(features[kept], log_ratio[kept], tables[kept])
        left[held] = log_ratio[held] - np.log(factor.at(features[held]))
    return left


def _fit(features: FloatArray, log_ratio: FloatArray, tables: FloatArray) -> LearnedFactor:
    """The factor that fits these points, with the penalty that predicts left-out tables best."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, GroupKFold

    center = features.mean(axis=0)
    spread = np.maximum(features.std(axis=0), 1e-3)
    scaled = (features - center) / spread
    search = GridSearchCV(
        Ridge(),
        {"alpha": list(_PENALTIES)},
        cv=GroupKFold(n_splits=min(_FOLDS, len(set(tables)))),
        scoring="neg_mean_absolute_error",
    )
    search.fit(scaled, np.clip(log_ratio, -_LIMIT, _LIMIT), groups=tables)
    best = search.best_estimator_
    return LearnedFactor(
        center_ratio=tuple(map(float, center)),
        spread_ratio=tuple(map(float, spread)),
        weights_ratio=tuple(map(float, best.coef_)),
        intercept_ratio=float(best.intercept_),
        limit_ratio=_LIMIT,
    )
