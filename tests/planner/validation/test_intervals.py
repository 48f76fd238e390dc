"""Coverage of intervals on measurements that nothing was fitted to."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli.commands.validate import command
from planner.cli.console import Settings
from planner.errors import InvalidInputError
from planner.validation import intervals
from planner.validation.intervals import WANTED, coverages, published_pairs

HEADER = "task,predicted_s,low_s,high_s,measured_s\n"


def test_nine_in_ten_are_inside(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text(HEADER + "0,1,0.9,1.1,1.05\n" * 9 + "0,1,0.9,1.1,1.2\n")
    found = {c.family: c for c in coverages(runs)}
    assert all(c.coverage_ok for c in found.values() if c.counted)
    assert found["iteration: runs of this machine"].coverage_ratio == pytest.approx(0.9)
    assert found["iteration: runs of this machine"].width_ratio == pytest.approx(1.1 / 0.9 - 1)
    low, high = WANTED
    total = found["all but other harnesses and clusters"]
    assert low <= total.coverage_ratio <= high
    assert total.rows == sum(c.rows for c in found.values() if c.counted)
    assert found["lookup: H100"].rows == 19
    assert found["iteration: published systems"].rows == 29


def test_errors_of_plans_on_one_system_cancel() -> None:
    pairs = published_pairs()
    assert pairs
    assert max(abs(p.error_ratio) for p in pairs) < 0.025


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("task,measured_s\n0,1\n", "'low_s' is missing"),
        (HEADER, "no rows"),
        (HEADER + "0,1,0.9,1.1,fast\n", "fast"),
        (HEADER + "0,1,0,1.1,1\n", "above 0"),
    ],
)
def test_bad_files_of_runs_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text(text)
    with pytest.raises(InvalidInputError, match=complaint):
        coverages(runs)


def test_the_command_prints_and_gives_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "coverages", functools.cache(intervals.coverages))
    monkeypatch.setattr(intervals, "published_pairs", functools.cache(intervals.published_pairs))
    runner = CliRunner()
    shown = runner.invoke(command, ["intervals"], obj=Settings(), standalone_mode=False)
    assert shown.exception is None
    assert "Coverage of 90 % intervals" in shown.output
    data = runner.invoke(command, ["intervals", "--json"], obj=Settings(), standalone_mode=False)
    found = json.loads(data.output)
    assert {"families", "pairs"} == set(found)
    assert all(f["coverage_ok"] for f in found["families"] if f["counted"])
