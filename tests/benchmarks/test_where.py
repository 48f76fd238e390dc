"""The benchmark of the parts before a search runs every part."""

from __future__ import annotations

import pytest

from benchmarks.search import where


def test_every_part_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    where.run("4x2", "h100_sxm", "linear model")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4x2"
    named = [line[2:16].strip() for line in lines if " MiB peak" in line]
    assert named[0] == "load workload"
    assert {"arithmetic", "list", "space", "linear model", "plan work", "estimate"} <= set(named)
    assert named[-1] == "all"
    assert any("function calls" in line for line in lines), "the part asked for is profiled"


def test_first_plan_has_a_line_with_its_price(capfd: pytest.CaptureFixture[str]) -> None:
    where.first_plans(["4x2"], "h100_sxm", ["drawn"])
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("4x2")
    assert line.count("s CPU") == 3, "start, reading and the first plan"
    assert float(line.split()[-2]) > 0
