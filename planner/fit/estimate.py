"""Estimates factors on the four kinds of time of a system from measured runs (Bayesian).

Prior: the logarithms of the four factors are normal around 0. Each kind of time varies by the
spread that the system's intervals assume, and all of them together by ``COMMON_SIGMA``, because a
whole machine may be slower than its numbers say. Likelihood: a measured time is its prediction
times ``exp(noise)``, with normal noise. The estimated factors are the most probable ones, found by
least squares; the curvature there gives the uncertainty that is left.

A single step time therefore determines about one factor, the common one. Several plans that load
the kinds of time differently determine more. A trace has the time of each kind itself: the factor
is then the one with which that time is predicted, because its prior is wide (``SEEN_SIGMA``). A
kind that no run has, such as collectives on one rank, keeps the factor 1 and its spread.

The noise is what predictions with the right factors still miss on one plan. Its deviation starts at
``NOISE_SIGMA``, which counts as ``NOISE_RUNS`` observations, and is estimated from the residuals.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.calibration.fitting import geomean_error
from costmodels.datatypes import BoolArray, FloatArray
from costmodels.estimates import Z90
from costmodels.iteration.base import LOOKUP_BACKWARD, LOOKUP_FORWARD
from costmodels.iteration.timing import traced
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, check_plan
from costmodels.system_models import scaled
from costmodels.topology import FITTED_KINDS, FittedFactors, Topology, with_host_factor
from costmodels.uncertainty import MACHINE, sigmas
from planner.errors import refuse, refusing
from planner.io.documents import configs_folder
from planner.io.system.system_file import load_constants, with_measurements
from planner.models import models_of
from planner.problem import PlanningProblem
from planner.trace import reading
from planner.trace.kineto import kernel_name

COLLECTIVE: Final = "collective"
MEASURED_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "lookup": (LOOKUP_FORWARD, LOOKUP_BACKWARD),
    COLLECTIVE: reading.COLLECTIVES,
    "dense": (*reading.DENSE_STAGES, reading.OTHER),
}
"""For each factor the stages of a trace whose kernels tell it. The factor of the host is told by
the host's own time."""
HOST: Final = "host"
_KIND_ON_CPU: Final = "lookup"
"""On a CPU only lookups are used: other operators are so short that profiling slows them down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One plan that was run.

    Attributes:
        name: the name of the plan, for people.
        plan: the plan that was run.
        iteration_s: measured seconds per iteration.
        traces: profiles of some or all ranks; empty if only the time is known.
    """

    name: str
    plan: Plan
    iteration_s: float
    traces: tuple[reading.TraceTimes, ...] = ()

    def __post_init__(self) -> None:
        """Check that the time is a positive number."""
        if not (np.isfinite(self.iteration_s) and self.iteration_s > 0):
            refuse(f"run {self.name}: its iteration time must be above 0, got {self.iteration_s}")


ITERATION: Final = "iteration"
_DOUBTS: Final = {ITERATION: 1.0, "lookup": 2.0, "dense": 2.0, COLLECTIVE: 3.0, HOST: 3.0}
"""How far a time usually is from its prediction, where 1 stands for what is usual for an iteration.
Predictions of one kind of time miss by more than those of an iteration, in which errors cancel.
Those of collectives miss most, because they include waits for late ranks, and the host's, because
the profiler's own work is in it."""


