"""Estimates factors on the four kinds of time of a system from measured runs (Bayesian).

Prior: the logarithms of the four factors are normal around 0. Each kind of time varies by the
spread that the system's intervals assume, and all of them together by ``COMMON_SIGMA``, because a
whole machine may be slower than its numbers say. Likelihood: a measured time is its prediction
times ``exp(noise)``, with normal noise. The estimated factors are the most probable ones, found by
Gauss-Newton steps; the curvature there gives the uncertainty that is left.

A single step time therefore determines about one factor, the common one. Several plans that load
the kinds of time differently determine more. A trace has the time of each kind itself: the factor
is then the one with which that time is predicted, because its prior is wide (``SEEN_SIGMA``). A
kind that no run has, such as collectives on one rank, keeps the factor 1 and its spread.

The noise is what predictions with the right factors still miss on one plan. Its deviation starts at
``NOISE_SIGMA``, which counts as ``NOISE_RUNS`` observations, and is estimated from the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.estimates import Z90
from costmodels.topology import FITTED_KINDS, FittedFactors, Topology
from costmodels.uncertainty import MACHINE, sigmas
from planner.fit.evidence import (
    COLLECTIVE,
    ITERATION,
    Observation,
    Predictor,
    Run,
    on_reference_cores,
)
from planner.models import models_of
from planner.problem import PlanningProblem

COMMON_SIGMA: Final = 0.3
"""Log-standard deviation of the factor that all kinds of time have in common, before any run. The
larger it is, the more a single run may change all predictions."""
SEEN_SIGMA: Final = 1.5
"""Log-standard deviation of a kind whose own time is in a trace, before the trace: hosts differ by
a factor of eight, calls of lookups by four. The smaller it is, the more the factor stays near 1 and
near the others although its time was measured."""
NOISE_SIGMA: Final = 0.03
"""Log-standard deviation of a plan's time around its prediction, before any run. The smaller it is,
the more the factors follow each run."""
NOISE_RUNS: Final = 4.0
"""How many observations ``NOISE_SIGMA`` counts as: with more runs, their residuals decide."""
_STEP: Final = 1e-3
"""Step of ln(factor) for slopes by differences; also the least log-standard deviation of a kind of
time, so that the covariance can be inverted."""
_ROUNDS: Final = 12
"""At most so many Gauss-Newton steps."""
_ENOUGH: Final = 1e-4
"""They end when no ln(factor) changes by more than this: 0.01 % of a time."""
_LONGEST_STEP: Final = 1.0
"""No step changes a ln(factor) by more than this, so that steps far from the solution do not
overshoot."""
_NOISE_ROUNDS: Final = 3
"""How often the noise is estimated and the factors are found again with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """The measured time of a run, and predictions of it.

    Attributes:
        name: the name of the run.
        measured_s: measured seconds per iteration.
        before_s: prediction before the fit.
        fitted_s: prediction after a fit to all runs, including this one.
        left_out_s: prediction after a fit to all other runs; None if there is no other.
        low_s, high_s: 90 % interval of ``left_out_s``, or of ``fitted_s`` if that is None.
    """

    name: str
    measured_s: float
    before_s: float
    fitted_s: float
    left_out_s: float | None
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Factors, and how well the runs determine them.

    Attributes:
        factors: the factors, with the spread that is left, which includes the noise of one plan.
        settled_ratio: for each factor, by what share the variance that is left is below the one
            that the intervals of the system assume, 0..1.
        absent: kinds of time that no run has; their factors are 1.
        num_settled: how many independent directions of the four factors the runs determine, 0..4.
        noise_ratio: log-standard deviation of a plan's time around its prediction.
        errors: the errors of each run.
        topology: the system that the factors apply to. It is the problem's, except for CPU ranks
            that were never calibrated; see
            :func:`planner.fit.evidence.on_reference_cores`.
    """

    factors: FittedFactors
    settled_ratio: tuple[float, ...]
    absent: tuple[str, ...]
    num_settled: float
    noise_ratio: float
    errors: tuple[RunError, ...]
    topology: Topology

    @property
    def before_ratio(self) -> float:
        """Geometric mean of the errors before the fit."""
        return geomean_error(e.before_s / e.measured_s for e in self.errors)

    @property
    def left_out_ratio(self) -> float | None:
        """Geometric mean of the errors on runs that were left out; None for a single run."""
        found = [e.left_out_s / e.measured_s for e in self.errors if e.left_out_s is not None]
        return geomean_error(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posterior:
    """What runs say about the factors.

    Attributes:
        logs: ``[4]`` most probable ln(factor).
        covariance: ``[4, 4]`` their covariance.
        noise_ratio: log-standard deviation of a plan's time around its prediction.
    """

    logs: FloatArray
    covariance: FloatArray
    noise_ratio: float


def fit(problem: PlanningProblem, runs: Sequence[Run]) -> Fit:
    """Estimate the factors of a system from runs of plans on it.

    Args:
        problem: workload and system of the runs.
        runs: at least one run; runs of different plans determine more factors.

    Raises:
        InvalidInputError: there is no run, or a plan or trace does not belong to the problem.
    """
    before_s = Predictor(problem, runs).iterations_s(np.zeros(len(FITTED_KINDS)))
    if problem.models is None:
        problem = replace(problem, topology=on_reference_cores(problem.topology))
    predictor = Predictor(problem, runs)
    absent = predictor.absent
    own, prior = _prior(problem, absent, {o.kind for o in predictor.observations})
    whole = _posterior(predictor, prior, predictor.observations)
    fitted_s = predictor.iterations_s(whole.logs)
    errors = []
    for i, run in enumerate(predictor.runs):
        others = tuple(o for o in predictor.observations if o.run != i)
        known = _posterior(predictor, prior, others, start=whole) if others else whole
        time_s = float(predictor.iterations_s(known.logs)[i])
        spread = math.exp(Z90 * _iteration_sigma(predictor, known, i))
        errors.append(
            RunError(
                name=run.name,
                measured_s=run.iteration_s,
                before_s=float(before_s[i]),
                fitted_s=float(fitted_s[i]),
                left_out_s=time_s if others else None,
                low_s=time_s / spread,
                high_s=time_s * spread,
            )
        )
    present = np.array([float(kind not in absent) for kind in FITTED_KINDS])
    noise = whole.noise_ratio**2 * np.outer(present, present)
    left = np.linalg.cholesky(whole.covariance + noise + 1e-12 * np.eye(len(prior)))
    ratios = np.exp(whole.logs).tolist()
    shrunk = np.linalg.solve(prior, whole.covariance)
    return Fit(
        factors=FittedFactors(
            lookup_ratio=ratios[0],
            collective_ratio=ratios[1],
            dense_ratio=ratios[2],
            host_ratio=ratios[3],
            spread_ratio=tuple(tuple(row[: i + 1]) for i, row in enumerate(left.tolist())),
        ),
        settled_ratio=tuple(np.maximum(1.0 - np.diag(whole.covariance) / own, 0.0).tolist()),
        absent=absent,
        num_settled=float(len(prior) - np.trace(shrunk)),
        noise_ratio=whole.noise_ratio,
        errors=tuple(errors),
        topology=problem.topology,
    )


def geomean_error(ratios: Iterable[float]) -> float:
    """``exp(mean |ln ratio|) - 1``, from ratios of predicted to measured times."""
    logs = np.abs(np.log(np.array(list(ratios), dtype=float)))
    return float(np.exp(logs.mean()) - 1.0)


def _prior(
    problem: PlanningProblem, absent: Collection[str], seen: Collection[str]
) -> tuple[FloatArray, FloatArray]:
    """Variances that the system's intervals assume, ``[4]``, and covariance before any run.

    Args:
        problem: tells the spread of each kind of time.
        absent: kinds that no run has; nothing that runs say about other kinds changes them.
        seen: kinds whose own time is in a trace.
    """
    models, topology = models_of(problem), problem.topology
    # Without collectives their model is certain of them, and of those of more ranks it is not.
    spread = None if COLLECTIVE in absent else models.collective.plan_spread_ratio(topology)
    foreign = problem.workload.is_foreign
    known = dict(
        models.sigmas_ratio or sigmas(topology, collective_spread_ratio=spread, is_foreign=foreign)
    )
    machine = known.get(MACHINE, 0.0) ** 2
    own = np.array([max(known[kind], _STEP) for kind in FITTED_KINDS]) ** 2
    wide = np.array([SEEN_SIGMA if kind in seen else 0.0 for kind in FITTED_KINDS]) ** 2
    shared = np.array([kind not in absent for kind in FITTED_KINDS])
    joint = (COMMON_SIGMA**2 + machine) * np.outer(shared, shared)
    return own + machine, np.diag(np.where(shared, np.maximum(own, wide), own + machine)) + joint


def _posterior(
    predictor: Predictor,
    prior: FloatArray,
    observations: Sequence[Observation],
    *,
    start: _Posterior | None = None,
) -> _Posterior:
    """The most probable factors given some observations, with the uncertainty that is left.

    Args:
        predictor: predicts the times of all observations.
        prior: ``[4, 4]`` covariance before any run.
        observations: the observations that count.
        start: factors to begin with, found from more observations; the noise is then estimated only
            once. None to begin with the factors 1.
    """
    kept = np.array([o in observations for o in predictor.observations])
    measured = np.log([o.measured_s for o in predictor.observations])[kept]
    doubts = np.array([o.doubt_ratio for o in predictor.observations])[kept]
    precision = np.linalg.inv(prior)
    noise = NOISE_SIGMA
    logs = np.zeros(len(prior)) if start is None else start.logs
    for _ in range(_NOISE_ROUNDS if start is None else 1):
        for _ in range(_ROUNDS):
            now, slopes = _slopes(predictor, logs)
            slopes = slopes[kept] / doubts[:, None]
            rest = (measured - now[kept]) / doubts
            curvature = slopes.T @ slopes / noise**2 + precision
            step = np.linalg.solve(curvature, slopes.T @ rest / noise**2 - precision @ logs)
            step *= min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), _STEP))
            logs, rest = logs + step, rest - slopes @ step
            if float(np.abs(step).max()) < _ENOUGH:
                break
        covariance = np.linalg.inv(curvature)
        free = len(rest) - float(np.trace(slopes @ covariance @ slopes.T) / noise**2)
        squares = NOISE_RUNS * NOISE_SIGMA**2 + float(rest @ rest)
        noise = math.sqrt(squares / (NOISE_RUNS + max(free, 0.0)))
    return _Posterior(logs=logs, covariance=covariance, noise_ratio=noise)


def _slopes(predictor: Predictor, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Logarithms of all predicted times, and ``[observations, 4]`` slopes by ln(factor)."""
    now = predictor.log_times(logs)
    moved = [predictor.log_times(logs + h) for h in _STEP * np.eye(len(logs))]
    return now, (np.stack(moved, axis=-1) - now[:, None]) / _STEP


def _iteration_sigma(predictor: Predictor, known: _Posterior, run: int) -> float:
    """Log-standard deviation of one run's predicted iteration, including the noise of one plan."""
    at = next(
        i for i, o in enumerate(predictor.observations) if o.run == run and o.kind == ITERATION
    )
    slope = _slopes(predictor, known.logs)[1][at]
    return math.sqrt(float(slope @ known.covariance @ slope) + known.noise_ratio**2)
