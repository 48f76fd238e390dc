"""The iteration of one plan by the closed form, with what every step waited for.

The times are those of :mod:`costmodels.iteration._events` (tests check that), but they are computed
as arrays over ranks, so that thousands of ranks take little longer than a few. What a step waited
for is found only when it is asked for. If a step waited for several things that ended at the same
moment, the host thread counts as the cause before any step, and a later step before an earlier one.
If several ranks arrived last at a collective, the cause is the one that arrived later at the
collective before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.iteration._closed_form import schedule
from costmodels.iteration._events import Node, Simulation
from costmodels.iteration.base import Program, Step, require_times


def traced(program: Program, num_ranks: int) -> Simulation:
    """Times and causes of one plan; every array of the program must broadcast to ``[R]``.

    Raises:
        InvalidValueError: a cost model has given a step a time that is below 0 or not finite.
    """
    _require_step_times(program.steps)
    steps, shape = program.steps, (num_ranks,)
    found = schedule(program, shape)
    start, finish = (
        np.stack([np.broadcast_to(x, shape) for x in times])
        for times in (found.start_s, found.finish_s)
    )
    issued, host_s = _issued(steps, finish)
    waits = [_waits_for(steps, i) for i in range(len(steps))]
    arrival = np.stack(
        [
            np.maximum(issued[i], finish[before].max(axis=0)) if before else issued[i]
            for i, before in enumerate(waits)
        ]
    )
    end, last = float(finish.max()), None
    if end >= host_s:
        step, rank = divmod(int(finish.argmax()), num_ranks)
        last = rank, step
    return Simulation(
        arrival_s=arrival,
        start_s=start,
        finish_s=finish,
        iteration_time_s=float(found.iteration_time_s),
        released_by=Causes(steps, waits, issued, arrival, finish),
        last=last,
    )


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


@final
class Causes(Mapping[Node, Node | None]):
    """What each (rank, step) waited for last; None if it was the host thread, or nothing."""

    def __init__(
        self,
        steps: tuple[Step, ...],
        waits: list[list[int]],
        issued: FloatArray,
        arrival: FloatArray,
        finish: FloatArray,
    ) -> None:
        """Keep the arrays ``[steps, R]``; ``waits[i]`` lists the steps that step i waits for."""
        self._waits = waits
        self._issued, self._finish = issued, finish
        self._latest = _latest(steps, arrival)

    def __getitem__(self, node: Node) -> Node | None:
        """What one (rank, step) waited for."""
        rank, index = node
        latest = self._latest.get(index, rank)
        if latest != rank:
            return latest, index
        before = self._waits[index]
        if not before:
            return None
        ends = self._finish[before, rank]
        at = len(ends) - 1 - int(ends[::-1].argmax())
        return (rank, before[at]) if ends[at] > self._issued[index, rank] else None

    def __iter__(self) -> Iterator[Node]:
        """Every (rank, step)."""
        num_steps, num_ranks = self._finish.shape
        return ((rank, index) for rank in range(num_ranks) for index in range(num_steps))

    def __len__(self) -> int:
        """Steps times ranks."""
        return int(self._finish.size)


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


def _waits_for(steps: tuple[Step, ...], index: int) -> list[int]:
    """The steps that a step waits for: the one before it on its stream, and those it names."""
    step = steps[index]
    before = (i for i in range(index) if steps[i].stream is step.stream and steps[i].is_present)
    earlier = list(before)[-1:] if step.is_present else []
    return sorted({*step.after, *earlier})


def _issued(steps: tuple[Step, ...], finish: FloatArray) -> tuple[FloatArray, float]:
    """When the host has issued each step, ``[steps, R]``, and when it has issued all of them."""
    host = np.zeros(finish.shape[1])
    issued = np.zeros_like(finish)
    for i, step in enumerate(steps):
        host = issued[i] = host + step.host_s
        if step.blocks_host:
            host = np.maximum(host, finish[i])
    return issued, float(host.max())
