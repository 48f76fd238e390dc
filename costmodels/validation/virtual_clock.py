"""Virtual time of a run whose ranks had to share cores.

Each rank's time is the processor time of its own process, as if it owned a core. Collectives join
the clocks: a rank that waits for one continues no earlier than the latest rank issued it. What
other jobs on the machine take away does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ISSUE = "issue"
WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A collective is issued, or its result is waited for, at ``time_s`` of processor time."""

    kind: str
    number: int
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One rank's iteration: events in order and its processor time at the end, both from 0.

    ``network_s`` is the processor time of threads that only move bytes. They may spin while a
    message waits for its receiver, so it is kept apart.
    """

    events: tuple[Event, ...]
    end_s: float
    network_s: float = 0.0


def virtual_time(traces: Sequence[Trace]) -> float:
    """Seconds from the common start until the last rank has finished, without network threads.

    Raises:
        ValueError: ranks issued different collectives, so that one would wait forever.
    """
    late = [0.0] * len(traces)
    position = [0] * len(traces)
    issued: dict[int, dict[int, float]] = {}
    moved = True
    while moved:
        moved = False
        for rank, trace in enumerate(traces):
            before = position[rank]
            late[rank], position[rank] = _advance(
                trace, rank, position[rank], late[rank], issued, len(traces)
            )
            moved = moved or position[rank] > before
    if any(p < len(t.events) for p, t in zip(position, traces, strict=True)):
        msg = "the ranks issued different collectives"
        raise ValueError(msg)
    return max(t.end_s + delay for t, delay in zip(traces, late, strict=True))


def _advance(
    trace: Trace,
    rank: int,
    position: int,
    late: float,
    issued: dict[int, dict[int, float]],
    world_size: int,
) -> tuple[float, int]:
    """Follow one rank until it must wait for a collective that another has not issued."""
    while position < len(trace.events):
        event = trace.events[position]
        times = issued.setdefault(event.number, {})
        if event.kind == ISSUE:
            times[rank] = event.time_s + late
        elif len(times) < world_size:
            break
        else:
            late += max(0.0, max(times.values()) - (event.time_s + late))
        position += 1
    return late, position
