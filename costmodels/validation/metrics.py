"""How far predictions are from measurements, in the field's terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.errors import require

_GEOMEAN_FLOOR = 4e-4
"""Added to each absolute error before the logarithm, as ml_perf_model's GMAE does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors |predicted / measured - 1| over ``count`` cases, 0..1.

    ``coverage_ratio`` is the share of measurements inside their interval, NaN without intervals.
    """

    count: int
    mean_error_ratio: float
    p90_error_ratio: float
    geomean_error_ratio: float
    worst_error_ratio: float
    bias_ratio: float
    coverage_ratio: float = math.nan


def summarize_errors(
    predicted: Sequence[float],
    measured: Sequence[float],
    *,
    low: Sequence[float] = (),
    high: Sequence[float] = (),
) -> ErrorSummary:
    """Mean (MAPE), 90th percentile, geometric mean and worst error, and the mean signed error.

    Raises:
        InvalidValueError: no cases, lengths differ, or a measurement is not positive.
    """
    p, m = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    require(p.size > 0, "errors need at least one case")
    require(p.shape == m.shape, f"{p.size} predictions for {m.size} measurements")
    require(bool((m > 0).all()), "measurements must be positive")
    signed = p / m - 1.0
    errors = np.abs(signed)
    inside = math.nan
    if len(low) == len(high) == p.size:
        inside = float(np.mean((np.asarray(low) <= m) & (m <= np.asarray(high))))
    return ErrorSummary(
        count=int(p.size),
        mean_error_ratio=float(errors.mean()),
        p90_error_ratio=float(np.quantile(errors, 0.9)),
        geomean_error_ratio=float(np.exp(np.log(errors + _GEOMEAN_FLOOR).mean())),
        worst_error_ratio=float(errors.max()),
        bias_ratio=float(signed.mean()),
        coverage_ratio=inside,
    )


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Rank correlation -1..1 (tau-a): concordant minus discordant pairs, over all pairs."""
    p, m = np.asarray(predicted, dtype=float), np.asarray(measured, dtype=float)
    require(p.shape == m.shape and p.size >= 2, "Kendall's tau needs two cases or more")
    first, second = np.triu_indices(p.size, k=1)
    agreement = np.sign(p[first] - p[second]) * np.sign(m[first] - m[second])
    return float(agreement.mean())


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Measured time of the plan predicted fastest over the fastest measured, minus 1."""
    chosen = int(np.argmin(np.asarray(predicted)))
    return float(measured[chosen] / min(measured) - 1.0)