class Predictor:
    """Predicts the times of the runs under any factors.

    Attributes:
        problem, runs: as given.
        absent: kinds of time that are predicted for no rank of any run, such as collectives on a
            single rank. What a trace measures of them tells no factor.
        measured_s: the observations: seconds of each run (its index) and kind of time that is
            predicted, which is ``iteration``, or a kind summed over the profiled ranks.
    """

    def __init__(self, problem: PlanningProblem, runs: Sequence[Run]) -> None:
        """Count the work of every plan once.

        Raises:
            InvalidInputError: there is no run, or a plan or trace does not belong to the problem.
        """
        if not runs:
            refuse("a fit needs one run at least")
        self.problem, self.runs = problem, tuple(runs)
        self._models = models_of(problem)
        base = self._pipeline(np.zeros(len(FITTED_KINDS)))
        world = problem.topology.world_size
        for run in runs:
            with refusing(f"run {run.name}: "):
                check_plan(run.plan, problem.workload, world)
            reading.check_ranks(run.traces, world, f"run {run.name}: ")
        self._work = np.stack([base.plan_work(run.plan) for run in runs])
        found = [_kinds_s(base, work, range(world)) for work in self._work]
        self.absent = tuple(k for k in FITTED_KINDS if not any(times[k] for times in found))
        self.measured_s = {
            (i, kind): seconds
            for i, run in enumerate(runs)
            for kind, seconds in _observed(run).items()
            if kind not in self.absent
        }

    def iterations_s(self, logs: FloatArray) -> FloatArray:
        """``[runs]`` seconds per iteration under factors ``exp(logs)``, ``[4]``."""
        return self._pipeline(logs).iteration_times(self._work)

    def log_times(self, logs: FloatArray) -> FloatArray:
        """``[observations]`` ln of predicted seconds under factors ``exp(logs)``, ``[4]``."""
        pipeline = self._pipeline(logs)
        times = [{ITERATION: float(s)} for s in pipeline.iteration_times(self._work)]
        for told, work, run in zip(times, self._work, self.runs, strict=True):
            told |= _kinds_s(pipeline, work, [t.rank for t in run.traces])
        found = [times[run][kind] for run, kind in self.measured_s]
        return np.asarray(np.log(np.maximum(found, 1e-12)))

    def _pipeline(self, logs: FloatArray) -> CostPipeline:
        """The pipeline whose times are multiplied by factors ``exp(logs)``, ``[4]``."""
        factors = FittedFactors(**dict(zip(_FIELDS, np.exp(logs).tolist(), strict=True)))
        topology = with_host_factor(self.problem.topology, factors.host_ratio)
        return CostPipeline(self.problem.workload, topology, scaled(self._models, factors))


_FIELDS: Final = tuple(f"{kind}_ratio" for kind in FITTED_KINDS)


def mean_iteration_s(traces: Sequence[reading.TraceTimes]) -> float:
    """Mean seconds per iteration of the profiled ranks."""
    return float(np.mean([t.iteration_s for t in traces]))


def _observed(run: Run) -> dict[str, float]:
    """The measured times of a run by their kinds."""
    measured = {ITERATION: run.iteration_s}
    on_cpu = any(t.on_cpu for t in run.traces)
    for kind, kernels in MEASURED_KINDS.items():
        if on_cpu and kind != _KIND_ON_CPU:
            continue
        seconds = sum(t.kinds_s.get(k, 0.0) for t in run.traces for k in kernels)
        if kind == COLLECTIVE:
            seconds += sum(t.told_waits_s for t in run.traces)
        if seconds > 0:
            measured[kind] = seconds
    hosts = [t.host_s for t in run.traces if t.host_s is not None]
    if hosts and len(hosts) == len(run.traces):
        # A time without the profiler shows by how much its work makes the host slower.
        slower_ratio = max(1.0, mean_iteration_s(run.traces) / run.iteration_s)
        measured[HOST] = sum(hosts) / slower_ratio
    return measured


def _kinds_s(pipeline: CostPipeline, work: FloatArray, ranks: Sequence[int]) -> dict[str, float]:
    """Predicted seconds of each kind, summed over some ranks; waits count as collectives."""
    if not ranks:
        return {}
    program, _ = pipeline.scheduled(pipeline.stage_times(work), work.shape[:-1])
    simulation = traced(program, work.shape[-2])
    at = list(ranks)
    totals = dict.fromkeys(FITTED_KINDS, 0.0)
    for index, step in enumerate(program.steps):
        kind = reading.stage_of_name(kernel_name(step))
        totals[HOST] += float(np.broadcast_to(step.host_s, work.shape[-2:-1])[at].sum())
        for name, kernels in MEASURED_KINDS.items():
            if kind in kernels:
                begin_s = simulation.arrival_s if step.collective else simulation.start_s
                spent = simulation.finish_s[index, at] - begin_s[index, at]
                totals[name] += float(spent.sum())
    return totals


