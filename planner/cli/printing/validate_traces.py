"""What ``validate trace`` and ``fit`` print of traces: the pace of a rank, stages and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from costmodels import units
from planner.cli.console import stdout_console
from planner.cli.printing.show import print_rows
from planner.report.base import Fact, format_share
from planner.report.terminal import print_facts
from planner.trace.kineto import HOST, TOTALS, TraceRow
from planner.trace.reading import TraceTimes

_ROUNDING_S: Final = 1e-8
"""Two times that differ by less are the same in a file that is rounded to nanoseconds."""


def as_json(traces: Sequence[TraceTimes], rows: Sequence[TraceRow]) -> dict[str, Any]:
    """One mapping per rank and stage, and one per rank with its kernels."""
    names = ("rank", "device", "iterations", "iteration_s", "busy_s", "idle_ratio", "host_s")
    ranks = [{name: getattr(t, name) for name in (*names, "host_bound", "groups")} for t in traces]
    return {
        "rows": [{**asdict(row), "error_ratio": row.error_ratio} for row in rows],
        "ranks": [{**rank, "groups": [asdict(g) for g in rank["groups"]]} for rank in ranks],
    }


def print_traces(traces: Sequence[TraceTimes], rows: Sequence[TraceRow], *, name: str = "") -> None:
    """Per rank: whether the host sets the pace, what is off most, and a table of its kernels."""
    for times in sorted(traces, key=lambda t: t.rank):
        own = [row for row in rows if row.rank == times.rank]
        steps = "one step" if times.iterations == 1 else f"median of {times.iterations} steps"
        title = ", ".join(filter(None, (f"Rank {times.rank}", times.device, steps, name)))
        columns = ("per iteration", "calls?", "measured", "predicted", "waits?", "error", "ratio")
        print_rows(title, columns, [line for row in own for line in _lines(row, times)])
        facts = [Fact(label="Pace", parts=(_pace(times),))]
        if off := _off(own):
            facts.append(Fact(label="Off most", parts=off))
        print_facts(stdout_console(), tuple(facts))


def _lines(row: TraceRow, times: TraceTimes) -> list[tuple[str, ...]]:
    """A stage, and below it its kernels by kind, where it has more than one kind."""
    kinds = [group for group in times.groups if group.stage == row.kind]
    lines: list[tuple[str, ...]] = [
        (
            row.kind,
            f"{sum(group.num_calls for group in kinds):g}" if kinds else "",
            units.format_time(row.measured_s),
            units.format_time(row.predicted_s),
            units.format_time(row.wait_s) if row.wait_s else "",
            "" if row.error_ratio is None else f"{100 * row.error_ratio:+.1f} %",
            _ratio(row),
        )
    ]
    if len(kinds) > 1:
        for group in sorted(kinds, key=lambda g: -g.time_s):
            time = units.format_time(group.time_s)
            lines.append((f"- {group.group}", f"{group.num_calls:g}", time, "", "", "", ""))
    return lines


def _ratio(row: TraceRow) -> str:
    """Measured over predicted, both with waits: what a factor on this stage would be."""
    predicted_s = row.predicted_s + row.wait_s
    known = row.measured_s > 0 and predicted_s > 0
    return f"{(row.measured_s + row.measured_wait_s) / predicted_s:.2f}" if known else ""


def _pace(times: TraceTimes) -> str:
    idle = format_share(times.idle_ratio)
    busy, step = units.format_time(times.busy_s), units.format_time(times.iteration_s)
    if times.host_s is None:
        return f"the GPU works {busy} of a step of {step}, and is idle {idle} of it"
    host = units.format_time(times.host_s)
    if times.host_bound:
        return (
            f"host-bound: the host takes {host} for a step whose kernels take {busy}; the GPU is "
            f"idle {idle} of {step}"
        )
    return (
        f"GPU-bound: kernels take {busy} of a step of {step}, which the host issues in {host}; the "
        f"GPU is idle {idle} of it"
    )


def _off(rows: Sequence[TraceRow]) -> tuple[str, ...]:
    """The stage of the GPU whose times lie furthest apart, and the host if it is off by more."""
    stages = [row for row in rows if row.kind not in (*TOTALS, HOST)]
    worst = max(stages, key=_gap_s)
    host = [row for row in rows if row.kind == HOST and _gap_s(row) > _gap_s(worst)]
    return tuple(
        f"{row.kind}, measured {units.format_time(row.measured_s)}, "
        f"predicted {units.format_time(row.predicted_s)}"
        for row in (*host, worst)
        if _gap_s(row) > _ROUNDING_S
    )


def _gap_s(row: TraceRow) -> float:
    return abs(row.measured_s + row.measured_wait_s - row.predicted_s - row.wait_s)
