"""``study`` as people type it: grids, proofs, the smallest cluster, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner import io
from planner.io.documents import configs_folder
from tests.planner.cli.command_line import TWO_WAYS, Run
from tests.planner.io.files import write

pytestmark = pytest.mark.usefixtures("floors_once")

FEW = ("--evaluations", "8")
QUICK = (*FEW, "--workers", "1")


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The shipped small model, cut in two ways: proofs of all seven take most of the time."""
    shipped = configs_folder() / "workloads" / "small_demo.yaml"
    return write(tmp_path, "demo.yaml", shipped.read_text() + TWO_WAYS)


def test_a_grid_prints_and_writes_every_setup(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Table, CSV and page tell of the same setups; a second run searches none."""
    folder = tmp_path / "what-if"
    asked = (
        "study", workload_file, "--system", system_file, "--gpus", "4,8", "--batch-size",
        "256,512", "--grid", "-o", folder, *QUICK,
    )  # fmt: skip
    done = run(*asked)
    assert done.code == 0, done.err
    with (folder / "setups.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["gpus"], r["training.batch_size_per_rank"]) for r in rows] == [
        ("4", "256"), ("4", "512"), ("8", "256"), ("8", "512"),
    ]  # fmt: skip
    page = (folder / "study.html").read_text()
    assert page.count("<tr") == 5 + 5, "setups, and values of the two knobs"
    assert page.count("<circle") == 4
    assert "http:" not in page
    assert "https:" not in page
    before = (folder / "study.journal").read_text().count('"result"')
    again = run(*asked, "--json")
    assert (folder / "study.journal").read_text().count('"result"') == before
    told = json.loads(again.out)
    assert len(told["setups"]) == 4
    assert told["iteration_time_s"] in [r["iteration_time_s"] for r in told["setups"]]
    workload = io.load_workload_file(workload_file).workload
    topology = io.load_system(system_file, gpus=told["setup"]["gpus"])
    assert io.load_plan(folder / "plan.json", workload, topology).plan.placements


def test_it_says_where_more_gpus_are_slower(
    run: Run, workload_file: Path, system_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, for the largest cluster that is, with what may help; not where they are faster."""
    asked = ("study", workload_file, "--system", system_file, "--gpus", "4,16,32", "--grid", *QUICK)
    done = run(*asked, "--global-batch-size", "512")
    assert "x 32 trains " in done.err
    assert " and 4 GPUs train " in done.err
    assert "more --evaluations may find a better plan\n" in done.err
    assert "trains" not in run(*asked, "--batch-size", "65536").err
    monkeypatch.setattr("planner.study.Study.gap_ratio", lambda *_: 0.01)
    proven = run(*asked, "--global-batch-size", "512").err
    assert "; no plan for it reaches more than 0.2" in proven
    assert "--vary copies=all" in proven


def test_setups_that_cannot_be_stop_nothing(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    """Hosts of 4 ranks have no 6, and 12 ranks do not share 4,096 samples; the rest is planned."""
    given = (workload_file, "--system", system_file, *QUICK, "--grid")
    asked = ("study", *given, "--gpus", "6,8,12", "--global-batch-size", "4096")
    setups = json.loads(run(*asked, "--json").out)["setups"]
    assert [(s["gpus"], s["status"]) for s in setups] == [
        (6, "failed"), (8, "done"), (12, "failed"),
    ]  # fmt: skip
    assert "6 is not a multiple of 4 GPUs per host" in setups[0]["reason"]
    assert "4096 is not a multiple of 12 ranks" in setups[2]["reason"]
    assert "not a multiple of 12" in " ".join(run(*asked).out.split())


def test_a_cost_is_the_same_figure_in_every_command(run: Run, workload_file: Path) -> None:
    asked = (workload_file, "--system", "h100_sxm", *FEW, "--gpus", 8, "--price", "4.5 USD/h")
    plan = run("plan", *asked).out
    cost = next(line.split()[1] for line in plan.splitlines() if line.startswith("Cost"))
    assert cost in run("study", *asked, "--grid", "--workers", 1).out.split()


def test_every_key_may_be_a_knob(run: Run, demo: Path) -> None:
    """Keys of the workload and of the system, with values as in YAML."""
    done = run(
        *("study", demo, "--system", "h100_sxm", "--gpus", "2", "--grid", "--json", *QUICK),
        *("--vary", "training.communication={forward: fp32},{forward: fp16, backward: bf16}"),
        *("--vary", "memory.reserve=1 GiB,4 GiB"),
        *("--vary", "system.links.host.bandwidth=50 GB/s,317 GB/s"),
    )
    assert done.code == 0, done.err
    setups = json.loads(done.out)["setups"]
    assert len({s["iteration_time_s"] for s in setups}) > 1
    assert len(setups) == 8
    assert [s["memory.reserve"] for s in setups[:4]] == ["1 GiB", "1 GiB", "4 GiB", "4 GiB"]


def test_the_first_values_are_the_usual_setup_and_changes_of_training_are_said(
    run: Run, demo: Path
) -> None:
    asked = (
        *("study", demo, "--system", "a100_80gb_sxm,h100_sxm", "--gpus", "2"),
        *("--batch-size", "1024,4096", "--vary", "training.pipeline=sparse_dist", *QUICK),
    )
    told = run(*asked, "--json")
    assert told.code == 0, told.err
    document = json.loads(told.out)
    first = document["setups"][0]
    assert (first["system"], first["gpus"]) == ("a100_80gb_sxm", 2)
    assert document["objectives"] == ["throughput"]
    assert document["space"]["searched"] + document["space"]["ruled_out"] == 4
    shown = " ".join(run(*asked).out.split())
    assert "proven: no setup is more than" in shown
    assert "this setup changes the training itself: batch_size_per_rank 4,096" in shown


def test_a_budget_leaves_clusters_out_by_name(run: Run, demo: Path) -> None:
    asked = ("study", demo, "--system", "h100_sxm", "--price", "2 USD/h", *QUICK)
    few = ("--gpus", "2,4,8", "--vary", "training.pipeline=sparse_dist")
    done = run(*asked, *few, "--budget", "10 USD/h", "--json")
    assert done.code == 0, done.err
    assert "leaves out h100_sxm x 8 (16 USD/h)" in done.err
    assert {s["gpus"] for s in json.loads(done.out)["setups"]} <= {2, 4}
    poor = run(*asked, "--budget", "1 USD/h")
    assert poor.code == 2
    assert "pays for none of h100_sxm x 8 (16 USD/h)" in poor.err


def test_a_later_run_goes_on_and_another_study_is_refused(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    asked = ("study", two_ways_file, "--system", system_file, "-o", folder, "--json")
    begun, found = (json.loads(run(*asked, *QUICK, "--trials", n).out)["setups"] for n in (1, 3))
    assert found[0]["iteration_time_s"] <= begun[0]["iteration_time_s"]
    for other, was in (
        (("--evaluations", 9, "--workers", 1), "--evaluations (it was 8)"),
        (("--seed", 7, *QUICK), "--seed (it was 0)"),
    ):
        refused = run(*asked, *other)
        assert refused.code == 2
        assert f"belongs to another study, with other {was}" in " ".join(refused.err.split())
    text = two_ways_file.read_text()
    two_ways_file.write_text(text.replace("num_embeddings: 1", "num_embeddings: 2", 1))
    refused = run(*asked, *QUICK)
    assert refused.code == 2
    assert "another study" in refused.err


def test_the_smallest_cluster_is_printed_and_it_is_said_when_there_is_none(
    run: Run, workload_file: Path, system_file: Path
) -> None:
    asked = ("study", workload_file, "--system", system_file, *QUICK)
    done = run(*asked, "--smallest-for", "1M", "--json")
    assert done.code == 0
    assert json.loads(done.out)["answers"][0]["answer"]["samples_per_s"] >= 1e6
    missed = run(*asked, "--smallest-for", "1e12", "--max-gpus", 8)
    assert missed.code == 1
    assert "not enough" in missed.out
    for rate in ("fast", "0", "1e15"):
        refused = run(*asked, "--smallest-for", rate)
        assert (refused.code, "above 0 and below 1e15 samples/s" in refused.err) == (2, True)


def test_outputs_are_not_written_over_what_is_read_or_of_others(
    run: Run, two_ways_file: Path, system_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plan.json").write_text("{}")
    asked = ("study", two_ways_file, "--system", system_file, "--trials", 1, *QUICK, "-o")
    refused = run(*asked, tmp_path / "other")
    assert (refused.code, "holds plan.json" in refused.err) == (2, True)
    workload = two_ways_file.with_suffix(".json")
    two_ways_file.rename(workload)
    before = workload.read_bytes()
    done = run("study", workload, "--system", system_file, "--trials", 1, *QUICK, "-o", workload)
    assert (done.code, "is a file; name a folder" in done.err) == (2, True)
    assert workload.read_bytes() == before
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    for _ in range(2):
        assert run("study", workload, *asked[2:], link).code == 0
    assert (tmp_path / "real" / "study.html").exists()


def test_setups_that_failures_leave_no_time_are_written_too(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Throughput is 0 there, which has no place on a chart by decades."""
    asked = ("study", workload_file, "--system", system_file, "--gpus", "4,8", "--grid", *QUICK)
    for folder, mtbf in (("some", "50min"), ("none", "1min")):
        done = run(*asked, "--mtbf", mtbf, "--restart", "30min", "-o", tmp_path / folder)
        assert done.code == 0, done.err
        assert (tmp_path / folder / "study.html").exists()
        with (tmp_path / folder / "setups.csv").open() as file:
            assert "0.0" in [row["availability_ratio"] for row in csv.DictReader(file)]


WRONG = [
    (("--gpus", "8,,16"), "empty entry"),
    (("--gpus", "8,x"), "whole number"),
    (("--gpus", "7", "--gpus-per-host", "4"), "multiple"),
    (("--price", "h100_sxm=free"), "h100_sxm=2.10"),
    (("--price", "a=1e7"), "above 0 and below 1,000,000"),
    (("--price", "a100_80gb_sxm=2"), "no such system in --system"),
    (("--price", "3 USD/h", "--price", "4 USD/h"), "two prices for all systems"),
    (("--batch-size", "8,16", "--global-batch-size", "64"), "exclude each other"),
    (("--global-batch-size", "9"), "not a multiple"),
    (("--mtbf", "500"), "has no unit"),
    (("--restart", "9min"), "--restart needs --mtbf"),
    (("--dask", "tcp://head:8786"), "--dask and --workers exclude each other"),
    (("--vary", "cache_sizes=[100%]"), "must be above 0% and below 100%"),
    (("--vary", "sync_interval=1,10"), "without --vary copies"),
    (("--vary", "training.lookahead=8"), "needs pipeline lookahead"),
    (("--vary", "training.pipeline=lookahead"), "lookahead: 8"),
    (("--vary", "training.pipeline=fast"), "fast"),
    (("--vary", "speed=1"), "name a key of the workload"),
    (("--vary", "training.speed=1"), "speed"),
    (("--vary", "system.speed=1"), "speed"),
    (("--objective", "speed"), "'speed' is not one of"),
    (("--grid", "--trials", "3"), "--grid and --trials exclude each other"),
    (("--max-gpus", "3"), "--smallest-for"),
    (("--output", __file__), "is a file; name a folder"),
]


@pytest.mark.parametrize(("flags", "told"), WRONG)
def test_wrong_values_are_named(run: Run, demo: Path, flags: tuple[str, ...], told: str) -> None:
    """Exit code 2 before anything is planned."""
    gpus = () if "--gpus" in flags else ("--gpus", "2")
    done = run("study", demo, "--system", "h100_sxm", *gpus, *flags, *QUICK)
    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert "Traceback" not in done.err
