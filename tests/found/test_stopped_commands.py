"""Commands that are stopped print and write what they have found by then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner.cli.commands.validate as validate_module
from costmodels.cpu.exchange import STAGES
from planner.cli.interrupt import EXIT_STOPPED, Interrupted, StopOnInterrupt
from planner.cli.run import run
from planner.study import Study
from planner.validation.tasks import Outcome

DATA = Path(__file__).parent / "data"
SIZE = ("study", DATA / "small.yaml", "--system", "h100_sxm", "--evaluations", 50, "--workers", 1)


def stops_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes in the search after ``count`` sizes."""
    seen: list[StopOnInterrupt] = []
    enter, record = StopOnInterrupt.__enter__, Study._record
    done: list[int] = []

    def entered(stop: StopOnInterrupt) -> StopOnInterrupt:
        seen.append(stop)
        return enter(stop)

    def recorded(study: Study, number: int, result: Any) -> None:
        record(study, number, result)
        done.append(number)
        if len(done) == count:
            seen[-1].stopped_by = "SIGTERM"

    monkeypatch.setattr(StopOnInterrupt, "__enter__", entered)
    monkeypatch.setattr(Study, "_record", recorded)


def test_the_smallest_cluster_tells_what_it_has_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It printed nothing, and had no -o."""
    stops_after(1, monkeypatch)
    target = ("--smallest-for", "20M", "--max-gpus", 64, "-o", tmp_path / "out", "--json")
    assert run([str(a) for a in (*SIZE, *target)]) == EXIT_STOPPED
    told = capsys.readouterr()
    assert "stopped by SIGTERM after 1 searches" in told.err
    assert len(json.loads(told.out)["setups"]) == 1
    assert (tmp_path / "out" / "plan.json").exists()


def test_the_smallest_cluster_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = ("--smallest-for", 1000, "-o", tmp_path / "out", "--json")
    assert run([str(a) for a in (*SIZE, *target)]) == 0
    answer = json.loads(capsys.readouterr().out)["answers"][0]["answer"]
    assert answer["gpus"] == json.loads((tmp_path / "out" / "plan.json").read_text())["world_size"]


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
        batch_size_per_rank=1024,
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
    monkeypatch.setattr("planner.cli.inputs.require_torchrec", lambda _: None)
    arguments = ["validate", "torchrec", "--system", DATA / "slow.yaml", "--tasks", 9]
    assert run([str(a) for a in (*arguments, "-o", tmp_path / "runs")]) == EXIT_STOPPED
    told = capsys.readouterr()
    assert "stopped by SIGTERM after 2 of 9 models" in told.err
    assert told.out
    assert list((tmp_path / "runs").iterdir())
