"""Factors from runs: as many as the runs bear, shrunk towards the system as it is.

Before any run, ``ln`` of the four factors is normal around 0: each kind of time strays by the
spread that the system's intervals assume, and all of them together by ``COMMON_SIGMA``, since a
whole machine may be slower than its numbers. A measured time is its prediction times
``exp(noise)``. The factors are the most probable ones, found by Gauss-Newton, and what they leave
open is the curvature there. One step time so settles about one factor, the common one; several
plans that load kinds of time differently, or traces, settle more.

The noise is what predictions of this kind miss on one plan. It starts at ``NOISE_SIGMA``, worth
``NOISE_RUNS`` observations, and is estimated anew from the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.estimates import Z90
from costmodels.topology import FITTED_KINDS, FittedFactors, Topology
from costmodels.uncertainty import MACHINE, sigmas
from planner.fit.evidence import ITERATION, Observation, Predictor, Run
from planner.fit.reference_cores import on_reference_cores
from planner.models import models_of
from planner.problem import PlanningProblem

FloatArray = NDArray[np.float64]

COMMON_SIGMA: Final = 0.3
NOISE_SIGMA: Final = 0.03
NOISE_RUNS: Final = 4.0
_STEP: Final = 1e-3
_ROUNDS: Final = 12
_ENOUGH: Final = 1e-4
_LONGEST_STEP: Final = 1.0
_NOISE_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """A run's time against predictions.

    Attributes:
        name: of the run.
        measured_s: seconds per iteration.
        before_s: predicted by the system as it was.
        fitted_s: predicted after fitting to all runs, this one too.
        left_out_s: predicted after fitting to all other runs; None where there is no other.
        low_s, high_s: 90 % interval of that, or of ``fitted_s``.
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
    """Factors and what is known of them.

    Attributes:
        factors: with the spread that is left, the noise of one plan included.
        settled_ratio: by factor, how much smaller the variance left is than the one that the
            system's own numbers leave, 0..1.
        num_settled: directions of the four factors that the runs settle, 0..4.
        noise_ratio: log-standard deviation of a plan's time around its prediction.
        errors: one per run.
        topology: the system that the factors apply to: the problem's, but for CPU ranks that were
            never calibrated, see :func:`planner.fit.reference_cores.on_reference_cores`.
    """

    factors: FittedFactors
    settled_ratio: tuple[float, ...]
    num_settled: float
    noise_ratio: float
    errors: tuple[RunError, ...]
    topology: Topology

    @property
    def before_ratio(self) -> float:
        """Geometric mean of the errors before."""
        return geomean_error(e.before_s / e.measured_s for e in self.errors)

    @property
    def left_out_ratio(self) -> float | None:
        """Geometric mean of the errors on runs left out; None for a single run."""
        found = [e.left_out_s / e.measured_s for e in self.errors if e.left_out_s is not None]
        return geomean_error(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posterior:
    logs: FloatArray
    covariance: FloatArray
    noise_ratio: float


def fit(problem: PlanningProblem, runs: Sequence[Run]) -> Fit:
    """Factors for a system from runs of plans on it.

    Args:
        problem: workload and system of the runs.
        runs: one at least; several of different plans settle more factors.

    Raises:
        InvalidInputError: no run, or a plan or trace that is not one of the problem.
    """
    before_s = Predictor(problem, runs).iterations_s(np.zeros(len(FITTED_KINDS)))
    if problem.models is None:
        problem = replace(problem, topology=on_reference_cores(problem.topology))
    predictor, prior = Predictor(problem, runs), prior_covariance(problem)
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
    noise = whole.noise_ratio**2 * np.ones_like(prior)
    left = np.linalg.cholesky(whole.covariance + noise + 1e-12 * np.eye(len(prior)))
    ratios = np.exp(whole.logs).tolist()
    shrunk = np.linalg.solve(prior, whole.covariance)
    own = np.diag(prior) - COMMON_SIGMA**2
    return Fit(
        factors=FittedFactors(
            lookup_ratio=ratios[0],
            collective_ratio=ratios[1],
            dense_ratio=ratios[2],
            host_ratio=ratios[3],
            spread_ratio=tuple(tuple(row[: i + 1]) for i, row in enumerate(left.tolist())),
        ),
        settled_ratio=tuple(np.maximum(1.0 - np.diag(whole.covariance) / own, 0.0).tolist()),
        num_settled=float(len(prior) - np.trace(shrunk)),
        noise_ratio=whole.noise_ratio,
        errors=tuple(errors),
        topology=problem.topology,
    )


def geomean_error(ratios: Iterable[float]) -> float:
    """exp(mean |ln ratio|) - 1 of predicted over measured times."""
    logs = np.abs(np.log(np.array(list(ratios), dtype=float)))
    return float(np.exp(logs.mean()) - 1.0)


def prior_covariance(problem: PlanningProblem) -> FloatArray:
    """Covariance of ``ln`` of the factors before any run, ``[4, 4]``."""
    models, topology = models_of(problem), problem.topology
    spread = models.collective.plan_spread_ratio(topology)
    known = dict(models.sigmas_ratio or sigmas(topology, collective_spread_ratio=spread))
    own = np.array([max(known[kind], _STEP) for kind in FITTED_KINDS])
    return np.asarray(np.diag(own**2) + COMMON_SIGMA**2 + known.get(MACHINE, 0.0) ** 2)


def _posterior(
    predictor: Predictor,
    prior: FloatArray,
    observations: Sequence[Observation],
    *,
    start: _Posterior | None = None,
) -> _Posterior:
    """The most probable factors given some observations, and what they leave open."""
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
    """ln(time) of every observation, and its slopes by ln(factor), ``[observations, 4]``."""
    now = predictor.log_times(logs)
    moved = [predictor.log_times(logs + h) for h in _STEP * np.eye(len(logs))]
    return now, (np.stack(moved, axis=-1) - now[:, None]) / _STEP


def _iteration_sigma(predictor: Predictor, known: _Posterior, run: int) -> float:
    """Log-standard deviation of one run's iteration, with the noise of one plan."""
    at = next(
        i for i, o in enumerate(predictor.observations) if o.run == run and o.kind == ITERATION
    )
    slope = _slopes(predictor, known.logs)[1][at]
    return math.sqrt(float(slope @ known.covariance @ slope) + known.noise_ratio**2)
