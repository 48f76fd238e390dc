"""When every step of an iteration starts and ends, for many plans at once, and what it waits for.

**Closed form.** Steps of a stream run in order, and all ranks run the same program. So all finish
times follow from one pass over the steps. A step starts when its stream is free, when the host has
issued it, and when the steps have finished that it depends on; a collective also waits for the
latest rank. The step finishes after its duration.

Communication slows compute down that runs beside it. This is one correction: after a first pass,
each compute step gets longer by the slow-down ratio times the seconds of communication that ran
beside it, and a second pass gives the times. Tests check that they are equal to those of an event
simulation (``tests/costmodels/iteration/events.py``).

**Causes.** For a single plan, what a step waited for is found only when it is asked for, on
thousands of ranks too. If a step waited for several things that ended at the same moment, the host
thread counts as the cause before any step, and a later step before an earlier one. If several ranks
arrived last at a collective, the cause is the one that arrived later at the collective before it.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.estimates import CriticalStep, RankEstimate, StageTime
from costmodels.iteration.base import INPUT_COPY, Program, Step, Stream, require_times


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """When every step is issued, could start if no other rank were late, starts and finishes.

    All are ``[..., R]``. ``host_s`` is when the host has issued all steps, and ``iteration_time_s``
    ``[...]`` the time of the iteration.
    """

    issued_s: tuple[FloatArray, ...]
    host_s: FloatArray
    arrival_s: tuple[FloatArray, ...]
    start_s: tuple[FloatArray, ...]
    finish_s: tuple[FloatArray, ...]
    iteration_time_s: FloatArray


Node = tuple[int, int]
"""(rank, step index)."""


class Simulation:
    """One simulated iteration.

    Attributes:
        issued_s: ``[steps, R]`` when the host has issued a step.
        arrival_s: ``[steps, R]`` when a step could start, if it did not have to wait for other
            ranks.
        start_s: ``[steps, R]`` when it starts; later than the arrival only in collectives.
        finish_s: ``[steps, R]`` when it finishes.
        iteration_time_s: when all ranks have finished.
        last: the (rank, step) that finished last; None if the host finished last.
    """

    def __init__(self, steps: tuple[Step, ...], found: StepSchedule) -> None:
        """Read the times of one plan off the schedule of its steps."""
        times = found.issued_s, found.arrival_s, found.start_s, found.finish_s
        self.issued_s, self.arrival_s, self.start_s, self.finish_s = map(np.stack, times)
        self.iteration_time_s = float(found.iteration_time_s)
        self._waits, self._latest = _waits(steps), _latest(steps, self.arrival_s)
        step, rank = divmod(int(self.finish_s.argmax()), self.finish_s.shape[1])
        is_host = self.finish_s.max() < found.host_s.max()
        self.last: Node | None = None if is_host else (rank, step)

    def released_by(self, node: Node) -> Node | None:
        """The (rank, step) that a (rank, step) waited for last.

        None if it was the host thread, or nothing.
        """
        rank, index = node
        late, before = self._latest.get(index, rank), self._waits[index]
        if late != rank:
            return late, index
        if not before:
            return None
        ends = self.finish_s[before, rank]
        at = len(ends) - 1 - int(ends[::-1].argmax())
        return (rank, before[at]) if ends[at] > self.issued_s[index, rank] else None


def schedule(program: Program, shape: tuple[int, ...]) -> StepSchedule:
    """Start and finish of all steps, for plans and ranks of ``shape`` = ``(..., R)``."""
    durations = [step.duration_s for step in program.steps]
    found = run(program.steps, durations, shape)
    if program.overlap_slowdown_ratio > 0:
        found = run(program.steps, _slowed(program, durations, found), shape)
    return replace(found, iteration_time_s=np.maximum(found.iteration_time_s, program.floor_s))


def run(
    steps: tuple[Step, ...], durations: list[FloatArray], shape: tuple[int, ...]
) -> StepSchedule:
    """One pass over the steps; no compute step is slowed down by communication beside it."""
    zero = np.zeros(shape)
    # ``host`` and ``streams`` hold the moments at which the host and each stream are free again.
    host: FloatArray = zero
    streams: dict[Stream, FloatArray] = dict.fromkeys(Stream, zero)
    found: list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]] = []
    end: FloatArray = zero
    for step, duration in zip(steps, durations, strict=True):
        issued = host = free = host + step.host_s
        for i in step.after:
            free = np.maximum(free, found[i][-1])
        stream = streams[step.stream]
        ready = arrival = np.maximum(stream, free)
        if step.collective:
            ready = ready.max(axis=-1, keepdims=True) + zero
        if step.present is not None:
            ready, arrival = (np.where(step.present, x, free) for x in (ready, arrival))
        finish = busy = ready + duration
        if step.present is not None:
            busy = np.where(step.present, finish, stream)
        streams[step.stream] = busy
        if step.blocks_host:
            host = np.maximum(host, finish)
        found.append((issued, arrival, ready, finish))
        end = np.maximum(end, finish)
    end = np.maximum(end, host)
    names = ("issued_s", "arrival_s", "start_s", "finish_s")
    times = dict(zip(names, zip(*found, strict=True) if found else [()] * 4, strict=True))
    return StepSchedule(host_s=host, iteration_time_s=end.max(axis=-1), **times)


def _slowed(program: Program, durations: list[FloatArray], first: StepSchedule) -> list[FloatArray]:
    """The durations, with compute steps lengthened by the communication that ran beside them."""
    moving = [i for i, s in enumerate(program.steps) if s.collective]
    before = _awaited(program.steps)
    slowed = list(durations)
    for i, step in enumerate(program.steps):
        if step.stream is not Stream.COMPUTE:
            continue
        beside: FloatArray = np.zeros(1)
        for j in moving:
            if before[i] >> j & 1 or before[j] >> i & 1:
                continue  # One of the two always waits for the other, so that they never overlap.
            start = np.maximum(first.start_s[i], first.start_s[j])
            finish = np.minimum(first.finish_s[i], first.finish_s[j])
            beside = beside + np.maximum(finish - start, 0.0)
        slowed[i] = durations[i] + program.overlap_slowdown_ratio * beside
    return slowed


def _awaited(steps: tuple[Step, ...]) -> list[int]:
    """For each step, a set of bits: bit i is set if step i has always finished before it starts.

    These are the steps that it names in ``after``, the steps that those name, and so on.
    """
    found: list[int] = []
    for step in steps:
        bits = 0
        for i in step.after:
            bits |= found[i] | 1 << i
        found.append(bits)
    return found


# ------------------ causes


def traced(program: Program, num_ranks: int) -> Simulation:
    """Times and causes of one plan; every array of the program must broadcast to ``[R]``.

    Raises:
        InvalidValueError: a cost model has given a step a time that is below 0 or not finite.
    """
    _require_step_times(program.steps)
    return Simulation(program.steps, schedule(program, (num_ranks,)))


def finite_times(program: Program, shape: tuple[int, ...]) -> FloatArray:
    """Seconds per iteration of each plan, ``[...]``; arguments are those of :func:`schedule`.

    Raises:
        InvalidValueError: a cost model has given a step a time that is not finite.
    """
    with np.errstate(invalid="ignore"):  # an infinite time has no difference to another one
        times_s = schedule(program, shape).iteration_time_s
    if not np.isfinite(times_s).all():
        _require_step_times(program.steps)
    return times_s


def _require_step_times(steps: tuple[Step, ...]) -> None:
    for step in steps:
        require_times(step.duration_s, f"the step '{step.name}'")
        require_times(step.host_s, f"the step '{step.name}'")


def _latest(steps: tuple[Step, ...], arrival: FloatArray) -> dict[int, int]:
    """The rank that each collective waits for.

    Of several ranks that arrive last, it is the one that came later in the collectives before.
    """
    found: dict[int, int] = {}
    turn = np.arange(arrival.shape[1])
    for i, step in enumerate(steps):
        if step.collective and step.is_present:
            order = np.lexsort((turn, arrival[i]))
            found[i] = int(order[-1])
            turn[order] = np.arange(len(order))
    return found


def _waits(steps: tuple[Step, ...]) -> list[list[int]]:
    """The steps that each step waits for: the one before it on its stream, and those it names."""
    found, latest = list[list[int]](), dict[Stream, int]()
    for i, step in enumerate(steps):
        earlier = [latest[step.stream]] if step.is_present and step.stream in latest else []
        found.append(sorted({*step.after, *earlier}))
        if step.is_present:
            latest[step.stream] = i
    return found


# ------------------ critical path


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
        node = simulation.released_by(node)
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


_EXPOSED: Final = (Stream.COMMUNICATION, Stream.COMPUTE)
"""Streams whose collectives compute waits for."""


def rank_estimates(program: Program, simulation: Simulation) -> tuple[RankEstimate, ...]:
    """Compute, communication, exposed communication, idle time and slack of every rank."""
    start, finish, arrival = simulation.start_s, simulation.finish_s, simulation.arrival_s
    on_compute = np.array([s.stream is Stream.COMPUTE and not s.collective for s in program.steps])
    moving = np.array([s.collective for s in program.steps])
    computing = start[on_compute], finish[on_compute]
    spans = computing[1] - computing[0]
    busy = spans.sum(axis=0)
    # A copy of inputs on the compute stream keeps it busy and computes nothing, as in traces.
    copies = np.array([s.name == INPUT_COPY for s in program.steps])[on_compute]
    computed = spans[~copies].sum(axis=0)
    communicating = start[moving], finish[moving]
    exposed = np.maximum(0.0, covered(computing, communicating) - busy)
    idle = np.maximum(0.0, simulation.iteration_time_s - busy)
    # Slack: a rank waits for later ranks while its compute stream idles.
    joined = moving & np.array([s.stream in _EXPOSED for s in program.steps])
    waited = covered(computing, (arrival[joined], start[joined])) - busy
    columns = {
        "rank": np.arange(len(busy)),
        "compute_s": computed,
        "communication_s": covered(communicating),
        "exposed_s": exposed,
        "idle_s": idle,
        "slack_s": np.maximum(0.0, waited),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return tuple(RankEstimate(**dict(zip(columns, row, strict=True))) for row in rows)


def covered(*kinds: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Seconds ``[...]`` that intervals cover, which may overlap; time in several counts once.

    Args:
        kinds: when intervals of each kind start and finish, ``[intervals, ...]`` each.
    """
    start, finish = (np.concatenate(ends) for ends in zip(*kinds, strict=True))
    order = np.argsort(start, axis=0, kind="stable")
    begin = np.take_along_axis(start, order, axis=0)
    end = np.maximum.accumulate(np.take_along_axis(finish, order, axis=0), axis=0)
    begin[1:] = np.maximum(begin[1:], end[:-1])
    return np.asarray(np.maximum(end - begin, 0.0).sum(axis=0))
