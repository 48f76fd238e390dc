"""Measured runs, and what a system predicts for them under given factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.errors import InvalidValueError
from costmodels.fitted import scaled
from costmodels.iteration._traced import traced
from costmodels.iteration.base import LOOKUP_BACKWARD, LOOKUP_FORWARD
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, check_plan
from costmodels.topology import FITTED_KINDS, FittedFactors, Topology, with_host_factor
from planner.errors import InvalidInputError
from planner.io.library import configs_folder
from planner.io.system.calibration_file import load_constants
from planner.models import models_of
from planner.problem import PlanningProblem
from planner.trace.kineto import kernel_name
from planner.trace.reading import TraceTimes
from planner.trace.stages import (
    COLLECTIVES,
    DENSE_STAGES,
    OTHER,
    stage_of_name,
)

COLLECTIVE: Final = "collective"
MEASURED_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "lookup": (LOOKUP_FORWARD, LOOKUP_BACKWARD),
    COLLECTIVE: COLLECTIVES,
    "dense": (*DENSE_STAGES, OTHER),
}
"""For each factor the stages of a trace whose kernels tell it. The factor of the host is told by
the host's own time."""
HOST: Final = "host"
_KINDS_ON_CPU: Final = ("lookup",)
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
    traces: tuple[TraceTimes, ...] = ()

    def __post_init__(self) -> None:
        """Check that the time is a positive number."""
        if not (np.isfinite(self.iteration_s) and self.iteration_s > 0):
            message = f"run {self.name}: its iteration time must be above 0, got {self.iteration_s}"
            raise InvalidInputError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured time.

    Attributes:
        run: index of the run.
        kind: ``iteration``, or a kind of time, which is then summed over the profiled ranks.
        measured_s: seconds.
        doubt_ratio: how far such a time usually is from its prediction, where 1 stands for what is
            usual for an iteration.
    """

    run: int
    kind: str
    measured_s: float
    doubt_ratio: float


ITERATION: Final = "iteration"
_DOUBTS: Final = {ITERATION: 1.0, "lookup": 2.0, "dense": 2.0, COLLECTIVE: 3.0, HOST: 3.0}
"""Predictions of one kind of time miss by more than those of an iteration, in which errors cancel.
Those of collectives miss most, because they include waits for late ranks, and the host's, because
the profiler's own work is in it."""


class Predictor:
    """Predicts the times of the runs under any factors.

    Attributes:
        problem, runs: as given.
        absent: kinds of time that are predicted for no rank of any run, such as collectives on a
            single rank. What a trace measures of them tells no factor.
        observations: the measured times, of the kinds that are predicted.
    """

    def __init__(self, problem: PlanningProblem, runs: Sequence[Run]) -> None:
        """Count the work of every plan once.

        Raises:
            InvalidInputError: there is no run, or a plan or trace does not belong to the problem.
        """
        if not runs:
            message = "a fit needs one run at least"
            raise InvalidInputError(message)
        self.problem, self.runs = problem, tuple(runs)
        self._models = models_of(problem)
        base = self._pipeline(np.zeros(len(FITTED_KINDS)))
        world = problem.topology.world_size
        for run in runs:
            try:
                check_plan(run.plan, problem.workload, world)
            except InvalidValueError as error:
                message = f"run {run.name}: {error}"
                raise InvalidInputError(message) from error
            strange = [t.rank for t in run.traces if t.rank >= world]
            if strange or len({t.rank for t in run.traces}) < len(run.traces):
                message = (
                    f"run {run.name}: its traces are of ranks "
                    f"{sorted(t.rank for t in run.traces)}; give one trace per rank, of ranks "
                    f"0..{world - 1}"
                )
                raise InvalidInputError(message)
        self._work = np.stack([base.plan_work(run.plan) for run in runs])
        found = [_kinds_s(base, work, range(world)) for work in self._work]
        self.absent = tuple(
            kind for kind in FITTED_KINDS if not any(times[kind] for times in found)
        )
        self.observations = tuple(
            o for i, run in enumerate(runs) for o in _observed(i, run) if o.kind not in self.absent
        )

    def iterations_s(self, logs: FloatArray) -> FloatArray:
        """``[runs]`` seconds per iteration under factors ``exp(logs)``, ``[4]``."""
        return self._pipeline(logs).iteration_times(self._work)

    def log_times(self, logs: FloatArray) -> FloatArray:
        """``[observations]`` ln of predicted seconds under factors ``exp(logs)``, ``[4]``."""
        pipeline = self._pipeline(logs)
        iterations_s = pipeline.iteration_times(self._work)
        kinds = {
            i: _kinds_s(pipeline, self._work[i], [t.rank for t in run.traces])
            for i, run in enumerate(self.runs)
            if run.traces
        }
        found = [
            iterations_s[o.run] if o.kind == ITERATION else kinds[o.run][o.kind]
            for o in self.observations
        ]
        return np.asarray(np.log(np.maximum(np.array(found), 1e-12)))

    def _pipeline(self, logs: FloatArray) -> CostPipeline:
        """The pipeline whose times are multiplied by factors ``exp(logs)``, ``[4]``."""
        factors = FittedFactors(**dict(zip(_FIELDS, np.exp(logs).tolist(), strict=True)))
        topology = with_host_factor(self.problem.topology, factors.host_ratio)
        return CostPipeline(self.problem.workload, topology, scaled(self._models, factors))


_FIELDS: Final = tuple(f"{kind}_ratio" for kind in FITTED_KINDS)
"""The fields of :class:`costmodels.topology.FittedFactors`, in the order of the kinds of time."""


def mean_iteration_s(traces: Sequence[TraceTimes]) -> float:
    """Mean seconds per iteration of the profiled ranks."""
    return float(np.mean([t.iteration_s for t in traces]))


def _observed(index: int, run: Run) -> list[Observation]:
    """The measured times of the run with this index."""
    measured = {ITERATION: run.iteration_s}
    on_cpu = any(t.on_cpu for t in run.traces)
    for kind, kernels in MEASURED_KINDS.items():
        if on_cpu and kind not in _KINDS_ON_CPU:
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
    return [
        Observation(run=index, kind=kind, measured_s=seconds, doubt_ratio=_DOUBTS[kind])
        for kind, seconds in measured.items()
    ]


def _kinds_s(pipeline: CostPipeline, work: FloatArray, ranks: Sequence[int]) -> dict[str, float]:
    """Predicted seconds of each kind, summed over some ranks; waits count as collectives."""
    program, _ = pipeline.scheduled(pipeline.stage_times(work), work.shape[:-1])
    simulation = traced(program, work.shape[-2])
    at = list(ranks)
    totals = dict.fromkeys(FITTED_KINDS, 0.0)
    for index, step in enumerate(program.steps):
        kind = stage_of_name(kernel_name(step))
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
    return replace(topology, calibration=str(path), device=device, fitted=None)
