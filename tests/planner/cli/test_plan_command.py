from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.errors import InvalidValueError
from costmodels.units import GIB
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.result import Status
from tests.planner.cli.command_line import Done, FakeApi, Run

FILES = {
    *("plan.json", "report.md", "report.html", "results.csv"),
    *("a2a_matrix.txt", "trace"),
}


@pytest.fixture
def plan(run: Run, workload_file: Path, system_file: Path, fake_api: FakeApi) -> Run:
    """``shardplan plan`` of the small workload on eight ranks."""

    def once(*args: object) -> Done:
        return run("plan", workload_file, "--system", system_file, "--gpus", 8, *args)

    return once


def test_the_headline_comes_first(plan: Run) -> None:
    done = plan()
    assert done.code == 0
    first, second, *_ = done.out.splitlines()
    assert first.startswith("shardplan 0.1 6 tables")
    assert "8 x small_box (2 hosts x 4)" in first
    assert second.startswith("Predicted")
    assert "1.34x as fast as TorchRec's greedy plan" in done.out
    assert "Solver" in done.out
    assert "Wrote" not in done.out


def test_flags_reach_the_planner(plan: Run, fake_api: FakeApi) -> None:
    done = plan(
        *("--strategy", "auto", "--objective", "iteration", "--time-limit", "2min", "--seed", 7),
        *("--global-batch-size", 4096, "--reserve", "2 GiB", "--set", "tables.0.embedding_dim=64"),
    )
    assert done.code == 0, done.err
    assert fake_api.options["strategy"] == "auto"
    assert fake_api.options["time_limit_s"] == 120.0
    assert fake_api.options["seed"] == 7
    assert fake_api.options["progress"] is None
    asked = fake_api.asked
    assert asked is not None
    assert asked.workload.local_batch_size == 512
    assert asked.workload.reserved_bytes == 2 * GIB
    assert asked.workload.tables[0].embedding_dim == 64
    assert asked.topology.world_size == 8


def test_batch_size_per_rank(plan: Run, fake_api: FakeApi) -> None:
    assert plan("--batch-size", "1_024").code == 0
    assert fake_api.asked is not None
    assert fake_api.asked.workload.local_batch_size == 1024


def test_verbose_prints_every_section(plan: Run) -> None:
    out = plan("-v").out
    for title in ("Critical path", "Balance of ranks", "Memory", "Tables", "Where the numbers"):
        assert f"\n{title}" in out


@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_width(plan: Run, monkeypatch: pytest.MonkeyPatch, columns: int, verbose: bool) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = plan(*(["-v"] if verbose else [])).out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= min(columns, 100)
    assert "\x1b" not in out


def test_json_is_pure(plan: Run, tmp_path: Path) -> None:
    done = plan("--json", "-o", tmp_path / "run")
    data = json.loads(done.out)
    assert data["predicted"]["iteration_time_s"] == pytest.approx(3.1e-3)
    assert data["world_size"] == 8
    assert "wrote" in done.err
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == data
    quiet = plan("--json", "-q", "-o", tmp_path / "run")
    assert quiet.err == ""


