"""``shardplan profile`` as people type it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import click
import numpy as np
import pytest

from costmodels.estimates import IterationEstimate
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from planner.cli.console import Settings, status_line
from planner.cli.interrupt import signals_interrupt
from planner.cli.run import run
from planner.io import load_problem, load_workload_file
from planner.problem import PlanningProblem
from planner.profiling.statistics import Indices
from planner.profiling.stats import load_stats
from tests.planner.profiling.samples import write_npy, write_tsv, zipf_ids

WORKLOAD = """
name: one
training: {batch_size_per_rank: 8192}
tables:
  - name: cat_0
    num_embeddings: 2_000_000
    embedding_dim: 64
    pooling_factor: 1
"""


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


def test_columns_that_hold_no_indices_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column of ids with missing values is written as floating point by pandas."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"x": [1, 2], "id": [3.0, None], "label": [0, 1]}), path)
    asked = ("profile", path, "-o", tmp_path / "stats.json", "--jobs", 1)
    assert shardplan(*asked) == 0
    assert "2 columns are left out (id: double, label: int64)" in capsys.readouterr().err
    assert load_stats(tmp_path / "stats.json").source.left_out == ["id: double", "label: int64"]
    assert shardplan(*asked, "--features", "id") == 2
    told = capsys.readouterr().err
    assert "the data has no id; it has x, and without indices id: double, label: int64" in told
    assert shardplan(*asked, "--features", "x") == 0
    assert "left out" not in capsys.readouterr().err


def test_json_is_the_file(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shardplan("profile", day, "-o", "s.json", "--json", "--features", "cat_2") == 0
    out = capsys.readouterr()
    assert json.loads(out.out) == json.loads(Path("s.json").read_text())
    assert "wrote s.json" in out.err


def test_too_few_samples_are_said_and_widen_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remark of ``profile`` is that of ``plan`` too, whose interval gets wider."""
    ids = np.random.default_rng(0).integers(0, 2_000_000, 4_000)
    data = write_npy(tmp_path / "day_0_sparse.npy", ids.reshape(-1, 1))
    stats, workload = tmp_path / "stats.json", tmp_path / "w.yaml"
    mapping = tmp_path / "map.yaml"
    mapping.write_text(WORKLOAD)
    assert shardplan("profile", data, "-o", stats, "--table-map", mapping) == 0
    told = " ".join(capsys.readouterr().err.split())
    found = load_stats(stats).tables["cat_0"]
    assert found.hot_share is not None
    assert found.hot_share.low_ratio < 0.012 < 0.05 < found.hot_share.high_ratio
    needed = found.hot_share.samples_needed
    assert needed is not None
    assert needed > 4_000
    assert f"about {needed:,} samples would tell" in told
    assert found.hottest_rows["0.01"] == pytest.approx(0.01)
    problems = []
    for law in ("{stats: stats.json}", "{kind: uniform}"):
        workload.write_text(WORKLOAD + f"    distribution: {law}\n")
        problems.append(load_problem(workload, "a100_80gb_sxm", gpus=2))
    file = load_workload_file(tmp_path / "w.yaml")
    assert not any("too few samples" in w for w in file.warnings)
    workload.write_text(WORKLOAD + "    distribution: {stats: stats.json}\n")
    warnings = load_workload_file(workload).warnings
    assert any(f"about {needed:,} samples would tell" in w for w in warnings)
    measured, known = (_cached_estimate(problem) for problem in problems)
    assert measured.time.low_s < 0.99 * known.time.low_s
    assert measured.time.high_s >= known.time.high_s * (1 - 1e-9)
    assert measured.time.time_s == pytest.approx(known.time.time_s, rel=0.02)
    assert shardplan("profile", data, "-o", stats, "--max-ind-range", "20") == 0
    assert "too few samples" not in capsys.readouterr().err
    folded = load_stats(stats).tables["cat_0"].hot_share
    assert folded is not None
    assert folded.samples_needed == 0


