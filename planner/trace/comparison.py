"""Compares measured traces with predicted ones, read by the same code, kind by kind."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from planner.errors import InvalidInputError
from planner.trace.kineto import traces
from planner.trace.reading import (
    COLLECTIVES,
    KINDS,
    OTHER,
    TraceTimes,
    read_trace,
    times_of,
    told_wait_s,
)

TOTALS = ("iteration", "compute", "communication", "exposed communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One kind of work on one rank, in seconds per iteration.

    ``wait_s`` is how long this rank waits for later ranks in such a collective, as predicted; a
    measured kernel runs during this time. If the measured file has the waits itself, as traces of
    this project do, they are in ``measured_wait_s``.
    """

    rank: int
    kind: str
    measured_s: float
    predicted_s: float
    wait_s: float = 0.0
    measured_wait_s: float = 0.0

    @property
    def error_ratio(self) -> float | None:
        """(predicted - measured) / measured; None if nothing was measured."""
        measured_s = self.measured_s + self.measured_wait_s
        return (self.predicted_s + self.wait_s) / measured_s - 1.0 if self.measured_s > 0 else None


def compare_traces(
    pipeline: CostPipeline, plan: Plan, paths: tuple[Path, ...]
) -> tuple[TraceRow, ...]:
    """Rows for every rank that has a file: totals first, and then kinds of kernels.

    Raises:
        InvalidInputError: a file is not a trace, or is of a rank that the plan does not have.
    """
    measured = {t.rank: (t, path) for path in paths for t in (read_trace(path),)}
    if len(measured) < len(paths):
        message = "two traces are of the same rank; give one file per rank"
        raise InvalidInputError(message)
    world = pipeline.topology.world_size
    strange = [f"{path}: rank {rank}" for rank, (_, path) in measured.items() if rank >= world]
    if strange:
        message = f"{strange[0]} is outside the plan's 0..{world - 1}"
        raise InvalidInputError(message)
    rows: list[TraceRow] = []
    for file in traces(pipeline, plan):
        if file.rank in measured:
            document = json.loads(gzip.decompress(file.data))
            predicted = times_of(document, Path(file.name))
            times = measured[file.rank][0]
            rows += _rows(times, predicted, times.told_waits_s, _waits_s(document))
    return tuple(rows)


def _rows(
    measured: TraceTimes, predicted: TraceTimes, told_s: float, waits_s: float
) -> list[TraceRow]:
    rank = measured.rank
    totals = (
        (measured.iteration_s, predicted.iteration_s, 0.0, 0.0),
        (measured.compute_s, predicted.compute_s, 0.0, 0.0),
        (measured.communication_s, predicted.communication_s, told_s, waits_s),
        (measured.exposed_s, predicted.exposed_s, told_s, waits_s),
    )
    rows = [
        TraceRow(rank=rank, kind=kind, measured_s=m, predicted_s=p, wait_s=w, measured_wait_s=told)
        for kind, (m, p, told, w) in zip(TOTALS, totals, strict=True)
    ]
    for kind in (*(k for k, _ in KINDS), OTHER):
        m, p = measured.kinds_s.get(kind, 0.0), predicted.kinds_s.get(kind, 0.0)
        if m or p:
            rows.append(TraceRow(rank=rank, kind=kind, measured_s=m, predicted_s=p))
    return rows


def _waits_s(document: dict[str, list[dict[str, object]]]) -> float:
    """Seconds that the predicted rank waits for later ones in collectives."""
    return sum(told_wait_s(event) for event in document["traceEvents"])


__all__ = ["COLLECTIVES", "TraceRow", "compare_traces"]
