"""Predicted against measured: errors in the field's terms, and virtual time of shared cores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import FloatArray
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


def kendall_tau(predicted: FloatArray, measured: FloatArray) -> float:
    """Rank correlation -1..1 (tau-a): concordant minus discordant pairs, over all pairs."""
    require(predicted.size >= 2, "Kendall's tau needs two cases or more")
    first, second = np.triu_indices(predicted.size, k=1)
    agreement = np.sign(predicted[first] - predicted[second])
    agreement = agreement * np.sign(measured[first] - measured[second])
    return float(agreement.mean())


def rank_tasks(
    tasks: Sequence[int], predicted: Sequence[float], measured: Sequence[float]
) -> dict[str, float]:
    """Scores over all tasks: what choosing the plan predicted fastest would cost.

    Kendall's tau is the mean over tasks; shares and regret are over tasks too.

    Args:
        tasks: the task of each plan; at least one.
        predicted: of each plan, in any unit that is common to all.
        measured: of each plan.

    Raises:
        InvalidValueError: a task with fewer than two plans.
    """
    p, m, of = np.asarray(predicted), np.asarray(measured), np.asarray(tasks)
    plans = [(p[of == task], m[of == task]) for task in np.unique(of)]
    taus = [kendall_tau(*both) for both in plans]
    # What choosing the plan predicted fastest costs beyond the fastest measured.
    regrets = np.array([m[p.argmin()] / m.min() - 1.0 for p, m in plans])
    return {
        "num_tasks": len(plans),
        "kendall_tau_ratio": float(np.mean(taus)),
        "top_ratio": float(np.mean(regrets <= 0.0)),
        "within_5_ratio": float(np.mean(regrets <= 0.05)),
        "within_10_ratio": float(np.mean(regrets <= 0.10)),
        "mean_regret_ratio": float(regrets.mean()),
        "worst_regret_ratio": float(regrets.max()),
    }


def one_scale(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """The predictions times one factor that makes their geometric mean right.

    For models that rate plans in no particular unit: their ranking can be judged, and their
    errors in the best light.
    """
    p, m = np.asarray(predicted), np.asarray(measured)
    factor = np.exp(np.mean(np.log(m[p > 0] / p[p > 0]))) if (p > 0).any() else 1.0
    return [float(value) for value in p * factor]


# ------------------------------------------------------------------ virtual time
#
# Each rank's time is the processor time of its own process, as if it owned a core. Collectives join
# the clocks: a rank that waits for one continues no earlier than the latest rank issued it. What
# other jobs on the machine take away does not count.

ISSUE = "issue"
WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A collective is issued, or its result is waited for, at ``time_s`` of processor time."""

    kind: str
    number: int
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One rank's iteration: events in order and its processor time at the end, both from 0.

    ``network_s`` is the processor time of threads that only move bytes. They may spin while a
    message waits for its receiver, so it is kept apart.
    """

    events: tuple[Event, ...]
    end_s: float
    network_s: float = 0.0


def virtual_time(traces: Sequence[Trace]) -> float:
    """Seconds from the common start until the last rank has finished, without network threads.

    Raises:
        InvalidValueError: ranks issued different collectives, so that one would wait forever.
    """
    late, position = [0.0] * len(traces), [0] * len(traces)
    issued: dict[int, dict[int, float]] = {}
    while any(at < len(trace.events) for at, trace in zip(position, traces, strict=True)):
        before = list(position)
        for rank, trace in enumerate(traces):
            # Follow the rank until it waits for a collective that another has not issued yet.
            for event in trace.events[position[rank] :]:
                times = issued.setdefault(event.number, {})
                if event.kind == ISSUE:
                    times[rank] = event.time_s + late[rank]
                elif len(times) < len(traces):
                    break
                else:
                    late[rank] += max(0.0, max(times.values()) - (event.time_s + late[rank]))
                position[rank] += 1
        require(position != before, "the ranks issued different collectives")
    return max(t.end_s + delay for t, delay in zip(traces, late, strict=True))
