"""What an iteration waits for, and the sums of times of each rank, from a simulation."""

from __future__ import annotations

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.estimates import CriticalStep, RankEstimate, StageTime
from costmodels.iteration._events import Simulation
from costmodels.iteration.base import INPUT_COPY, Program, Stream


def critical_path(program: Program, simulation: Simulation) -> tuple[CriticalStep, ...]:
    """The chain of steps that the iteration waits for, the earliest first.

    Where a collective waited for a late rank, the chain continues on that rank. Time in which a
    step waited for the host thread is a step "host"; time in which the iteration waited for the
    data source is a step "input".
    """
    # Walk back from the step that finished last. ``until`` is the moment up to which the time is
    # not explained yet.
    path: list[CriticalStep] = []
    node, rank = simulation.last, 0
    until = simulation.iteration_time_s
    if node is not None:
        finish = float(simulation.finish_s[node[1], node[0]])
        if until > finish:
            path.append(_step(node[0], "input", finish, until))
        until = finish
    while node is not None:
        rank, index = node
        start = float(simulation.start_s[index, rank])
        finish = min(float(simulation.finish_s[index, rank]), until)
        if finish > start:
            name = program.steps[index].name
            path.append(_step(rank, name, start, finish))
        until = start
        # A rank that is early at a collective waits for the same step of the late rank, which has
        # begun at the same moment; so the walk goes on with what the late rank waited for.
        node = simulation.released_by.get(node)
    if until > 0:
        path.append(_step(rank, "host", 0.0, until))
    return tuple(reversed(path))


def _step(rank: int, name: str, start: float, finish: float) -> CriticalStep:
    """A step of the path from ``start`` to ``finish`` seconds."""
    return CriticalStep(rank=rank, stage=name, start_s=start, duration_s=finish - start)


def stage_times(program: Program, simulation: Simulation) -> tuple[StageTime, ...]:
    """Start and duration on every rank, of the steps that take time on some rank."""
    spans = simulation.finish_s - simulation.start_s
    return tuple(
        StageTime(
            name=step.name,
            stream=step.stream.value,
            start_s=tuple(simulation.start_s[i].tolist()),
            duration_s=tuple(spans[i].tolist()),
        )
        for i, step in enumerate(program.steps)
        if spans[i].max() > 0
    )


def rank_estimates(program: Program, simulation: Simulation) -> tuple[RankEstimate, ...]:
    """Compute, communication, exposed communication, idle time and slack of every rank."""
    start, finish = simulation.start_s, simulation.finish_s
    on_compute = np.array([s.stream is Stream.COMPUTE and not s.collective for s in program.steps])
    moving = np.array([s.collective for s in program.steps])
    computing = start[on_compute], finish[on_compute]
    spans = computing[1] - computing[0]
    busy = spans.sum(axis=0)
    # A copy of inputs on the compute stream keeps it busy and computes nothing, as in traces.
    copies = np.array([s.name == INPUT_COPY for s in program.steps])[on_compute]
    computed = spans[~copies].sum(axis=0)
    intervals = _disjoint(start[moving], finish[moving])
    communication = (intervals[1] - intervals[0]).sum(axis=0)
    exposed = np.maximum(0.0, communication - _common(*computing, *intervals))
    idle = np.maximum(0.0, simulation.iteration_time_s - busy)
    columns = (computed, communication, exposed, idle, _slack(program, simulation))
    return tuple(
        RankEstimate(
            rank=rank,
            compute_s=compute_s,
            communication_s=communication_s,
            exposed_s=exposed_s,
            idle_s=idle_s,
            slack_s=slack_s,
        )
        for rank, (compute_s, communication_s, exposed_s, idle_s, slack_s) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        )
    )


def _disjoint(start: FloatArray, finish: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Intervals ``[n, R]`` of each rank, without the parts that earlier intervals cover.

    Two streams may communicate at the same time; that time counts once.
    """
    if not len(start):
        return start, finish
    order = np.argsort(start, axis=0, kind="stable")
    start = np.take_along_axis(start, order, axis=0)
    finish = np.maximum.accumulate(np.take_along_axis(finish, order, axis=0), axis=0)
    covered = np.concatenate([start[:1], finish[:-1]])
    begin = np.maximum(start, covered)
    return begin, np.maximum(finish, begin)


def _slack(program: Program, simulation: Simulation) -> FloatArray:
    """Seconds that each rank waits for later ranks while its compute stream idles."""
    exposed = (Stream.COMMUNICATION, Stream.COMPUTE)
    joined = np.array([s.collective and s.stream in exposed for s in program.steps])
    computing = np.array([s.stream is Stream.COMPUTE and not s.collective for s in program.steps])
    start, finish, arrival = simulation.start_s, simulation.finish_s, simulation.arrival_s
    waited = (start - arrival)[joined].sum(axis=0)
    busy = _common(start[computing], finish[computing], arrival[joined], start[joined])
    return np.asarray(np.maximum(0.0, waited - busy))


def _common(
    start: FloatArray, finish: FloatArray, other_start: FloatArray, other_finish: FloatArray
) -> FloatArray:
    """Seconds ``[R]`` in which an interval of the first kind and one of the second overlap."""
    shared: FloatArray = np.zeros(start.shape[-1])
    for begin, end in zip(start, finish, strict=True):
        both = np.minimum(end, other_finish) - np.maximum(begin, other_start)
        shared += np.maximum(both, 0.0).sum(axis=0)
    return shared