def _cached_estimate(problem: PlanningProblem) -> IterationEstimate:
    """The table whole on rank 0, in host memory behind a cache of a tenth of its rows."""
    option = ShardingOption(
        table="cat_0",
        sharding_type=ShardingType.TABLE_WISE,
        kernel=ComputeKernel.FUSED_UVM_CACHING,
        column_widths=(64,),
        cache_load_factor_ratio=0.1,
    )
    placement = place(option, 2_000_000, (0,), world_size=2, local_world_size=2)
    pipeline = CostPipeline(problem.workload, problem.topology)
    return pipeline.estimate(Plan(placements=(placement,)))


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


def test_selected_samples(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shardplan("profile", day, "--rows", "100", "-q") == 0
    assert load_stats(Path("stats.json")).source.num_samples == 100
    assert shardplan("profile", day, "--sample-rows", "100", "--memory", "1 MiB") == 0
    assert load_stats(Path("stats.json")).source.num_samples == 100
    assert "--memory: DuckDB was given 256 MiB" in capsys.readouterr().err


def test_a_sample_that_cannot_be_spread_is_said(
    day: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = write_tsv(tmp_path / "packed.gz", [[i + 1] * 26 for i in range(300)])
    words = "packed.gz: can only be read from the start"
    for data, rows, said in ((packed, "5", True), (packed, "9000", False), (day, "100", False)):
        flags = ("--sample-rows", rows, "--features", "cat_0", "-o", tmp_path / "s.json")
        assert shardplan("profile", data, *flags) == 0
        assert (words in capsys.readouterr().err) is said


def test_a_flag_for_other_data_says_that_it_changed_nothing(
    day: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--empty is about Criteo files: there are none"
    for flags, said in ((("--empty", "skip"), True), ((), False)):
        assert shardplan("profile", day, *flags) == 0
        assert (words in capsys.readouterr().err) is said


BAD_FLAGS = [
    (["none.npy"], "none.npy: no such file"),
    (["{day}", "--rows", "1", "--sample-rows", "1"], "exclude each other"),
    (["{day}", "--rows", "0"], "0"),
    (["{day}", "--batch-sizes", "512,x"], "'x' is not a whole number from 1 to"),
    (["{day}", "--batch-sizes", "0"], "'0' is not a whole number from 1 to"),
    (["{day}", "-o", "."], "is a folder"),
    (["{day}", "-o", "{day}/s.json"], "is a file, not a folder"),
    (["{day}", "--memory", "5"], "has no unit"),
    (["{day}", "--format", "csv"], "csv"),
    (["{day}", "--table-map", "cat_9=x"], "the data has no cat_9"),
    (["{day}", "--features", "cat_9"], "the data has no cat_9"),
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


def test_ctrl_c_says_that_nothing_was_written(
    day: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on")

    monkeypatch.setattr("planner.profiling.profiler.profile_files", stop)
    assert shardplan("profile", day) == 4
    assert "stopped by Ctrl-C; nothing was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_signal_ends_the_counting(
    day: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    word: str,
) -> None:
    """DuckDB makes a RuntimeError of what a handler raises in the middle of a query."""
    slow = "SELECT count(*) FROM (SELECT i * 7919 % 100000007 AS j FROM range(10000000000) t(i))"

    def count(indices: Indices, *args: object) -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        indices._run(slow)

    monkeypatch.setattr(Indices, "count", count)
    with signals_interrupt():
        assert shardplan("profile", day, "--jobs", "1") == 4
    assert f"stopped by {word}; nothing was written" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == [day.name]


def test_progress_is_drawn_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for is_quiet in (False, True):
        command = click.Context(click.Command(None), obj=Settings(quiet=is_quiet))
        with command, status_line("working") as show:
            show("reading 50%")
            show("reading 100%")
        assert ("working: reading 100%" in capsys.readouterr().err) is not is_quiet


def test_help_is_light(capsys: pytest.CaptureFixture[str]) -> None:
    assert shardplan("profile", "--help") == 0
    assert "multi-hot" in capsys.readouterr().out
