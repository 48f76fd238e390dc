from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.errors import InvalidValueError
from costmodels.units import GIB
from planner.cli.commands.plan import unmet
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.support.status import Status
from tests.planner.cli.command_line import Done, FakeApi, Run
from tests.planner.report.report_samples import make_result

FILES = {"plan.json", "report.html", "trace"}


@pytest.fixture
def plan(run: Run, workload_file: Path, system_file: Path, fake_api: FakeApi) -> Run:
    """``shardplan plan`` of the small workload on eight ranks."""

    def once(*args: object) -> Done:
        return run("plan", workload_file, "--system", system_file, "--gpus", 8, *args)

    return once


def test_the_headline_comes_first(plan: Run) -> None:
    done = plan()
    assert done.code == 0
    first, second, third, fourth, *_ = done.out.splitlines()
    assert first.startswith("shardplan 0.1 6 tables")
    assert "8 x small_box (2 hosts x 4)" in first
    assert second.startswith("Verdict       1.34x as fast as TorchRec's own plan")
    assert third.strip().startswith("proven optimal, gap 0 %")
    assert fourth.startswith("Predicted")
    assert "Wrote" not in done.out
    assert not {"Solver", "Searched"} & {line.split()[0] for line in done.out.splitlines()}


def test_flags_reach_the_planner(plan: Run, fake_api: FakeApi) -> None:
    done = plan(
        *("--strategy", "auto", "--objective", "iteration", "--time-limit", "2min", "--seed", 7),
        *("--evaluations", "1_000"),
        *("--global-batch-size", 4096, "--reserve", "2 GiB", "--set", "tables.0.embedding_dim=64"),
    )
    assert done.code == 0, done.err
    assert fake_api.search.strategy == "auto"
    assert fake_api.search.time_limit_s == 120.0
    assert fake_api.search.seed == 7
    assert fake_api.search.max_evaluations == 1000
    asked = fake_api.asked
    assert asked is not None
    assert asked.workload.batch_size_per_rank == 512
    assert asked.workload.reserved_bytes == 2 * GIB
    assert asked.workload.tables[0].embedding_dim == 64
    assert asked.topology.world_size == 8


def test_batch_size_per_rank(plan: Run, fake_api: FakeApi) -> None:
    assert plan("--batch-size", "1_024").code == 0
    assert fake_api.search.time_limit_s is None
    assert fake_api.search.max_evaluations is None
    assert fake_api.asked is not None
    assert fake_api.asked.workload.batch_size_per_rank == 1024


def test_verbose_prints_every_section(plan: Run) -> None:
    out = plan("-v").out
    for title in ("Critical path", "Balance of ranks", "Memory", "Tables", "Sources of numbers"):
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
    (folder / "report.html").write_text("old")
    (folder / "reshard.json").write_text("{}")  # of a run with --from
    assert plan("-o", folder).code == 0
    assert (folder / "report.html").read_text() != "old"
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
    ("signals", "word"),
    [
        ((signal.SIGINT,), "Ctrl-C"),
        ((signal.SIGTERM,), "SIGTERM"),
        ((signal.SIGTERM, signal.SIGTERM), "SIGTERM"),
    ],
)
def test_a_stopped_search_writes_and_exits_4(
    plan: Run, tmp_path: Path, fake_api: FakeApi, signals: tuple[int, ...], word: str
) -> None:
    fake_api.signals, fake_api.bound = signals, 2.9e-3
    done = plan("-o", tmp_path / "run", "--require-gap", "1%")
    assert done.code == 4
    assert f"stopped by {word}: this is the best plan so far" in done.err
    assert "gap 6.5 %" in done.out
    values = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert values["solver"]["status"] == Status.INTERRUPTED


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.INTERRUPTED])
def test_a_plan_exits_0_however_the_search_ended(
    plan: Run, tmp_path: Path, fake_api: FakeApi, status: Status
) -> None:
    fake_api.status, fake_api.bound = status, 2.9e-3
    done = plan("-o", tmp_path / "run", "--time-limit", "2s")
    assert done.code == 0
    assert (tmp_path / "run" / "plan.json").exists()
    cut = status is Status.TIME_LIMIT
    assert ("--time-limit 2 s cut the search" in done.err) is cut
    assert ("time limit" in done.out) is cut
    assert "cut the search" not in plan().err, "there is no clock"


