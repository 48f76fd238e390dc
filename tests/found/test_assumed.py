"""What a list of tables does not say: one default by every way, and said with what it is worth."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from planner.cli.run import run
from planner.io import load_workload_file

ASKED = ("--system", "h100_sxm", "--gpus", "8", "--evaluations", "20")


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """60 tables, half of them without a pooling factor, as pandas writes them."""
    rows = [
        {
            "name": f"t{i}",
            "num_embeddings": 1000 * (i + 1) ** 2,
            "embedding_dim": 64,
            "pooling_factor": None if i % 2 else 20 + i,
        }
        for i in range(60)
    ]
    path = tmp_path / "tables.csv"
    pd.DataFrame(rows).to_csv(path)
    return path


def plan(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> dict[str, object]:
    assert run(["plan", str(path), *ASKED, "--json", *more]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_list_has_one_step_by_both_ways(
    listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was 10.0 ms through ``import tables``, with fp16 on the wire, and 15.6 ms directly."""
    made = tmp_path / "tables.yaml"
    assert run(["import", "tables", str(made), "--list", str(listed)]) == 0
    capsys.readouterr()
    one, other = plan(capsys, listed), plan(capsys, made)
    assert one["predicted"] == other["predicted"]
    assert one["assumed"] == other["assumed"]
    assert load_workload_file(made).workload == load_workload_file(listed).workload


def test_empty_pooling_cells_are_said_with_what_the_mean_would_give(
    listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(capsys, listed, "-o", str(tmp_path / "run"))
    rows = {row["key"]: row for row in found["assumed"]}  # type: ignore[attr-defined]
    pooling = rows["tables.pooling_factor"]
    assert (pooling["value"], pooling["num_tables"]) == ("1", 30)
    assert pooling["other"] == "49, the mean of the others"
    assert pooling["time_s"] > found["predicted"]["iteration_time_s"]  # type: ignore[index]
    assert rows["tables.distribution"]["num_tables"] == 60
    page = (tmp_path / "run" / "report.html").read_text()
    assert "49, the mean of the others" in page


def test_the_terminal_has_one_line_of_it(
    listed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["plan", str(listed), *ASKED]) == 0
    out = capsys.readouterr().out
    assert "Assumed       10 values, chiefly pooling factor 1 of 30 tables: " in out


def test_what_a_user_gives_is_not_assumed(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--batch-size", "512", "--reserve", "2 GiB", "--set", "training.output_dtype=fp16")
    keys = {row["key"] for row in plan(capsys, listed, *given)["assumed"]}  # type: ignore[attr-defined]
    said = {"training.batch_size_per_rank", "memory.reserve", "training.output_dtype"}
    assert not keys & said
    assert {"dense", "tables.pooling_factor"} <= keys


def test_another_value_in_the_file_is_not_assumed(listed: Path, tmp_path: Path) -> None:
    made = tmp_path / "tables.yaml"
    assert run(["import", "tables", str(made), "--list", str(listed)]) == 0
    text = made.read_text()
    made.write_text(text.replace("per_rank: 4_096", "per_rank: 512").replace("[512, ", "[256, "))
    assert not {"training.batch_size_per_rank", "dense"} & set(load_workload_file(made).assumed)


def test_every_command_that_reads_a_workload_says_what_it_assumes(
    listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``study``, ``check``, ``explain`` and ``compare`` said nothing; ``plan`` has the words."""
    folder = tmp_path / "run"
    assert run(["plan", str(listed), *ASKED, "-o", str(folder)]) == 0
    out = capsys.readouterr().out
    (line,) = [text for text in out.splitlines() if text.startswith("Assumed")]
    words = " ".join(line.split())
    made = str(folder / "plan.json")
    for asked in (
        ["explain", str(listed), made, "--table", "t1"],
        ["compare", str(listed), made, made],
    ):
        assert run(asked) == 0
        assert words in " ".join(capsys.readouterr().out.split())
    effort = ["--trials", "1", "--evaluations", "50", "--workers", "1"]
    assert run(["study", str(listed), "--system", "h100_sxm", "--gpus", "8", *effort]) == 0
    assert "Assumed 9 values, chiefly pooling factor 1 of 30 tables: " in " ".join(
        capsys.readouterr().out.split()
    )
    assert run(["check", str(listed)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Assumed 10 values: pooling factor 1 of 30 tables, index distribution uniform of" in told
    assert run(["check", str(listed), "--json"]) == 0
    keys = {row["key"] for row in json.loads(capsys.readouterr().out)["assumed"]}
    assert {"tables.pooling_factor", "dense", "memory.reserve"} <= keys