def on_reference_cores(topology: Topology) -> Topology:
    """The system with the shipped calibration, if its ranks are the cores of one uncalibrated host.

    The rates that a file gives for CPU ranks describe a device without fixed costs. Real cores have
    one stream, look up tables one by one, and copy exchanges themselves. In this all cores are
    alike; they differ in the speed of each kind of work, which a fit finds. Factors that were
    fitted to the rates of the file mean nothing for the calibration, and are removed.
    """
    is_known = bool(topology.calibration) or topology.device.name != "cpu"
    if is_known or topology.num_hosts > 1 or topology.collective_curves:
        return topology
    path = configs_folder() / "calibrations" / "cpu_gloo.calibration.json"
    latency_s = load_constants(str(path)).kernel_latency_s
    device = replace(topology.device, single_stream=True, kernel_latency_s=latency_s)
    return with_measurements(replace(topology, calibration=str(path), device=device, fitted=None))


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
_ENOUGH: Final = 1e-5
"""The search for the factors ends when their logarithms change by less than this share."""
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
            :func:`planner.fit.estimate.on_reference_cores`.
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
        return geomean_error(np.log([e.before_s / e.measured_s for e in self.errors]))

    @property
    def left_out_ratio(self) -> float | None:
        """Geometric mean of the errors on runs that were left out; None for a single run."""
        found = [e.left_out_s / e.measured_s for e in self.errors if e.left_out_s is not None]
        return geomean_error(np.log(found)) if found else None


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
    own, prior = _prior(problem, absent, {kind for _, kind in predictor.measured_s})
    of_run = np.array([run for run, _ in predictor.measured_s])
    whole = _posterior(predictor, prior, of_run >= 0)
    fitted_s = predictor.iterations_s(whole.logs)
    errors = []
    for i, run in enumerate(predictor.runs):
        others = of_run != i
        known = _posterior(predictor, prior, others, start=whole) if others.any() else whole
        time_s = float(predictor.iterations_s(known.logs)[i])
        spread = math.exp(Z90 * _iteration_sigma(predictor, known, i))
        errors.append(
            RunError(
                name=run.name,
                measured_s=run.iteration_s,
                before_s=float(before_s[i]),
                fitted_s=float(fitted_s[i]),
                left_out_s=time_s if others.any() else None,
                low_s=time_s / spread,
                high_s=time_s * spread,
            )
        )
    present = np.array([float(kind not in absent) for kind in FITTED_KINDS])
    noise = whole.noise_ratio**2 * np.outer(present, present)
    left = np.linalg.cholesky(whole.covariance + noise + 1e-12 * np.eye(len(prior)))
    shrunk = np.linalg.solve(prior, whole.covariance)
    return Fit(
        factors=FittedFactors(
            **dict(zip(_FIELDS, np.exp(whole.logs).tolist(), strict=True)),
            spread_ratio=tuple(tuple(row[: i + 1]) for i, row in enumerate(left.tolist())),
        ),
        settled_ratio=tuple(np.maximum(1.0 - np.diag(whole.covariance) / own, 0.0).tolist()),
        absent=absent,
        num_settled=float(len(prior) - np.trace(shrunk)),
        noise_ratio=whole.noise_ratio,
        errors=tuple(errors),
        topology=problem.topology,
    )


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
    predictor: Predictor, prior: FloatArray, kept: BoolArray, *, start: _Posterior | None = None
) -> _Posterior:
    """The most probable factors given some observations, with the uncertainty that is left.

    Args:
        predictor: predicts the times of all observations.
        prior: ``[4, 4]`` covariance before any run.
        kept: ``[observations]`` which of them count.
        start: factors to begin with, found from more observations; the noise is then estimated only
            once. None to begin with the factors 1.
    """
    from scipy.optimize import least_squares

    measured = np.log(list(predictor.measured_s.values()))[kept]
    doubts = np.array([_DOUBTS[kind] for _, kind in predictor.measured_s])[kept]
    precision = np.linalg.inv(prior)
    root = np.linalg.cholesky(precision).T
    noise = NOISE_SIGMA
    logs = np.zeros(len(prior)) if start is None else start.logs

    def misses(logs: FloatArray, noise: float) -> FloatArray:
        off = (predictor.log_times(logs)[kept] - measured) / (doubts * noise)
        return np.concatenate([off, root @ logs])

    for _ in range(_NOISE_ROUNDS if start is None else 1):
        found = least_squares(misses, logs, xtol=_ENOUGH, args=(noise,))
        logs, slopes = found.x, found.jac[: len(measured)]
        covariance, rest = np.linalg.inv(slopes.T @ slopes + precision), found.fun[: len(measured)]
        free = len(measured) - float(np.trace(slopes @ covariance @ slopes.T))
        squares = NOISE_RUNS * NOISE_SIGMA**2 + noise**2 * float(rest @ rest)
        noise = math.sqrt(squares / (NOISE_RUNS + max(free, 0.0)))
    return _Posterior(logs=logs, covariance=covariance, noise_ratio=noise)


def _iteration_sigma(predictor: Predictor, known: _Posterior, run: int) -> float:
    """Log-standard deviation of one run's predicted iteration, including the noise of one plan."""
    from scipy.optimize import approx_fprime

    def log_s(logs: FloatArray) -> float:
        return math.log(predictor.iterations_s(logs)[run])

    slope = approx_fprime(known.logs, log_s, _STEP)
    return math.sqrt(float(slope @ known.covariance @ slope) + known.noise_ratio**2)
