"""Coverage of intervals on measurements that nothing was fitted to."""

from __future__ import annotations

import functools
import json

import pytest
from click.testing import CliRunner

from planner.cli.commands.validate import command
from planner.cli.console import Settings
from planner.validation import intervals
from planner.validation.intervals import WANTED, coverages, published_pairs


def test_nine_in_ten_are_inside() -> None:
    found = {c.family: c for c in coverages()}
    assert all(c.coverage_ok for c in found.values() if c.counted)
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
