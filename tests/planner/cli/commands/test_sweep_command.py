"""``sweep`` and ``size`` as people type them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.support.digits import format_gap
from tests.planner.cli.command_line import Run

FEW = ("--evaluations", "8")
QUICK = (*FEW, "--workers", "1")


def test_a_sweep_prints_and_writes_every_point(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Table, CSV and page tell of the same points; a second run adds none."""
    folder = tmp_path / "what-if"
    asked = (
        "sweep", workload_file, "--system", system_file, "--gpus", "4,8", "--batch-size",
        "256,512", "-o", folder, *QUICK,
    )  # fmt: skip
    done = run(*asked)
    assert done.code == 0
    assert "Best plan of small" in done.out
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["gpus"], r["batch_size"]) for r in rows] == [
        ("4", "256"), ("4", "512"), ("8", "256"), ("8", "512"),
    ]  # fmt: skip
    assert (folder / "sweep.html").read_text().count("<tr") == 5
    lines = (folder / "points.jsonl").read_text()
    again = run(*asked, "--json")
    assert (folder / "points.jsonl").read_text() == lines
    assert len(json.loads(again.out)["points"]) == 4


def test_it_says_where_more_gpus_are_slower(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    """On stderr, for the largest cluster that is; not where larger ones are faster."""
    asked = ("sweep", workload_file, "--system", system_file, "--gpus", "4,16,32", *QUICK)
    done = run(*asked, "--global-batch-size", "512")
    assert "x 32, 512 per step trains " in done.err
    assert " and 4 GPUs train " in done.err
    assert "trains" not in run(*asked, "--batch-size", "65536").err


def test_points_that_cannot_be_stop_nothing(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    """Hosts of 4 ranks have no 6, and 12 ranks do not share 4,096 samples; the rest is planned."""
    given = (workload_file, "--system", system_file, *QUICK)
    asked = ("sweep", *given, "--gpus", "6,8,12", "--global-batch-size", "4096")
    done = run(*asked, "--json")
    points = json.loads(done.out)["points"]
    assert done.code == 0
    assert [(p["gpus"], p["status"]) for p in points] == [
        (6, "failed"), (8, "done"), (12, "failed"),
    ]  # fmt: skip
    assert "6 is not a multiple of 4 GPUs per host" in points[0]["reason"]
    assert "4096 is not a multiple of 12 ranks" in points[2]["reason"]
    assert "--global-batch-size 4096 is not a multiple of 12" in run(*asked).out


def test_a_cost_is_the_same_figure_in_every_command(run: Run, workload_file: Path) -> None:
    """What a billion samples cost, of ``plan``, ``sweep``, ``size`` and the page of a sweep."""
    asked = (workload_file, "--system", "h100_sxm", *FEW)
    plan = run("plan", *asked, "--gpus", 8).out
    cost = next(line.split()[1] for line in plan.splitlines() if line.startswith("Cost"))
    assert len(cost.replace(".", "")) == 3
    sweep = run("sweep", *asked, "--gpus", 8, "--workers", 1).out
    size = run("size", *asked, "--target-qps", "1k").out
    for shown in (sweep, size):
        assert cost in shown.split()


def test_gaps_are_shown_with_as_many_digits_as_elsewhere(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    asked = ("sweep", workload_file, "--system", system_file, "--gpus", "4", *QUICK)
    (point,) = json.loads(run(*asked, "--json").out)["points"]
    gap = 1.0 - point["bound_s"] / point["iteration_time_s"]
    assert f" {format_gap(gap)} " in run(*asked).out


def test_warnings_are_of_what_no_flag_settles(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim\nuser,1000,16\n")
    asked = ("sweep", tables, "--system", system_file, "--gpus", 4, *QUICK)
    open_ones = ("a CSV list has no batch size", "no memory.reserve")
    bare, settled = run(*asked), run(*asked, "--batch-size", 64, "--reserve", "1 GiB")
    assert all(words in bare.err and words not in settled.err for words in open_ones)
    sized = ("size", workload_file, "--system", system_file, "--target-qps", "1k", *FEW)
    brain = run(*sized, "--max-gpus", 4, "--set", "dense.dtype=bf16")
    assert "lists no rate for products in bf16" in brain.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--gpus", "8,,16"), "empty entry"),
        (("--gpus", "8,x"), "whole number"),
        (("--gpus", "8", "--price", "other=2"), "no such system"),
        (("--gpus", "8", "--price", "free"), "h100_sxm=2.10"),
        (("--gpus", "8", "--price", "a=1e7"), "above 0 and below 1,000,000"),
        (("--gpus", "8", "--price", "{system}=2", "--price", "{system}=3"), "two prices for"),
        (("--gpus", "8", "--batch-size", "1", "--global-batch-size", "8"), "exclude each other"),
        (("--gpus", "8", "--global-batch-size", "9"), "not a multiple"),
        (("--gpus", "7"), "multiple"),
        (("--gpus", "8", "--mtbf", "500"), "no unit"),
        (("--gpus", "8", "--restart", "9min"), "say with --mtbf"),
        (("--gpus", "8", "--dask", "tcp://head:8786"), "drop one"),
    ],
)
def test_bad_flags_are_one_clear_error(
    run: Run, workload_file: Path, system_file: Path, flags: tuple[str, ...], said: str
) -> None:
    """Exit code 2 before anything is planned."""
    given = (flag.format(system=system_file) for flag in flags)
    done = run("sweep", workload_file, "--system", system_file, *given, *QUICK)
    assert done.code == 2
    assert said in done.err


def test_size_prints_the_answer_and_says_when_there_is_none(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    """Exit code 1 when no system reaches the target."""
    asked = ("size", workload_file, "--system", system_file, *FEW)
    done = run(*asked, "--target-qps", "1M", "--json")
    assert done.code == 0
    (system,) = json.loads(done.out)["systems"]
    assert system["answer"]["samples_per_s"] >= 1e6
    missed = run(*asked, "--target-qps", "1e12", "--max-gpus", 8)
    assert missed.code == 1
    assert "not enough" in missed.out
    for rate in ("fast", "0", "1e15"):
        refused = run(*asked, "--target-qps", rate)
        assert (refused.code, "above 0 and below 1e15 samples/s" in refused.err) == (2, True)


def test_size_keeps_to_the_batch_the_pipeline_and_the_largest_size(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    """Each size is priced as ``sweep`` prices it; 3 hosts of 8 do not share 4,096 samples."""
    given = (workload_file, "--system", system_file, *FEW, "--json", "--pipeline", "none")
    asked = ("size", *given, "--target-qps", "1e12", "--max-gpus", "31")
    whole = ("--global-batch-size", "4096", "--gpus-per-host", "8")
    (system,) = json.loads(run(*asked, *whole).out)["systems"]
    assert [point["gpus"] for point in system["tried"]] == [8, 16]
    swept = run("sweep", *given, "--workers", "1", "--gpus", "8", *whole)
    (point,) = json.loads(swept.out)["points"]
    assert system["tried"][0]["iteration_time_s"] == point["iteration_time_s"]
    assert point["pipeline"] == "none"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--batch-size", "256,512"), "several values"),
        (("--pipeline", "none,sparse_dist"), "several values"),
        (("--max-gpus", "3"), "less than one host"),
        (("--global-batch-size", "9"), "not a multiple"),
        (("--workers", "2"), "No such option"),
    ],
)
def test_what_size_cannot_do_is_refused(
    run: Run, workload_file: Path, system_file: Path, flags: tuple[str, ...], said: str
) -> None:
    """Before anything is planned."""
    done = run("size", workload_file, "--system", system_file, "--target-qps", "1M", *flags)
    assert done.code == 2
    assert said in done.err


def test_processes_are_as_many_as_usable_cores(
    run: Run, workload_file: Path, system_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as many as the machine has, where the process may use fewer."""
    asked: list[int] = []

    def swept(*_: object, workers: int, **__: object) -> tuple[object, ...]:
        asked.append(workers)
        return ()

    monkeypatch.setattr("planner.sweep.run", swept)
    monkeypatch.setattr("planner.cli.commands.sweep.usable_cores", lambda: 3)
    grid = ("sweep", workload_file, "--system", system_file, "--gpus", "4", "--batch-size")
    run(*grid, "64,128,256,512")
    run(*grid, "64,128")
    assert asked == [3, 2]


def test_points_that_failures_leave_no_time_are_written_too(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Throughput is 0 there, which has no place on a chart by decades."""
    asked = ("sweep", workload_file, "--system", system_file, "--gpus", "4,8", *QUICK)
    for folder, mtbf, words in (
        ("some", "50min", "<polyline"),
        ("none", "1min", "No point trains"),
    ):
        done = run(*asked, "--mtbf", mtbf, "--restart", "30min", "-o", tmp_path / folder)
        assert done.code == 0, done.err
        assert words in (tmp_path / folder / "sweep.html").read_text()
        with (tmp_path / folder / "sweep.csv").open() as file:
            assert "0.0" in [row["availability_ratio"] for row in csv.DictReader(file)]