def test_files_are_written(plan: Run, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    done = plan("-o", folder)
    assert done.code == 0
    assert {path.name for path in folder.iterdir()} == FILES
    assert "plan.json" in done.out
    assert (folder / "report.md").read_text().startswith("# Sharding plan of small\n")
    assert (folder / "results.csv").read_text().startswith("plan,role,rank,stage")
    assert [p.name for p in folder.parent.iterdir()] == ["run"], "no leftovers beside it"


def test_the_same_twice_gives_the_same_bytes(plan: Run, tmp_path: Path) -> None:
    plan("-o", tmp_path / "a")
    plan("-o", tmp_path / "b")
    first, second = (
        {f.relative_to(tmp_path / run): f.read_bytes() for f in (tmp_path / run).rglob("*.*")}
        for run in ("a", "b")
    )
    assert len(first) > len(FILES)
    assert first == second


def test_an_earlier_run_is_overwritten(plan: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan("-o", folder)
    (folder / "results.csv").write_text("old")
    assert plan("-o", folder).code == 0
    assert (folder / "results.csv").read_text() != "old"
    assert {path.name for path in folder.iterdir()} == FILES


def test_an_empty_folder_is_used(plan: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert plan("-o", tmp_path / "run").code == 0


def test_other_files_are_protected(plan: Run, tmp_path: Path, fake_api: FakeApi) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    done = plan("-o", folder)
    assert done.code == 2
    assert "thesis.tex" in done.err
    assert fake_api.asked is None, "refused before the search"
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    assert plan("-o", folder, "--force").code == 0
    assert (folder / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize(
    ("status", "word"),
    [(Status.TIME_LIMIT, "time limit"), (Status.INTERRUPTED, "Ctrl-C")],
)
def test_a_stopped_search_writes_and_exits_4(
    plan: Run, tmp_path: Path, fake_api: FakeApi, status: Status, word: str
) -> None:
    fake_api.status, fake_api.bound = status, 2.9e-3
    done = plan("-o", tmp_path / "run")
    assert done.code == 4
    assert f"stopped by {'the ' if 'time' in word else ''}{word}" in done.err
    assert "gap 6.5 %" in done.out
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["solver"]["status"] == status


@pytest.mark.parametrize("status", [Status.OPTIMAL, Status.GAP, Status.HEURISTIC])
def test_a_search_that_ended_by_itself_exits_0(
    plan: Run, fake_api: FakeApi, status: Status
) -> None:
    fake_api.status = status
    assert plan().code == 0


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (
            InfeasibleError(
                "rank 3 is 12.5 GiB short", shortfall_bytes=12.5 * GIB, advice=("use 16 GPUs",)
            ),
            3,
            "shardplan: error: rank 3 is 12.5 GiB short\n  try: use 16 GPUs\n",
        ),
        (NoPlanFoundError("no plan within 1 s"), 3, "longer --time-limit"),
        (InvalidInputError(["first", "second"]), 2, "error: first\n  second\n"),
        (InvalidValueError("a rule"), 2, "error: a rule\n"),
        (RuntimeError("two\nlines"), 70, "bug: RuntimeError: two lines. Please report"),
        (PermissionError(13, "Permission denied", "x.yaml"), 2, "x.yaml: Permission denied"),
        (OSError("no number"), 2, "no number"),
    ],
)
def test_errors_become_messages_and_codes(
    plan: Run, tmp_path: Path, fake_api: FakeApi, error: Exception, code: int, expected: str
) -> None:
    fake_api.error = error
    for extra in ([], ["--json"]):
        done = plan("-o", tmp_path / "run", *extra)
        assert done.code == code
        assert done.out == ""
        assert expected in done.err
        assert "Traceback" not in done.err
        assert not (tmp_path / "run").exists()


def test_debug_shows_the_traceback(plan: Run, fake_api: FakeApi) -> None:
    fake_api.error = RuntimeError("what")
    done = plan("--debug")
    assert done.code == 70
    assert "Traceback" in done.err


def test_a_second_interrupt_gives_up(plan: Run, fake_api: FakeApi) -> None:
    fake_api.error = KeyboardInterrupt()  # type: ignore[assignment]
    done = plan()
    assert done.code == 130
    assert "Ctrl-C" in done.err


def test_progress_is_drawn_on_a_terminal_only(
    plan: Run, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert plan("-q").code == 0
    assert fake_api.options["progress"] is None


def test_what_the_file_leaves_open_is_said(
    run: Run, tmp_path: Path, system_file: Path, fake_api: FakeApi
) -> None:
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim\nuser,1000,8\nitem,500,8\n")
    args = ("plan", tables, "--system", system_file, "--gpus", 4)
    done = run(*args)
    assert done.code == 0, done.err
    for words in ("no distribution", "no memory.reserve", "no batch size"):
        assert words in done.out
    settled = run(*args, "--reserve", "1 GiB", "--batch-size", 128).out
    assert "no distribution" in settled
    assert "memory.reserve" not in settled
    assert "batch size" not in settled
