"""``tune`` over several clusters, batches and codecs: what it says, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.io.library import configs_folder
from tests.planner.cli.command_line import TWO_WAYS, Run
from tests.planner.io.files import write

pytestmark = pytest.mark.usefixtures("floors_once")

QUICK = ("--trial-evaluations", "10", "--column-width", "4")


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The shipped small model, cut in two ways: proofs of all seven take most of the time."""
    shipped = configs_folder() / "workloads" / "small_demo.yaml"
    return write(tmp_path, "demo.yaml", shipped.read_text() + TWO_WAYS)


def test_the_first_values_are_the_usual_setup_and_changes_of_training_are_said(
    run: Run, demo: Path
) -> None:
    asked = (
        *("tune", demo, "--system", "a100_80gb_sxm,h100_sxm", "--gpus", "2"),
        *("--batch-size", "1024,4096", "--communication", "workload,fp16/bf16"),
        *("--pipeline", "sparse_dist", *QUICK),
    )
    told = run(*asked, "--json")
    assert told.code == 0, told.err
    document = json.loads(told.out)
    first = document["picks"][0]
    assert (first["system"], first["gpus"]) == ("a100_80gb_sxm", 2)
    assert (first["batch_size"], first["communication"]) == (1024, "workload")
    assert document["objectives"] == ["throughput"]
    assert document["space"]["setups"] == 8
    assert document["space"]["searched"] + document["space"]["ruled_out"] == 8
    assert document["setup"]["batch_size"] == 4096
    shown = run(*asked, "--system", "h100_sxm", "--communication", "workload")
    assert "proven: no setup is more than" in shown.out
    assert "this setup changes the training itself: 4,096 samples per rank" in shown.out


def test_a_proof_is_told_without_its_rounding(run: Run, demo: Path) -> None:
    """The usual setup is the best here, proven but for the last digits of a linear program."""
    asked = ("tune", demo, "--system", "h100_sxm", "--gpus", 8, "--pipeline", "none")
    shown = run(*asked, "--trials", 1, "--trial-evaluations", 10).out
    assert "proven: no setup is more than 0.01 % better" in shown


def test_a_budget_leaves_clusters_out_by_name(run: Run, demo: Path) -> None:
    asked = ("tune", demo, "--system", "h100_sxm", "--price", "2 USD/h", *QUICK)
    few = ("--gpus", "2,4,8", "--pipeline", "sparse_dist")
    done = run(*asked, *few, "--budget", "10 USD/h", "--json")
    assert done.code == 0, done.err
    assert "leaves out h100_sxm x 8 (16 USD/h)" in done.err
    assert {p["gpus"] for p in json.loads(done.out)["picks"]} <= {2, 4}
    hosts = run(*asked, "--budget", "40 USD/h", "--trials", 2, "--json")
    assert json.loads(hosts.out)["space"]["setups"] == 2 * 3
    assert {p["gpus"] for p in json.loads(hosts.out)["picks"]} <= {8, 16}
    poor = run(*asked, "--budget", "1 USD/h")
    assert poor.code == 2
    assert "pays for none of h100_sxm x 8 (16 USD/h)" in poor.err


def test_no_budget_limits_a_system_that_costs_nothing(run: Run, demo: Path, tmp_path: Path) -> None:
    system = tmp_path / "own.yaml"
    system.write_text("base: h100_sxm\nname: own\nprice: 0 USD/h\n")
    asked = ("tune", demo, "--system", system, "--budget", "1 USD/h", *QUICK)
    assert "name its sizes with --gpus" in run(*asked).err
    assert run(*asked, "--gpus", 2, "--pipeline", "sparse_dist").code == 0


def test_clusters_that_cannot_share_the_global_batch_are_left_out_by_name(
    run: Run, demo: Path
) -> None:
    asked = ("tune", demo, "--system", "h100_sxm", "--pipeline", "sparse_dist", *QUICK)
    done = run(*asked, "--gpus", "3,4", "--gpus-per-host", 1, "--global-batch-size", 4096, "--json")
    assert done.code == 0, done.err
    reason = "--global-batch-size 4096 is not a multiple of 3 ranks"
    assert f"leaves out h100_sxm x 3: {reason}" in done.err
    assert {p["gpus"] for p in json.loads(done.out)["picks"]} == {4}
    nowhere = run(*asked, "--gpus", "2,4", "--global-batch-size", 4097)
    assert nowhere.code == 2
    assert "4097 is not a multiple of 2 ranks" in nowhere.err
    assert "4097 is not a multiple of 4 ranks" in nowhere.err


