"""Compares measured traces with predicted ones, read by the same code, stage by stage."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from planner.errors import InvalidInputError
from planner.trace.kineto import traces
from planner.trace.reading import TraceTimes, times_of, told_wait_s
from planner.trace.stages import DENSE_STAGES, OTHER, STAGES

HOST: Final = "host"
"""What the host does for an iteration; other rows are times of the GPU or of the whole step."""
TOTALS = ("iteration", "compute", "communication", "exposed communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One stage, or a total, on one rank, in seconds per iteration.

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
    pipeline: CostPipeline, plan: Plan, measured: Sequence[TraceTimes]
) -> tuple[TraceRow, ...]:
    """Rows for every rank that has a trace: totals first, and then stages.

    Raises:
        InvalidInputError: two traces are of one rank, or one of a rank that the plan does not have.
    """
    world, by_rank = pipeline.topology.world_size, {t.rank: t for t in measured}
    if len(by_rank) < len(measured):
        message = "two traces are of the same rank; give one file per rank"
        raise InvalidInputError(message)
    strange = [rank for rank in by_rank if rank >= world]
    if strange:
        message = f"a trace is of rank {strange[0]}, and the plan has ranks 0..{world - 1}"
        raise InvalidInputError(message)
    program, _ = pipeline.simulate(plan)
    host_s = sum(np.broadcast_to(step.host_s, (world,)) for step in program.steps)
    rows: list[TraceRow] = []
    for file in traces(pipeline, plan, ranks=by_rank):
        times, document = by_rank[file.rank], json.loads(gzip.decompress(file.data))
        rows += _rows(times, times_of(document, Path(file.name)), _waits_s(document))
        if times.host_s is not None:
            told_s = float(np.asarray(host_s)[file.rank])
            host = TraceRow(rank=file.rank, kind=HOST, measured_s=times.host_s, predicted_s=told_s)
            rows.append(host)
    return tuple(rows)


def _rows(measured: TraceTimes, predicted: TraceTimes, waits_s: float) -> list[TraceRow]:
    rank, told_s = measured.rank, measured.told_waits_s
    fields = ("iteration_s", "compute_s", "communication_s", "exposed_s")
    rows = [
        TraceRow(
            rank=rank,
            kind=kind,
            measured_s=getattr(measured, field),
            predicted_s=getattr(predicted, field),
            wait_s=waits_s if waits else 0.0,
            measured_wait_s=told_s if waits else 0.0,
        )
        for kind, field, waits in zip(TOTALS, fields, (False, False, True, True), strict=True)
    ]
    expected = dict(predicted.kinds_s)
    if not measured.tells_stages:
        dense_s = sum(expected.pop(stage, 0.0) for stage in DENSE_STAGES)
        expected[OTHER] = expected.get(OTHER, 0.0) + dense_s
    for kind in STAGES:
        m, p = measured.kinds_s.get(kind, 0.0), expected.get(kind, 0.0)
        if m or p:
            rows.append(TraceRow(rank=rank, kind=kind, measured_s=m, predicted_s=p))
    return rows


def _waits_s(document: dict[str, list[dict[str, object]]]) -> float:
    """Seconds that the predicted rank waits for later ones in collectives."""
    return sum(told_wait_s(event) for event in document["traceEvents"])
