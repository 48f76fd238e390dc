"""``shardplan validate intervals``: its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from planner.cli.printing.show import print_rows

if TYPE_CHECKING:
    from planner.validation.intervals import Coverage, PlanPair


def print_coverages(found: Sequence[Coverage]) -> None:
    """One line per family."""
    rows = [
        (
            c.family,
            str(c.rows),
            f"{100 * c.coverage_ratio:.0f} %",
            f"{100 * c.width_ratio:.0f} %",
            _verdict(c),
        )
        for c in found
    ]
    columns = ("measurements never fitted", "rows", "inside", "median width", "80 to 97 %")
    print_rows("Coverage of 90 % intervals", columns, rows)


def print_pairs(pairs: Sequence[PlanPair]) -> None:
    """Plans on one system against each other."""
    rows = [
        (
            p.first,
            p.second,
            f"{p.measured_ratio:.3f}",
            f"{p.predicted_ratio:.3f}",
            f"{100 * p.error_ratio:+.1f} %",
        )
        for p in pairs
    ]
    columns = ("plan of", "against plan of", "measured ratio", "predicted", "error")
    print_rows("Two plans on one system", columns, rows)


def as_json(found: Sequence[Coverage], pairs: Sequence[PlanPair]) -> dict[str, object]:
    """The same as data."""
    return {
        "families": [{**asdict(c), "coverage_ok": c.coverage_ok} for c in found],
        "pairs": [{**asdict(p), "error_ratio": p.error_ratio} for p in pairs],
    }


def _verdict(coverage: Coverage) -> str:
    if not coverage.coverage_ok:
        return "no"
    low_or_high = not 0.80 <= coverage.coverage_ratio <= 0.97
    return f"too few to tell (p = {coverage.chance_ratio:.2f})" if low_or_high else "yes"
