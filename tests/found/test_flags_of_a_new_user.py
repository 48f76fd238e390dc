"""Flags that had no effect, outputs that destroyed inputs, and messages that named no value."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planner.cli.run import run
from planner.errors import InvalidInputError
from planner.io.documents import configs_folder
from planner.trace.reading import times_of


@pytest.mark.parametrize("kind", ["dot", "cat"])
def test_the_interaction_of_dlrm_is_a_word(kind: str, tmp_path: Path) -> None:
    """Both words of --arch-interaction-op were refused as no instance of a class."""
    path = tmp_path / "w.yaml"
    command = ["dlrm_s_pytorch.py", f"--arch-interaction-op={kind}"]
    assert run(["import", "dlrm", "-o", str(path), "--", *command]) == 0
    assert f"interaction: {kind}" in path.read_text()


def test_rows_of_a_calibration_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "g.jsonl"
    shutil.copyfile(configs_folder() / "published" / "gpu_h200.jsonl", rows)
    before, system = rows.read_bytes(), ["--system", "h200_sxm"]
    assert run(["calibrate", "--from", str(rows), *system, "-o", str(rows)]) == 2
    assert "would be lost" in capsys.readouterr().err
    new = str(tmp_path / "new")
    assert run(["calibrate", "--rows", new, *system, "-o", new]) == 2
    assert "one file" in capsys.readouterr().err
    assert rows.read_bytes() == before


def test_force_without_an_output_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "small_demo", "--system", "h100_sxm", "--force"]) == 2
    assert "--output" in capsys.readouterr().err


def test_each_strategy_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "small_demo", "--strategy", "x"]) == 2
    assert capsys.readouterr().err.count("auto") == 1


def test_a_long_name_of_a_column_is_shortened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "l.csv"
    path.write_text(f"name,rows,dim,{'x' * 5000}\na,9,8,1\n")
    assert run(["check", str(path)]) == 2
    assert len(capsys.readouterr().err) < 700


def test_profile_names_the_output_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.tsv").write_text("\t".join(["1", *["3"] * 13, *["0a1b"] * 26]) + "\n")
    assert run(["profile", str(tmp_path / "c.tsv"), "-o", "/proc/x.json"]) == 2
    assert "--output /proc/x.json: cannot be written" in capsys.readouterr().err


def test_arithmetic_that_has_no_whole_number(capsys: pytest.CaptureFixture[str]) -> None:
    command = "dlrm_main.py --embedding_dim 128 --batch_size $((65536 * 1e309))"
    assert run(["import", "dlrm", "--", command]) == 2
    assert "1e309" in capsys.readouterr().err


def test_steps_of_a_trace_that_take_no_time(tmp_path: Path) -> None:
    """Marks that all start at once left an iteration of 0 s, by which a share was divided."""
    marks = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": 100.0, "dur": 9.0}
        for i in range(9)
    ]
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 101.0, "dur": 2.0, "args": {}}
    path = tmp_path / "t.json"
    with pytest.raises(InvalidInputError, match="take no time"):
        times_of({"traceEvents": [*marks, kernel]}, path)