def test_a_second_interrupt_gives_up(plan: Run, tmp_path: Path, fake_api: FakeApi) -> None:
    fake_api.signals = (signal.SIGINT, signal.SIGINT)
    done = plan("-o", tmp_path / "run")
    assert done.code == 130
    assert "stopped by Ctrl-C twice" in done.err
    assert not list(tmp_path.glob("*run*")), "neither the folder nor a half of it"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_before_the_first_plan(
    plan: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """While files are read, or options listed: at once, and nothing is left behind."""

    def read(*_: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("planner.cli.inputs.load_problem", read)
    done = plan("-o", tmp_path / "run")
    assert done.code == 4
    word = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"stopped by {word}; no plan was found before that, so nothing is written" in done.err
    assert not list(tmp_path.glob("*run*"))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_the_plan_is_written(
    plan: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_api: FakeApi, number: int
) -> None:
    """It is written whole."""
    from planner.report import run_files

    write = run_files.write_run

    def slowly(*args: Any) -> Any:
        os.kill(os.getpid(), number)
        return write(*args)

    monkeypatch.setattr(run_files, "write_run", slowly)
    done = plan("-o", tmp_path / "run")
    assert done.code == 4
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    assert "Predicted" in done.out


def test_a_report_too_large_for_the_memory_takes_no_plan_away(
    plan: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_api: FakeApi
) -> None:
    """The traffic of 65,536 ranks has 32 GiB."""
    from planner.report import run_files

    def short(*args: object) -> str:
        message = "Unable to allocate 32.0 GiB"
        raise MemoryError(message)

    monkeypatch.setattr(run_files, "render_page", short)
    done = plan("-o", tmp_path / "run")
    assert done.code == 2
    assert "error: out of memory: Unable to allocate 32.0 GiB; use fewer ranks" in done.err
    assert "Predicted" in done.out
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------ --require-gap


@pytest.mark.parametrize(
    ("bound", "limit", "code"),
    [(2.9e-3, "6%", 1), (2.9e-3, "7%", 0), (3.1e-3, "0%", 0), (3.099e-3, "0%", 1), (0.0, "99%", 1)],
)
def test_a_wide_gap_is_exit_1_where_a_narrow_one_is_asked(
    plan: Run, tmp_path: Path, fake_api: FakeApi, bound: float, limit: str, code: int
) -> None:
    fake_api.status, fake_api.bound = Status.GAP, bound
    done = plan("-o", tmp_path / "run", "--require-gap", limit, "-q")
    assert done.code == code
    assert len(done.err.splitlines()) == code, "one line, or none"
    assert (f"is wider than --require-gap {limit}: give it more --evaluations" in done.err) is bool(
        code
    )
    assert (tmp_path / "run" / "plan.json").exists(), "the plan is written all the same"
    assert plan().code == 0, "nobody asked"


@pytest.mark.parametrize(
    ("status", "strategy", "advice"),
    [
        (Status.HEURISTIC, "random", "--strategy auto proves a bound"),
        (Status.TIME_LIMIT, "random", "--strategy auto proves a bound"),
        (Status.TIME_LIMIT, "auto", "a longer --time-limit"),
        (Status.GAP, "auto", "more --evaluations than the"),
    ],
)
def test_an_unknown_gap_is_not_a_narrow_one(status: Status, strategy: str, advice: str) -> None:
    solver = replace(make_result().solver, status=status, strategy=strategy, bound=None)
    text = unmet(solver, 0.5)
    assert text is not None
    assert text.startswith("the gap is unknown, so --require-gap 50% is not met")
    assert advice in text


@pytest.mark.parametrize(
    ("bound", "words"),
    [(0.94766, "the gap of 5.2 % is wider"), (0.9496, "the gap of 5 % is a little wider")],
)
def test_a_wide_gap_has_the_digits_of_other_pages(bound: float, words: str) -> None:
    solver = replace(make_result().solver, status=Status.GAP, value=1.0, bound=bound)
    assert str(unmet(solver, 0.05)).startswith(f"{words} than --require-gap 5%: ")


def test_a_gap_that_no_search_closes_is_said() -> None:
    solver = replace(make_result().solver, status=Status.GAP, value=1.0, bound=0.9)
    assert "launches" not in str(unmet(solver, 0.05))
    text = str(unmet(replace(solver, separable_value=0.93), 0.05))
    assert "7 % are launches and overlap, which no bound counts" in text
    assert unmet(replace(solver, separable_value=0.93), 0.1) is None


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


def test_what_a_model_of_the_user_may_have_raised_is_no_bug(
    plan: Run, fake_api: FakeApi, tmp_path: Path
) -> None:
    mine = tmp_path / "mine_own.py"
    mine.write_text(
        "from costmodels.lookup.roofline import Roofline\n\n\nclass Mine(Roofline): ...\n"
    )
    fake_api.error = RuntimeError("what")
    done = plan("--model", f"lookup={mine}")
    assert done.code == 2
    assert f"error: RuntimeError: what; code of yours was run (lookup={mine})" in done.err


def test_debug_shows_the_traceback(plan: Run, fake_api: FakeApi) -> None:
    fake_api.error = RuntimeError("what")
    done = plan("--debug")
    assert done.code == 70
    assert "Traceback" in done.err


def test_what_the_file_leaves_open_is_said(
    run: Run, tmp_path: Path, system_file: Path, fake_api: FakeApi
) -> None:
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim\nuser,1000,8\nitem,500,8\n")
    args = ("plan", tables, "--system", system_file, "--gpus", 4)
    done = run(*args)
    assert done.code == 0, done.err
    assert "2 tables have no distribution" in done.out
    assert "Assumed" in done.out
    told = {a["key"] for a in json.loads(run(*args, "--json").out)["assumed"]}
    assert {"memory.reserve", "training.batch_size_per_rank", "tables.distribution"} <= told
    given = ("--reserve", "1 GiB", "--batch-size", 128, "--json")
    settled = {a["key"] for a in json.loads(run(*args, *given).out)["assumed"]}
    assert told - settled == {"memory.reserve", "training.batch_size_per_rank"}
