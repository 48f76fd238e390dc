"""``tune`` and ``worker``: one study from many command lines."""

from __future__ import annotations

import json
from pathlib import Path

from planner import io
from tests.planner.cli.command_line import Run

QUICK = ("--trial-evaluations", "40", "--trial-limit", "5s")


def test_tune_prints_picks_and_writes_a_plan_that_loads(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """The plan written is the one whose time is printed."""
    output = tmp_path / "best.json"
    done = run(
        "tune", workload_file, "--system", system_file, "--trials", 4, "--json", *QUICK,
        "-o", output,
    )  # fmt: skip
    assert done.code == 0
    told = json.loads(done.out)
    assert len(told["picks"]) == 4
    assert told["iteration_time_s"] == min(p["iteration_time_s"] for p in told["picks"])
    workload = io.load_workload(workload_file)
    topology = io.load_system(system_file)
    assert io.load_plan(output, workload, topology).plan.placements


def test_workers_do_the_rest_of_a_study(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """A journal says all a worker has to know."""
    journal = tmp_path / "study.journal"
    asked = ("tune", workload_file, "--system", system_file, "--storage", journal, *QUICK)
    first = run(*asked, "--trials", 3, "-q")
    assert first.code == 0
    assert "Setup" in first.out
    worked = run("worker", journal)
    assert worked.code == 0
    again = run(*asked, "--trials", 3, "--json")
    assert len(json.loads(again.out)["picks"]) == 3


def test_a_worker_refuses_a_changed_workload(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Trials of two different questions must not be mixed."""
    journal = tmp_path / "study.journal"
    asked = ("tune", workload_file, "--system", system_file, "--storage", journal, *QUICK)
    assert run(*asked, "--trials", 1).code == 0
    text = workload_file.read_text()
    workload_file.write_text(text.replace("num_embeddings: 1", "num_embeddings: 2", 1))
    refused = run("worker", journal)
    assert refused.code == 2
    assert "another study" in refused.err


def test_a_worker_needs_a_journal(run: Run, tmp_path: Path) -> None:
    """One clear error, and no file made by mistake."""
    missing = tmp_path / "none.journal"
    refused = run("worker", missing)
    assert refused.code == 2
    assert "shardplan tune" in refused.err
    assert not missing.exists()
