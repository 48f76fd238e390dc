"""Errors of FBGEMM's lookups as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from planner.cli.printing.show import print_rows
from planner.validation.lookups import BlockOutcome


def print_errors(found: Sequence[BlockOutcome]) -> None:
    """One table for each way of leaving calls out."""
    columns = ("calls", "direction", "n", "MAPE", "worst", "inside 90 %")
    for way in dict.fromkeys(e.way for e in found):
        rows = [
            (
                e.block,
                e.direction,
                str(e.num_points),
                f"{100 * e.mape_ratio:.1f} %",
                f"{100 * e.worst_ratio:.0f} %",
                f"{100 * e.coverage_ratio:.0f} %",
            )
            for e in found
            if e.way == way
        ]
        print_rows(f"FBGEMM's lookups: {way}", columns, rows)


def as_json(found: Sequence[BlockOutcome]) -> dict[str, object]:
    """The same."""
    return {"errors": [asdict(e) for e in found]}
