"""Tables and files of ``validate torchrec``, from made-up runs."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest

from costmodels.cpu.exchange import STAGES
from planner.cli import printing as show
from planner.cli.console import Settings, console_of, status_line
from planner.cli.inputs import require_torchrec
from planner.errors import InvalidInputError
from planner.report.terminal import print_sections
from planner.validation.tasks import Outcome


def outcome(task: int, predicted: float, measured: float, skew: str = "random") -> Outcome:
    return Outcome(
        task=task,
        skew=skew,
        num_tables=3,
        batch_size_per_rank=1024,
        origin="random",
        kinds="TRD",
        predicted_s=predicted,
        low_s=0.9 * predicted,
        high_s=1.1 * predicted,
        measured_s=measured,
        spread_ratio=0.01,
        wall_s=2 * measured,
        foreign_ratio=0.7,
        stages_predicted_s=(predicted / 8,) * 8,
        stages_measured_s=(measured / 8,) * 8,
        network_measured_s=0.0,
        iterations_inside_ratio=0.75,
        bytes_model_bytes=1e6 / measured,
        torchrec_rating_s=1.0,
    )


RUNS = [
    outcome(0, 0.011, 0.010),
    outcome(0, 0.019, 0.020),
    outcome(1, 0.03, 0.03),
    outcome(1, 0.05, 0.04),
]


def test_scores_stand_beside_simpler_models(capsys: pytest.CaptureFixture[str]) -> None:
    found = show.rankings(RUNS)
    assert list(found) == ["shardplan", "bytes", "torchrec"]
    assert found["shardplan"]["kendall_tau_ratio"] == 1.0
    assert found["bytes"]["kendall_tau_ratio"] == -1.0
    assert found["shardplan"]["mean_regret_ratio"] == 0.0
    print_sections(console_of(sys.stdout), (show.scores_section(found, RUNS),))
    out = capsys.readouterr().out
    assert "Predicted against trained" in out
    assert "shardplan" in out


def test_skew_compares_plan_by_plan(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [outcome(0, 0.02, 0.02, "0"), outcome(0, 0.01, 0.011, "1.2")]
    ((name, measured, predicted, _),) = show.pairs_section(runs, "Ratios").rows
    assert name == "random TRD"
    assert measured == pytest.approx(0.55)
    assert predicted == pytest.approx(0.5)
    print_sections(console_of(sys.stdout), (show.pairs_section(runs, "Ratios"),))
    assert "55.0 %" in capsys.readouterr().out


def test_files_hold_every_number(tmp_path: Path) -> None:
    runs, models = show.write_files(tmp_path, RUNS, show.rankings(RUNS))
    rows = list(csv.DictReader(io.StringIO(runs.read_text())))
    assert len(rows) == 4
    plain = {f.name for f in fields(Outcome) if not f.name.startswith("stages")}
    stages = {f"{s}_{kind}" for s in STAGES for kind in ("predicted_s", "measured_s")}
    assert set(rows[0]) == plain | stages
    assert float(rows[0]["update_measured_s"]) == pytest.approx(0.010 / 8)
    assert float(rows[0]["predicted_s"]) == pytest.approx(0.011)
    scores = list(csv.DictReader(io.StringIO(models.read_text())))
    assert [r["model"] for r in scores] == ["shardplan", "bytes", "torchrec"]
    assert float(scores[0]["within_5_ratio"]) == 1.0


def test_a_busy_machine_is_mentioned() -> None:
    assert "0.7 cores" in (show.foreign_note(RUNS) or "")
    assert show.foreign_note([]) is None


def test_what_a_slower_machine_adds_to_the_errors_is_told() -> None:
    slower = [
        replace(run, pace_ratio=pace, measured_s=run.predicted_s * pace)
        for run, pace in zip(RUNS, (0.9, 1.0, 1.1, 1.25), strict=True)
    ]
    note = show.pace_note(slower) or ""
    assert "0.90 to 1.25 times as long" in note
    assert "miss by 0.0 %" in note
    assert "hold 100.0 % of the plans" in note
    assert show.pace_note([*slower, RUNS[0]]) is None
    assert show.pace_note([]) is None


def test_a_missing_torch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.cli.inputs.find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match="pip install 'shardplan\\[torchrec\\]'"):
        require_torchrec("calibrate")


def test_a_quiet_status_line_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    quiet = click.Context(click.Command(None), obj=Settings(quiet=True))
    with quiet, status_line("working") as show_status:
        show_status("on it")
    assert capsys.readouterr() == ("", "")


def test_intervals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(console_of(sys.stdout), (show.scores_section({}, RUNS),))
    out = " ".join(capsys.readouterr().out.split())
    assert "hold 75.0 % of the plans' times and 75.0 % of all iterations" in out
