"""``shardplan profile`` as people type it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from planner.cli.commands import profile
from planner.cli.console import Settings
from planner.cli.run import run
from planner.profiling.stats import load_stats
from tests.planner.profiling.samples import write_npy, write_tsv, zipf_ids


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ids = [zipf_ids(2_000, 1.1, 0.0, 5_000, seed) for seed in range(2)]
    return write_npy(tmp_path / "day_0_sparse.npy", np.stack([*ids, ids[0] % 2], axis=1))


def shardplan(*args: object) -> int:
    return run([str(arg) for arg in args])


def test_the_table_of_results(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shardplan("profile", day, "--batch-sizes", "512") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 100
    assert "5,000 samples" in lines[0]
    header = next(line for line in lines if "hot 1%" in line).split()
    assert header[:3] == ["table", "rows", "seen"]
    row = next(line for line in lines if line.split()[:1] == ["cat_0"]).split()
    table = load_stats(Path("stats.json")).tables["cat_0"]
    assert row[1] == f"{table.num_embeddings:,}"
    assert row[2] == f"{table.num_unique_rows:,}"
    assert row[-1] == "yes"
    assert lines[-1].split() == ["Wrote", "stats.json"]


def test_json_is_the_file(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shardplan("profile", day, "-o", "s.json", "--json", "--features", "cat_2") == 0
    out = capsys.readouterr()
    assert json.loads(out.out) == json.loads(Path("s.json").read_text())
    assert "wrote s.json" in out.err


def test_hashed_categories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[list[int | None]] = [[None, *(i % 7 + j for j in range(25))] for i in range(50)]
    path = write_tsv(tmp_path / "train.txt", rows)
    output = tmp_path / "s.json"
    common = ["profile", path, "-o", output, "--features", "cat_3"]
    assert shardplan(*common) == 0
    assert "Ids are hashes" in capsys.readouterr().out
    assert shardplan(*common, "--max-ind-range", "5", "--empty", "skip", "--jobs", "2") == 0
    assert "Ids are hashes" not in capsys.readouterr().out
    assert load_stats(output).tables["cat_3"].num_embeddings == 5


def test_selected_samples(day: Path) -> None:
    assert shardplan("profile", day, "--rows", "100", "-q") == 0
    assert load_stats(Path("stats.json")).source.num_samples == 100
    assert shardplan("profile", day, "--sample-rows", "100", "--memory", "1 MiB") == 0
    assert load_stats(Path("stats.json")).source.num_samples == 100


BAD_FLAGS = [
    (["none.npy"], "none.npy: no such file"),
    (["{day}", "--rows", "1", "--sample-rows", "1"], "exclude each other"),
    (["{day}", "--rows", "0"], "0"),
    (["{day}", "--batch-sizes", "512,x"], "not a list of batch sizes"),
    (["{day}", "--batch-sizes", "0"], "not a list of batch sizes"),
    (["{day}", "--memory", "5"], "has no unit"),
    (["{day}", "--format", "csv"], "csv"),
    (["{day}", "--table-map", "cat_9=x"], "the data has no cat_9"),
    (["{day}", "--features", "cat_9"], "the data has no cat_9"),
    (["{day}", "--resume"], "nothing to resume"),
    (["{day}", "--format", "npz"], "not a whole .npz file"),
    ([], "DATA"),
]


@pytest.mark.parametrize(("args", "message"), BAD_FLAGS)
def test_bad_flags(
    day: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    assert shardplan("profile", *(arg.format(day=day) for arg in args)) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert message in " ".join(out.err.split())
    assert [path.name for path in Path().iterdir()] == [day.name]


def test_ctrl_c_says_how_to_continue(
    day: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.profiling.profiler.profile_files", stop)
    assert shardplan("profile", day) == 4
    assert "stopped by Ctrl-C; run the same command again to continue" in capsys.readouterr().err


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with profile._progress(Settings()) as show:
        assert show is not None
        show("reading", 1.0, 2.0)
        show("reading", 2.0, 2.0)
    with profile._progress(Settings(quiet=True)) as show:
        assert show is None


def test_help_is_light(capsys: pytest.CaptureFixture[str]) -> None:
    assert shardplan("profile", "--help") == 0
    assert "multi-hot" in capsys.readouterr().out
