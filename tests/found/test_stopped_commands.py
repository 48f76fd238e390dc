"""Commands that are stopped print and write what they have found by then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner.cli.commands.validate as validate_module
from costmodels.cpu.run_stages import STAGES
from planner import sweep
from planner.cli.interrupt import EXIT_STOPPED, Interrupted, StopOnInterrupt
from planner.cli.run import run
from planner.errors import StoppedError
from planner.sweep.outcome import PointResult
from planner.sweep.runner import Task, solve_beside
from planner.validation.tasks import Outcome

DATA = Path(__file__).parent / "data"
SIZE = ("size", DATA / "small.yaml", "--system", "h100_sxm", "--evaluations", 50)


def stops_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes in the search after ``count`` sizes."""
    done: list[PointResult] = []
    seen: list[StopOnInterrupt] = []
    enter = StopOnInterrupt.__enter__

    def entered(stop: StopOnInterrupt) -> StopOnInterrupt:
        seen.append(stop)
        return enter(stop)

    def searched(task: Task, found: Any, **options: Any) -> PointResult:
        if len(done) == count:
            seen[-1].stopped_by = "SIGTERM"
            raise StoppedError("stopped")
        done.append(solve_beside(task, found, **options))
        return done[-1]

    monkeypatch.setattr(StopOnInterrupt, "__enter__", entered)
    monkeypatch.setattr("planner.sweep.runner.solve_beside", searched)


@pytest.mark.parametrize(("count", "words"), [(0, "stopped before any"), (2, "not enough: best")])
def test_size_tells_what_it_has_tried(
    count: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """It printed nothing, and had no -o."""
    stops_after(count, monkeypatch)
    target = ("--target-qps", "999M", "--max-gpus", 64, "-o", tmp_path / "size.json")
    assert run([str(a) for a in (*SIZE, *target)]) == EXIT_STOPPED
    told = capsys.readouterr()
    assert words in told.out
    assert "stopped by SIGTERM after 0 of 1 systems" in told.err
    written = json.loads((tmp_path / "size.json").read_text())["systems"][0]
    assert written["is_cut"]
    assert [t["gpus"] for t in written["tried"]] == [8, 16][:count]


def test_size_writes_its_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "size.json"
    assert run([str(a) for a in (*SIZE, "--target-qps", 1000, "-o", path, "--json")]) == 0
    assert json.loads(path.read_text()) == json.loads(capsys.readouterr().out)
    assert sweep.smallest is not None


def test_a_second_search_that_is_stopped_leaves_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def solved(task: object, **options: object) -> object:
        calls.append(task)
        if len(calls) == 2:
            raise StoppedError("stopped")
        return "first"

    class Again:
        def again(self, first: object, found: object) -> object:
            return "again"

    monkeypatch.setattr("planner.sweep.runner.solve", solved)
    assert solve_beside(Again(), ()) == "first"  # type: ignore[arg-type, comparison-overlap]


def outcome(task: int, number: int) -> Outcome:
    """A run of one plan of a model; predicted and measured times agree."""
    values: dict[str, Any] = dict.fromkeys(
        ("predicted_s", "low_s", "high_s", "measured_s", "wall_s"), 0.01 * (1 + number)
    )
    values |= dict.fromkeys(("stages_predicted_s", "stages_measured_s"), (0.0,) * len(STAGES))
    values |= dict.fromkeys(("spread_ratio", "foreign_ratio", "network_measured_s"), 0.0)
    return Outcome(
        task=task,
        skew="random",
        num_tables=6,
        local_batch_size=1024,
        origin="random",
        kinds="TTTTTT",
        iterations_inside_ratio=1.0,
        bytes_model_bytes=float(1 + number),
        torchrec_rating_s=float(1 + number),
        pace_ratio=None,
        **values,
    )


def test_validate_torchrec_keeps_the_models_that_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Stopped after 9 minutes, it said nothing of those that were done."""

    def trained(*asked: Any) -> list[Outcome]:
        asked[-1].extend(outcome(t, i) for t in range(2) for i in range(3))
        raise Interrupted("SIGTERM")

    monkeypatch.setattr(validate_module, "_train", trained)
    monkeypatch.setattr("planner.cli.real_runs.require_torchrec", lambda _: None)
    arguments = ["validate", "torchrec", "--system", DATA / "slow.yaml", "--tasks", 9]
    assert run([str(a) for a in (*arguments, "-o", tmp_path / "runs")]) == EXIT_STOPPED
    told = capsys.readouterr()
    assert "stopped by SIGTERM after 2 of 9 models" in told.err
    assert told.out
    assert list((tmp_path / "runs").iterdir())
