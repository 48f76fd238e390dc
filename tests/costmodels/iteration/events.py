"""The iteration by event simulation: the reference that the closed form must be equal to.

Each rank has a host thread, and streams that run their steps in order. Events are kept in a heap by
their time. A collective starts on all ranks when the last rank has arrived at it. One plan is
simulated at a time. The simulation also records what each step waited for, which gives the critical
path.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.iteration.base import Program, Step, Stream
from costmodels.iteration.timing import Node

_Lane = Stream | int
"""The queue in which a step waits: its stream, or a queue of its own (numbered as the step) if the
plan does not have the step, which then holds up no other step."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What the closed form says of one plan, too (:class:`costmodels.iteration.timing.Simulation`).

    ``released_by`` gives the (rank, step) that a (rank, step) waited for last.
    """

    arrival_s: FloatArray
    start_s: FloatArray
    finish_s: FloatArray
    iteration_time_s: float
    released_by: Callable[[Node], Node | None]
    last: Node | None


@dataclass
class _Rank:
    """The state of one rank.

    Attributes:
        issued: how many steps the host has issued; also the next step to issue.
        host_s: the moment up to which the host thread is busy.
        queues: the steps that were issued and have not finished, in order.
        busy: the queues whose first step has arrived.
        finished: when each step finished.
        waits_for: the step that the host thread waits for; None if it does not wait.
    """

    issued: int = 0
    host_s: float = 0.0
    queues: dict[_Lane, list[int]] = field(default_factory=lambda: {s: [] for s in Stream})
    busy: set[_Lane] = field(default_factory=set)
    finished: dict[int, float] = field(default_factory=dict)
    waits_for: int | None = None


def simulate(program: Program, num_ranks: int) -> Simulation:
    """Simulate one plan; every array of the program must broadcast to ``[R]``."""
    first = _Simulator(program.steps, _durations(program.steps, num_ranks), num_ranks).run()
    if program.overlap_slowdown_ratio > 0:
        slowed = _with_overlap(program, first, num_ranks)
        first = _Simulator(program.steps, slowed, num_ranks).run()
    time_s = max(first.iteration_time_s, program.floor_s)
    return Simulation(
        arrival_s=first.arrival_s,
        start_s=first.start_s,
        finish_s=first.finish_s,
        iteration_time_s=time_s,
        released_by=first.released_by,
        last=first.last,
    )


def _durations(steps: tuple[Step, ...], num_ranks: int) -> FloatArray:
    """Durations ``[steps, R]``, without the slow-down by communication."""
    return np.stack([np.broadcast_to(s.duration_s, (num_ranks,)) for s in steps])


def _with_overlap(program: Program, first: Simulation, num_ranks: int) -> FloatArray:
    """Durations ``[steps, R]``, with compute slowed down by the communication beside it.

    ``first`` is a simulation without the slow-down, which tells what ran beside what.
    """
    slowed = np.array(_durations(program.steps, num_ranks))
    for rank in range(num_ranks):
        moving = [
            (first.start_s[j, rank], first.finish_s[j, rank])
            for j, s in enumerate(program.steps)
            if s.collective
        ]
        for i, step in enumerate(program.steps):
            if step.stream is Stream.COMPUTE:
                a, b = first.start_s[i, rank], first.finish_s[i, rank]
                beside = sum(max(0.0, min(b, y) - max(a, x)) for x, y in moving)
                slowed[i, rank] += program.overlap_slowdown_ratio * beside
    return slowed


class _Simulator:
    """One run of the event loop, with durations ``[steps, R]``."""

    def __init__(self, steps: tuple[Step, ...], durations: FloatArray, num_ranks: int) -> None:
        """Start at time 0 with no step issued."""
        self.steps = steps
        self.durations = durations
        self.ranks = [_Rank() for _ in range(num_ranks)]
        self.host_cost = np.stack([np.broadcast_to(s.host_s, (num_ranks,)) for s in steps])
        self.joined: dict[int, dict[int, float]] = {}
        self.heap: list[tuple[float, int, int, str, int]] = []
        self.sequence = 0
        self.arrival = np.zeros((len(steps), num_ranks))
        self.start = np.zeros((len(steps), num_ranks))
        self.finish = np.zeros((len(steps), num_ranks))
        self.released_by: dict[Node, Node | None] = {}
        self.releaser: dict[Node, Node | None] = {}

    def run(self) -> Simulation:
        """Handle all events; the iteration ends when every rank has finished every step."""
        for rank in range(len(self.ranks)):
            self._issue(rank)
        while self.heap:
            time_s, _, rank, kind, index = heapq.heappop(self.heap)
            if kind == "issued":
                self._enqueue(rank, index, time_s)
            else:
                self._finished(rank, index, time_s)
        host_s = max(r.host_s for r in self.ranks)
        end = float(self.finish.max(initial=0.0))
        last: Node | None = None
        if end >= host_s and self.finish.size:
            latest = divmod(int(self.finish.argmax()), self.finish.shape[1])
            last = (latest[1], latest[0])
        return Simulation(
            arrival_s=self.arrival,
            start_s=self.start,
            finish_s=self.finish,
            iteration_time_s=max(end, host_s),
            released_by=self.released_by.get,
            last=last,
        )

    def _push(self, time_s: float, rank: int, kind: str, index: int) -> None:
        """Plan an event: step ``index`` is "issued" or "finished" on a rank.

        Events of the same time are handled in the order in which they were planned.
        """
        self.sequence += 1
        heapq.heappush(self.heap, (time_s, self.sequence, rank, kind, index))

    def _issue(self, rank: int) -> None:
        """The host of a rank issues its next step."""
        state = self.ranks[rank]
        if state.issued >= len(self.steps):
            return
        index = state.issued
        state.issued += 1
        state.host_s += float(self.host_cost[index, rank])
        self._push(state.host_s, rank, "issued", index)

    def _enqueue(self, rank: int, index: int, time_s: float) -> None:
        """A step was issued: it enters its queue. The host goes on unless the step blocks it."""
        state, step = self.ranks[rank], self.steps[index]
        state.queues.setdefault(self._lane(index), []).append(index)
        if step.blocks_host:
            state.waits_for = index
        self._advance(rank, self._lane(index), time_s, None)
        if not step.blocks_host:
            self._issue(rank)

    def _lane(self, index: int) -> _Lane:
        """The queue of a step."""
        return self.steps[index].stream if self.steps[index].is_present else index

    def _advance(self, rank: int, lane: _Lane, time_s: float, releaser: Node | None) -> None:
        """Let the first step of a queue arrive, if nothing of the rank itself holds it back.

        Args:
            rank: the rank.
            lane: the queue.
            time_s: the present moment.
            releaser: the (rank, step) that has just finished; None if a step was issued.
        """
        state = self.ranks[rank]
        if lane in state.busy or not state.queues[lane]:
            return
        index = state.queues[lane][0]
        step = self.steps[index]
        if any(i not in state.finished for i in step.after):
            return
        state.busy.add(lane)
        self.releaser[rank, index] = releaser
        self.arrival[index, rank] = time_s
        if step.collective and step.is_present:
            self._join(rank, index, time_s)
        else:
            self._start(rank, index, time_s, releaser)

    def _join(self, rank: int, index: int, time_s: float) -> None:
        """A rank arrives at a collective, which starts on all ranks if it is the last one."""
        arrived = self.joined.setdefault(index, {})
        arrived[rank] = time_s
        if len(arrived) < len(self.ranks):
            return
        for member in arrived:
            held_by = self.releaser[rank, index] if member == rank else (rank, index)
            self._start(member, index, time_s, held_by)

    def _start(self, rank: int, index: int, time_s: float, releaser: Node | None) -> None:
        """Start a step on a rank; ``releaser`` is the (rank, step) that it waited for last."""
        self.start[index, rank] = time_s
        self.released_by[rank, index] = releaser
        self._push(time_s + float(self.durations[index, rank]), rank, "finished", index)

    def _finished(self, rank: int, index: int, time_s: float) -> None:
        """A step has finished: other steps of the rank may arrive, and its host may go on."""
        state, lane = self.ranks[rank], self._lane(index)
        self.finish[index, rank] = time_s
        state.finished[index] = time_s
        state.queues[lane].pop(0)
        state.busy.remove(lane)
        if state.waits_for == index:
            state.waits_for = None
            state.host_s = max(state.host_s, time_s)
            self._issue(rank)
        for waiting in list(state.queues):
            self._advance(rank, waiting, time_s, (rank, index))
