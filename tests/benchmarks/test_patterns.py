"""``benchmarks.search.patterns``: the line that tells plan from bound."""

from __future__ import annotations

from benchmarks.search.patterns import outcome


def test_the_row_says_how_far_each_bound_is_below_the_plan() -> None:
    row = outcome("3x2", 1.0, 5.0)
    plan, known, proven = (
        float(row[f"{name}_ms"]) for name in ("plan", "search_bound", "pattern_bound")
    )
    assert 0 < known <= plan * (1 + 1e-9)
    assert known * (1 - 1e-6) <= proven <= plan * (1 + 1e-9)
