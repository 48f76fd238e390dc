"""The iteration time in closed form, for many plans at once.

Steps of a stream run in order, and all ranks run the same program. So all finish times follow from
one pass over the steps. A step starts when its stream is free, when the host has issued it, and
when the steps have finished that it depends on; a collective also waits for the latest rank. The
step finishes after its duration.

Communication slows compute down that runs beside it. This is one correction: after a first pass,
each compute step gets longer by the slow-down ratio times the seconds of communication that ran
beside it, and a second pass gives the times. Tests check that they are equal to those of the event
simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.iteration.base import Program, Step, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Start and finish of every step, ``[..., R]`` each; time of the iteration, ``[...]``."""

    start_s: tuple[FloatArray, ...]
    finish_s: tuple[FloatArray, ...]
    iteration_time_s: FloatArray


def differing_ranks(program: Program, num_ranks: int) -> IntArray:
    """Ranks that differ from each other in some time of a program of one plan.

    Every other rank has the same times as one of them, so that the iteration can be computed with
    these ranks alone (:func:`on_ranks`).
    """
    columns = [
        np.broadcast_to(values, (num_ranks,))
        for step in program.steps
        for values in (step.duration_s, step.host_s)
        if np.shape(values)[-1] == num_ranks
    ]
    if not columns:
        return np.zeros(1, dtype=np.int64)
    _, first = np.unique(np.stack(columns), axis=1, return_index=True)
    return np.sort(first)


def on_ranks(program: Program, ranks: IntArray, num_ranks: int) -> Program:
    """The program of some ranks only, out of ``num_ranks``.

    It takes as long as the whole program if every other rank has the times of one of these.
    """
    if len(ranks) == num_ranks:
        return program

    def chosen(values: FloatArray) -> FloatArray:
        """The values of the chosen ranks; a single value stands for all ranks."""
        return values[..., ranks] if values.shape[-1] == num_ranks else values

    steps = (
        replace(step, duration_s=chosen(step.duration_s), host_s=chosen(step.host_s))
        for step in program.steps
    )
    return replace(program, steps=tuple(steps))


def schedule(program: Program, shape: tuple[int, ...]) -> Schedule:
    """Start and finish of all steps, for plans and ranks of ``shape`` = ``(..., R)``."""
    durations = [step.duration_s for step in program.steps]
    first = _run(program.steps, durations, shape)
    if program.overlap_slowdown_ratio <= 0:
        return _floored(first, program.floor_s)
    slowed = _slowed(program, durations, first)
    return _floored(_run(program.steps, slowed, shape), program.floor_s)


def _run(steps: tuple[Step, ...], durations: list[FloatArray], shape: tuple[int, ...]) -> Schedule:
    """One pass over the steps; no compute step is slowed down by communication beside it."""
    zero = np.zeros(shape)
    # ``host`` and ``streams`` hold the moments at which the host and each stream are free again.
    host: FloatArray = zero
    streams: dict[Stream, FloatArray] = dict.fromkeys(Stream, zero)
    starts: list[FloatArray] = []
    finishes: list[FloatArray] = []
    end: FloatArray = zero
    for step, duration in zip(steps, durations, strict=True):
        host = free = host + step.host_s
        for i in step.after:
            free = np.maximum(free, finishes[i])
        stream = streams[step.stream]
        ready = np.maximum(stream, free)
        if step.collective:
            ready = ready.max(axis=-1, keepdims=True) + zero
        if step.present is not None:
            ready = np.where(step.present, ready, free)
        finish = ready + duration
        streams[step.stream] = (
            finish if step.present is None else np.where(step.present, finish, stream)
        )
        if step.blocks_host:
            host = np.maximum(host, finish)
        starts.append(ready)
        finishes.append(finish)
        end = np.maximum(end, finish)
    end = np.maximum(end, host)
    return Schedule(
        start_s=tuple(starts), finish_s=tuple(finishes), iteration_time_s=end.max(axis=-1)
    )


def _slowed(program: Program, durations: list[FloatArray], first: Schedule) -> list[FloatArray]:
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


def _floored(result: Schedule, floor_s: float) -> Schedule:
    """The schedule with an iteration of at least ``floor_s``."""
    if floor_s <= 0:
        return result
    return Schedule(
        start_s=result.start_s,
        finish_s=result.finish_s,
        iteration_time_s=np.maximum(result.iteration_time_s, floor_s),
    )
