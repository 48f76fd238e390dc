"""What ``validate trace`` prints."""

from __future__ import annotations

from dataclasses import asdict

from costmodels import units
from planner.cli.printing.show import print_rows
from planner.trace.comparison import TraceRow


def as_json(rows: tuple[TraceRow, ...]) -> dict[str, object]:
    """One mapping per rank and kind."""
    return {"rows": [{**asdict(row), "error_ratio": row.error_ratio} for row in rows]}


def print_traces(rows: tuple[TraceRow, ...]) -> None:
    """A table per rank."""
    columns = ("per iteration", "measured", "predicted", "waits", "error")
    for rank in sorted({row.rank for row in rows}):
        texts = [
            (
                row.kind,
                units.format_time(row.measured_s),
                units.format_time(row.predicted_s),
                units.format_time(row.wait_s) if row.wait_s else "",
                "" if row.error_ratio is None else f"{100 * row.error_ratio:+.1f} %",
            )
            for row in rows
            if row.rank == rank
        ]
        print_rows(f"Rank {rank}", columns, texts)
