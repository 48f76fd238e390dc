"""From a simulation to what people ask: what does the iteration wait for, and on which rank?"""

from __future__ import annotations

import numpy as np

from costmodels.estimates import CriticalStep, RankEstimate, StageTime
from costmodels.iteration._events import Node, Simulation
from costmodels.iteration.base import FloatArray, Program, Stream


def critical_path(program: Program, simulation: Simulation) -> tuple[CriticalStep, ...]:
    """The chain of steps from the start to the last finish, earliest first.

    A collective that waited for a late rank continues on that rank. Time in which the host thread
    was the reason appears as a step "host", time in which the data source was as "input".
    """
    path: list[CriticalStep] = []
    node = simulation.last
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
        node = _cause(simulation, node)
        if node is not None:
            waited_from = min(until, float(simulation.finish_s[node[1], node[0]]))
            if until > waited_from:
                path.append(_step(node[0], "host", waited_from, until))
            until = waited_from
    if until > 0:
        rank = path[-1].rank if path else 0
        path.append(_step(rank, "host", 0.0, until))
    return tuple(reversed(path))


def _cause(simulation: Simulation, node: Node) -> Node | None:
    """What released a node.

    A rank that joined a collective early points to the late rank, whose own cause is wanted.
    """
    cause = simulation.released_by.get(node)
    if cause is not None and cause[1] == node[1] and cause[0] != node[0]:
        return simulation.released_by.get(cause)
    return cause


def _step(rank: int, name: str, start: float, finish: float) -> CriticalStep:
    return CriticalStep(rank=rank, stage=name, start_s=start, duration_s=finish - start)


def stage_times(program: Program, simulation: Simulation) -> tuple[StageTime, ...]:
    """Every step that takes time on some rank."""
    spans = simulation.finish_s - simulation.start_s
    return tuple(
        StageTime(
            name=step.name,
            stream=step.stream.value,
            start_s=tuple(float(x) for x in simulation.start_s[i]),
            duration_s=tuple(float(x) for x in spans[i]),
        )
        for i, step in enumerate(program.steps)
        if spans[i].max() > 0
    )


def rank_estimates(program: Program, simulation: Simulation) -> tuple[RankEstimate, ...]:
    """Compute, communication, exposed communication, idle time and slack of every rank."""
    spans = simulation.finish_s - simulation.start_s
    on_compute = np.array([s.stream is Stream.COMPUTE and not s.collective for s in program.steps])
    moving = np.array([s.collective for s in program.steps])
    total = simulation.iteration_time_s
    estimates = []
    for rank in range(spans.shape[1]):
        busy = float(spans[on_compute, rank].sum())
        begin, end = _union(simulation.start_s[moving, rank], simulation.finish_s[moving, rank])
        communication = float((end - begin).sum())
        overlap = _common(
            simulation.start_s[on_compute, rank], simulation.finish_s[on_compute, rank], begin, end
        )
        estimates.append(
            RankEstimate(
                rank=rank,
                compute_s=busy,
                communication_s=communication,
                exposed_s=max(0.0, communication - overlap),
                idle_s=max(0.0, total - busy),
                slack_s=_slack(program, simulation, rank),
            )
        )
    return tuple(estimates)


def _union(start: FloatArray, finish: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Disjoint intervals that cover the same time: two streams may communicate at once."""
    order = np.argsort(start, kind="stable")
    start, finish = start[order], np.maximum.accumulate(finish[order])
    if not len(start):
        return start, finish
    gap = np.concatenate([[True], start[1:] > finish[:-1]])
    return start[gap], finish[np.concatenate([gap[1:], [True]])]


def _slack(program: Program, simulation: Simulation, rank: int) -> float:
    """Seconds this rank waits for later ranks in a collective while its compute stream idles."""
    exposed = (Stream.COMMUNICATION, Stream.COMPUTE)
    joined = np.array([s.collective and s.stream in exposed for s in program.steps])
    computing = np.array([s.stream is Stream.COMPUTE and not s.collective for s in program.steps])
    start, finish = simulation.start_s[:, rank], simulation.finish_s[:, rank]
    arrival = simulation.arrival_s[:, rank]
    waited = float((start - arrival)[joined].sum())
    busy = _common(start[computing], finish[computing], arrival[joined], start[joined])
    return max(0.0, waited - busy)


def _common(
    start: FloatArray, finish: FloatArray, other_start: FloatArray, other_finish: FloatArray
) -> float:
    """Seconds that intervals of the first kind share with intervals of the second."""
    first = np.maximum(start[:, None], other_start[None, :])
    last = np.minimum(finish[:, None], other_finish[None, :])
    return float(np.maximum(last - first, 0.0).sum())
