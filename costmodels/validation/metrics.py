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

    ``coverage_ratio`` is the share of measurements inside their interval, NaN without intervals;
    ``rms_log_ratio`` the root mean square of ln(predicted / measured).
    """

    count: int
    mean_error_ratio: float
    p90_error_ratio: float
    geomean_error_ratio: float
    worst_error_ratio: float
    bias_ratio: float
    rms_log_ratio: float
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
        rms_log_ratio=float(np.sqrt(np.mean(np.square(np.log(p / m))))),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """The plans of one task: seconds measured and predicted, in the same order."""

    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Errors of the times, and what choosing the plan predicted fastest would cost.

    Kendall's tau is the mean over tasks; shares and regret are over tasks too.
    """

    errors: ErrorSummary
    num_tasks: int
    kendall_tau_ratio: float
    top_ratio: float
    within_5_ratio: float
    within_10_ratio: float
    mean_regret_ratio: float
    worst_regret_ratio: float


def rank_tasks(tasks: Sequence[TaskTimes]) -> Ranking:
    """Scores over all tasks.

    Raises:
        InvalidValueError: no task, or a task with fewer than two plans.
    """
    require(len(tasks) > 0, "a ranking needs at least one task")
    regrets = np.array([regret(t.predicted_s, t.measured_s) for t in tasks])
    return Ranking(
        errors=summarize_errors(
            [p for t in tasks for p in t.predicted_s], [m for t in tasks for m in t.measured_s]
        ),
        num_tasks=len(tasks),
        kendall_tau_ratio=float(np.mean([kendall_tau(t.predicted_s, t.measured_s) for t in tasks])),
        top_ratio=float(np.mean(regrets <= 0.0)),
        within_5_ratio=float(np.mean(regrets <= 0.05)),
        within_10_ratio=float(np.mean(regrets <= 0.10)),
        mean_regret_ratio=float(regrets.mean()),
        worst_regret_ratio=float(regrets.max()),
    )


def one_scale(tasks: Sequence[TaskTimes]) -> tuple[TaskTimes, ...]:
    """The predictions times one factor that makes their geometric mean right.

    For models that rate plans in no particular unit: their ranking can be judged, and their
    errors in the best light.
    """
    logs = [
        np.log(m / p)
        for t in tasks
        for p, m in zip(t.predicted_s, t.measured_s, strict=True)
        if p > 0
    ]
    factor = float(np.exp(np.mean(logs))) if logs else 1.0
    return tuple(
        TaskTimes(measured_s=t.measured_s, predicted_s=tuple(p * factor for p in t.predicted_s))
        for t in tasks
    )
