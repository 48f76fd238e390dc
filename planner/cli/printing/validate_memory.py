"""Device memory of measured steps beside the ledger's, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from planner.cli.console import say
from planner.cli.printing.show import print_rows
from planner.validation.memory import MeasuredMemory, summarize

_COLUMNS: Final = ("step", "tables GB", "beside them: measured", "ledger", "error", "of the sum")


def print_steps(steps: Sequence[MeasuredMemory]) -> None:
    """Every step: what is beside the tables, measured and by the ledger, in GB of 10^9 bytes."""
    rows = [
        (
            f"{s.group} {s.name}",
            f"{s.tables_bytes / 1e9:.3f}",
            f"{(s.measured_bytes - s.tables_bytes) / 1e9:.3f}",
            f"{(s.predicted_bytes - s.tables_bytes) / 1e9:.3f}",
            f"{100 * s.rest_error_ratio:+.1f} %",
            f"{100 * s.error_ratio:+.1f} %",
        )
        for s in steps
    ]
    print_rows("Peak of device memory on one H200", _COLUMNS, rows)


def print_errors(steps: Sequence[MeasuredMemory]) -> None:
    """One line for each group of steps."""
    for name, e in summarize(steps).items():
        adds = e.reserved_median_ratio - 1.0
        allocator = f"   allocator adds {100 * adds:.0f} %" if e.reserved_median_ratio else ""
        say(
            f"{name:16}  n {e.num_steps:2}"
            f"   beside tables: median {100 * e.rest_median_ratio:.1f} %"
            f"   worst {100 * e.rest_worst_ratio:+.1f} %"
            f"   sum short by at most {100 * e.most_short_ratio:.1f} %{allocator}"
        )


def as_json(steps: Sequence[MeasuredMemory]) -> dict[str, object]:
    """The same."""
    return {
        "steps": [asdict(s) for s in steps],
        "errors": {name: asdict(errors) for name, errors in summarize(steps).items()},
    }