def test_a_journal_knows_clusters_menus_and_objectives(
    run: Run, demo: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "study.journal"
    asked = (
        *("tune", demo, "--system", "h100_sxm", "--gpus", "2,4", "--groups", *QUICK),
        *("--sync-interval", "1,10", "--objective", "throughput,cost", "--storage", journal),
        *("--reserve", "1 GiB,4 GiB", "--cache-sizes", "5%,20%"),
        *("--pipeline", "sparse_dist"),
    )
    assert run(*asked, "--trials", 2, "-q").code == 0
    done = run(*asked, "--trials", 3, "-q")
    assert done.code == 0, done.err
    other = run(*asked, "--trials", 2, "--gpus", "2,8")
    assert other.code == 2
    assert "another study" in other.err


def test_a_folder_gets_plan_points_and_page(run: Run, demo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    done = run(
        *("tune", demo, "--system", "h100_sxm", "--gpus", "2,4", "--batch-size", "64,4096"),
        *(
            "--objective",
            "throughput,cost,headroom",
            "--trials",
            "5",
            *QUICK,
            "--json",
            "-o",
            folder,
        ),
    )
    assert done.code == 0, done.err
    document = json.loads(done.out)
    best = json.loads((folder / "plan.json").read_text())
    assert best["plan"]
    rows = list(csv.DictReader((folder / "setups.csv").read_text().splitlines()))
    assert [float(r["iteration_time_s"]) for r in rows] == pytest.approx(
        [p["iteration_time_s"] for p in document["picks"]]
    )
    page = (folder / "tune.html").read_text()
    assert page.count("<circle") == len(rows)
    space = document["space"]
    left = space["setups"] - space["searched"] - space["ruled_out"]
    assert left > 0
    assert f"{left} left after --trials 5" in page
    front = [p for p in document["picks"] if p["on_front"]]
    assert page.count('<tr class="front">') == len(front)
    assert "http" not in page
    knobs = page[page.index("What each choice is worth") : page.index("Every setup")]
    for value in ("h100_sxm x 2", "h100_sxm x 4", "64", "4,096", "sparse_dist", "none"):
        assert f"<span>{value}</span>" in knobs
    assert "least column width" not in knobs, "one value was named"
    again = run(
        *("tune", demo, "--system", "h100_sxm", "--gpus", "2", *QUICK),
        *("-o", folder / "setups.csv"),
    )
    assert again.code == 2
    assert "is a file" in again.err


WRONG = [
    (("--cache-sizes", "100%"), "'100%' must be above 0% and below 100%"),
    (("--sync-interval", "1,10"), "add --groups"),
    (("--sync-interval", "10"), "add --groups"),
    (("--groups", "--set", "training.batch_shares=[1,2]"), "batch_shares per rank exclude"),
    (("--lookahead", "8"), "add it to --pipeline"),
    (("--price", "3 USD/h", "--price", "4 USD/h"), "two prices for all systems"),
    (("--output", __file__), "is a file; name a folder"),
    (("--batch-size", "8,16", "--global-batch-size", "64"), "exclude each other"),
    (("--communication", "fp12"), "codecs 'fp12': write workload, one of fp32"),
    (("--pipeline", "lookahead"), "--lookahead 8"),
    (("--price", "a100_80gb_sxm=2"), "no such system in --system"),
    (("--objective", "speed"), "'speed' is not one of"),
    (("--gpus", "2,2,4,6", "--gpus-per-host", "4"), "6"),
]


@pytest.mark.parametrize(("flags", "told"), WRONG)
def test_wrong_values_are_named(run: Run, demo: Path, flags: tuple[str, ...], told: str) -> None:
    done = run("tune", demo, "--system", "h100_sxm", "--gpus", "2", *flags, *QUICK)
    assert done.code == 2
    assert told in done.err
    assert "Traceback" not in done.err
