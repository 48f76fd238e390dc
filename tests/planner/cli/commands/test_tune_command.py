"""``tune``: one study from many command lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import io
from tests.planner.cli.command_line import Run
from tests.planner.io.files import write

pytestmark = pytest.mark.usefixtures("floors_once")

QUICK = ("--trial-evaluations", "10", "--trial-limit", "5s")


def test_tune_prints_picks_and_writes_a_plan_that_loads(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """The plan written is the one whose time is printed."""
    output = tmp_path / "best.json"
    done = run(
        "tune", two_ways_file, "--system", system_file, "--trials", 4, "--json", *QUICK,
        "-o", output,
    )  # fmt: skip
    assert done.code == 0
    told = json.loads(done.out)
    assert len(told["picks"]) == 4
    assert told["iteration_time_s"] == min(p["iteration_time_s"] for p in told["picks"])
    workload = io.load_workload_file(two_ways_file).workload
    topology = io.load_system(system_file)
    assert io.load_plan(output, workload, topology).plan.placements


def test_a_later_run_goes_on_with_a_study(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "study.journal"
    asked = ("tune", two_ways_file, "--system", system_file, "--storage", journal, *QUICK)
    first = run(*asked, "--trials", 2, "--json")
    assert first.code == 0
    again = run(*asked, "--trials", 3, "--json")
    begun, found = (json.loads(done.out)["picks"] for done in (first, again))
    assert (len(begun), len(found)) == (2, 3)
    setups = [[p["iteration_time_s"] for p in picks] for picks in (begun, found)]
    assert setups[1][:2] == setups[0]


def test_a_journal_goes_on_with_the_searches_that_it_began_with(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Else a setup that was searched for longer would look better than the usual one."""
    journal = tmp_path / "study.journal"
    asked = ("tune", two_ways_file, "--system", system_file, "--storage", journal)
    assert run(*asked, *QUICK, "--trials", 1).code == 0
    for other in (("--trial-evaluations", 9), ("--seed", 7, *QUICK), ()):
        refused = run(*asked, "--trials", 2, *other)
        assert refused.code == 2
        told = " ".join(refused.err.split())
        assert f"were searched with {' '.join(QUICK[:2])} and --seed 0" in told


def test_a_journal_refuses_a_changed_workload(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Trials of two different questions must not be mixed."""
    journal = tmp_path / "study.journal"
    asked = ("tune", two_ways_file, "--system", system_file, "--storage", journal, *QUICK)
    assert run(*asked, "--trials", 1).code == 0
    text = two_ways_file.read_text()
    two_ways_file.write_text(text.replace("num_embeddings: 1", "num_embeddings: 2", 1))
    refused = run(*asked, "--trials", 1)
    assert refused.code == 2
    assert "another study" in refused.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"op_code": 0}', "a line of the journal is damaged"),
        ('{"op_code": 99, "worker_id": "x"}', "a line of the journal is damaged"),
        ('["op_code"]', "is no journal of a study"),
    ],
)
def test_a_damaged_journal_is_refused_and_kept(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path, line: str, words: str
) -> None:
    journal = write(tmp_path, "study.journal", line + "\n")
    refused = run("tune", two_ways_file, "--system", system_file, "--storage", journal)
    assert refused.code == 2, refused.err
    assert words in refused.err
    assert journal.read_text() == line + "\n"


def test_what_is_assumed_and_doubted_is_said_once_and_as_plan_says_it(
    run: Run, tmp_path: Path
) -> None:
    workload = write(
        tmp_path,
        "means.yaml",
        """
        name: means
        training: {batch_size_per_rank: 16, pipeline: sparse_dist}
        tables:
          - {name: cut, num_embeddings: 1000, embedding_dim: 64, pooling: mean,
             constraints: {sharding_types: [row_wise]}}
          - {name: whole, num_embeddings: 1000, embedding_dim: 64,
             constraints: {sharding_types: [table_wise]}}
        """,
    )
    asked = (workload, "--system", "h100_sxm", "--gpus", 2)
    only = ("--trials", 1, "--trial-evaluations", 10)
    plan = run("plan", *asked, "--evaluations", 10, "--json")
    tuned = run("tune", *asked, *only, "--json")
    assert (plan.code, tuned.code) == (0, 0), plan.err + tuned.err
    said = json.loads(tuned.out)["result"]["warnings"]
    assert any("TorchRec computes another model" in line for line in said)
    assert said == list(dict.fromkeys(said))
    assert sorted(said) == sorted(json.loads(plan.out)["warnings"])
    shown = " ".join(run("tune", *asked, *only).out.split())
    for line in said:
        assert shown.count(f"warning: {line}") == 1, line


def test_a_plan_of_another_command_is_not_written_over(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """An earlier study is; a link to a folder that is not there yet is followed."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plan.json").write_text("{}")
    asked = ("tune", two_ways_file, "--system", system_file, "--trials", 1, *QUICK, "-o")
    refused = run(*asked, tmp_path / "other")
    assert refused.code == 2
    assert "holds a plan.json of another command" in refused.err
    assert (tmp_path / "other" / "plan.json").read_text() == "{}"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    for _ in range(2):
        assert run(*asked, link).code == 0
    assert (tmp_path / "real" / "tune.html").exists()


def test_the_best_plan_is_not_written_over_what_is_read(
    run: Run, two_ways_file: Path, system_file: Path
) -> None:
    """Workloads and systems may have the ending of a plan."""
    workload, system = two_ways_file.with_suffix(".json"), system_file.with_suffix(".json")
    two_ways_file.rename(workload)
    system_file.rename(system)
    for output in (workload, system):
        before = output.read_bytes()
        done = run("tune", workload, "--system", system, "--trials", 1, *QUICK, "-o", output)
        assert (done.code, "would be lost" in done.err) == (2, True)
        assert output.read_bytes() == before
    both = workload.with_name("study.json")
    done = run("tune", workload, "--system", system, *QUICK, "--storage", both, "-o", both)
    assert (done.code, "name two files" in done.err, both.exists()) == (2, True, False)
