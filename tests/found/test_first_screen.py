"""What ``plan`` prints first: verdict, time and what widens its interval, memory, what to do."""

from __future__ import annotations

import pytest

from planner.cli.run import run

ASKED = ("plan", "small_demo", "--system", "h100_sxm", "--gpus", "16", "--evaluations", "200")


def printed(capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    assert run([*ASKED, *more]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_the_first_screen_has_about_ten_lines_that_say_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys)
    labels = [line.split()[0] for line in lines if line[:1].strip()]
    assert labels[:3] == ["shardplan", "Verdict", "Predicted"]
    assert {"Bottleneck", "Memory", "Next"} <= set(labels)
    assert not {"Solver", "Searched", "Inputs", "Sharding"} & set(labels)
    assert len([line for line in lines if not line.startswith("warning")]) <= 10
    told = " ".join(" ".join(lines).split())
    assert "90 % interval; least certain is what calls cost the host, which was not" in told
    assert "'shardplan calibrate --host' narrows the interval" in told


def test_the_rest_is_printed_with_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    labels = {line.split()[0] for line in printed(capsys, "-v") if line[:1].strip()}
    assert {"Verdict", "Solver", "Searched", "Inputs", "Sharding", "Speed-up"} <= labels
