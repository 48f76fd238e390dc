"""How well predictions rank the plans of several tasks, beside simpler models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.errors import require
from costmodels.validation.metrics import ErrorSummary, kendall_tau, regret, summarize_errors


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
