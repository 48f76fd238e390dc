"""Fits the learned factor of a lookup model, and keeps it only where it helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.calibration.fitting import geomean_error
from costmodels.datatypes import FloatArray
from costmodels.errors import require
from costmodels.lookup.residual import LearnedFactor

_FEWEST_POINTS: Final = 24
_FEWEST_TABLES: Final = 6
_FOLDS: Final = 5
_PENALTIES: Final = (0.1, 1.0, 10.0, 100.0)
_LIMIT: Final = math.log(2.0)
_WORTH: Final = 0.95
"""A factor must lower the held-out error by a twentieth to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualFit:
    """The outcome: the factor, or None; held-out errors without and with it; why."""

    factor: LearnedFactor | None
    num_points: int
    num_tables: int
    analytic_ratio: float
    corrected_ratio: float
    reason: str


def fit_residual(
    features: FloatArray, log_ratio: FloatArray, tables: Sequence[object]
) -> ResidualFit:
    """A ridge regression of ``log_ratio`` = ln(measured / predicted) on a shard's features.

    Tables are held out in turn, a fifth of them at a time; the penalty is chosen inside the rest.

    Args:
        features: ``[points, NUM_FEATURES]``.
        log_ratio: ``[points]``.
        tables: which table each point measures; points of one table stay together.
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
    """Errors that are left on tables the factor has not seen."""
    from sklearn.model_selection import GroupKFold

    left = np.zeros_like(log_ratio)
    splits = GroupKFold(n_splits=min(_FOLDS, len(set(tables))))
    for kept, held in splits.split(features, log_ratio, tables):
        factor = _fit(features[kept], log_ratio[kept], tables[kept])
        left[held] = log_ratio[held] - np.log(factor.at(features[held]))
    return left


def _fit(features: FloatArray, log_ratio: FloatArray, tables: FloatArray) -> LearnedFactor:
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
