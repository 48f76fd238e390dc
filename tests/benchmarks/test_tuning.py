"""The comparison of ways to choose setups: measured once, replayed, and told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.search import tuning
from costmodels.workload import Pipeline
from planner import load_workload
from planner.tuning import Menu, Pricer


def test_ways_are_replayed_on_a_table_that_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    menu = Menu(
        pipelines=(Pipeline.SPARSE_DIST, Pipeline.NONE),
        batch_sizes=(256,),
        min_column_widths=(4, 32),
    )
    case = tuning.Case(
        name="small",
        goal="cost",
        evaluations=5,
        make=lambda: tuning.on_clusters(
            load_workload("small_demo"), ("h100_sxm", 2), ("a100_80gb_sxm", 2), menu=menu
        ),
    )
    table = tuning.measured(case, tmp_path)
    assert len(table.outcomes) == 8
    assert len(table.floors) == 4
    monkeypatch.setattr(Pricer, "solve", None)
    monkeypatch.setattr(Pricer, "floor", None)
    again = tuning.measured(case, tmp_path)
    assert again.total_s == table.total_s
    monkeypatch.setattr(tuning, "SEEDS", 2)
    monkeypatch.setattr(tuning, "SHARES", (0.5, 2.0))
    told = list(tuning.lines(case, again))
    assert len(told) == 2 + len(tuning.WAYS) + 1
    assert "0.0 % from the best" in told[-1]
    for line in told[2:-1]:
        assert line.rstrip().endswith(("0.0 %", "0.0 % (0.0 .. 0.0)")), line
