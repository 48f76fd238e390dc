from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.inputs import plan_names
from planner.cli.run import run as run_command_line
from tests.planner.cli.command_line import FakeApi, Run


@pytest.fixture
def plan_file(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path, fake_api: FakeApi
) -> Path:
    """A plan of the small workload on eight ranks."""
    done = run(
        *("plan", workload_file, "--system", system_file, "--gpus", 8, "-o", tmp_path / "run1")
    )
    assert done.code == 0, done.err
    return tmp_path / "run1" / "plan.json"


# ------------------------------------------------------------------ estimate


def test_estimate(run: Run, workload_file: Path, system_file: Path, plan_file: Path) -> None:
    done = run("estimate", workload_file, plan_file, "--system", system_file)
    assert done.code == 0, done.err
    assert "8 x small_box" in done.out
    assert "Predicted" in done.out
    assert "Solver" not in done.out
    data = json.loads(
        run("estimate", workload_file, plan_file, "--system", system_file, "--json").out
    )
    assert set(data) == set(json.loads(plan_file.read_text()))
    assert (data["solver"]["strategy"], data["solver"]["bound"]) == ("given", None)


def test_a_plan_for_another_batch_is_said(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path
) -> None:
    """Unless a flag says what is meant."""
    values = json.loads(plan_file.read_text())
    plan_file.write_text(json.dumps({**values, "batch_size_per_rank": 4096}))
    asked = ("estimate", workload_file, plan_file, "--system", system_file)
    words = "was made for 4096 samples per rank, and is priced for 512"
    assert words in " ".join(run(*asked).out.split())
    for flags in (("--batch-size", 512), ("--set", "training.batch_size_per_rank=512")):
        assert "was made for" not in run(*asked, *flags).out


def test_a_plan_for_other_hosts_is_said(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path
) -> None:
    """--gpus alone fills hosts of the system, also where those of the plan had fewer ranks."""
    values = json.loads(plan_file.read_text())
    assert values["world_size"] == 8
    plan_file.write_text(json.dumps({**values, "local_world_size": 2}))
    asked = ("estimate", workload_file, plan_file, "--system", system_file)
    words = "was made for 2 ranks per host, and is priced for 4"
    assert words in " ".join(run(*asked, "--gpus", 8).out.split())
    for flags in ((), ("--gpus", 8, "--gpus-per-host", 4)):
        assert "ranks per host" not in run(*asked, *flags).out


def test_a_plan_for_another_pipeline_is_said(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path
) -> None:
    """As one that ``tune`` chose; unless a flag says what is meant."""
    values = json.loads(plan_file.read_text())
    assert values["pipeline"] == "sparse_dist"
    plan_file.write_text(json.dumps({**values, "pipeline": "none"}))
    asked = ("estimate", workload_file, plan_file, "--system", system_file)
    words = "was made for pipeline none, and is priced for sparse_dist"
    assert words in " ".join(run(*asked).out.split())
    for pipeline in ("none", "sparse_dist"):
        assert "was made for" not in run(*asked, "--set", f"training.pipeline={pipeline}").out


def test_a_plan_for_another_workload_is_said(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path
) -> None:
    """Of laws from --stats, or a file that has changed, another price came without a word."""
    where, words = (plan_file, "--system", system_file), "other index laws, tables or training"
    for flags in ((), ("--batch-size", 4, "--reserve", "2 GiB")):
        assert words not in run("estimate", workload_file, *where, *flags, "--json").out
    workload_file.write_text(
        workload_file.read_text().replace("pooling_factor: 3", "pooling_factor: 9")
    )
    for command in ("estimate", "compare", "explain"):
        plans = (plan_file, *where) if command == "compare" else where
        done = run(command, workload_file, *plans, "--json")
        assert done.code == 0
        assert any(words in text for text in json.loads(done.out)["warnings"]), command
    asked = run("estimate", workload_file, *where, "--set", "tables.0.pooling_factor=3", "--json")
    assert words not in asked.out


def test_estimate_of_a_system_that_is_no_file_here(
    run: Run, workload_file: Path, plan_file: Path
) -> None:
    done = run("estimate", workload_file, plan_file)
    assert done.code == 2
    assert "made for system 'small_box'" in done.err


def test_estimate_of_a_bare_plan_needs_the_number_of_ranks(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"plan": json.loads(plan_file.read_text())["plan"]}))
    done = run("estimate", workload_file, bare, "--system", system_file)
    assert done.code == 2
    assert "add --gpus" in done.err
    assert run("estimate", workload_file, bare, "--system", system_file, "--gpus", 8).code == 0
    wrong = run("estimate", workload_file, plan_file, "--system", system_file, "--gpus", 4)
    assert wrong.code == 2
    assert "8 ranks" in wrong.err


# ------------------------------------------------------------------ compare


def test_a_plan_for_another_system_is_said(
    run: Run, workload_file: Path, plan_file: Path, tmp_path: Path
) -> None:
    """All are priced on the system of the first; unless a flag says what is meant."""
    values = json.loads(plan_file.read_text())
    paths = [tmp_path / f"{name}.json" for name in ("h100_sxm", "a100_80gb_sxm")]
    for path in paths:
        path.write_text(json.dumps({**values, "system": path.stem}))
    asked = ("compare", workload_file, *paths)
    words = f"{paths[1]}: was made for system a100_80gb_sxm, and is priced for h100_sxm"
    assert words in " ".join(run(*asked).err.split())
    assert "was made for" not in run(*asked, "--system", "h100_sxm").err


def test_a_plan_for_a_changed_copy_of_a_shipped_system_is_said(
    run: Run, workload_file: Path, tmp_path: Path, fake_api: FakeApi
) -> None:
    """The copy has the same name, and a plan tells no path."""
    own = tmp_path / "my_box.yaml"
    shown = run("systems", "show", "h100_sxm").out
    own.write_text(shown.replace("eager_call: 5 us", "eager_call: 9 us"))
    slow = tmp_path / "slow.yaml"
    slow.write_text("base: h100_sxm\ndifferent_ranks: [{ranks: [1], speed: 0.5}]\n")
    words = "was made for another h100_sxm than the shipped one"
    for system, is_said in (("h100_sxm", False), (own, True), (slow, True)):
        folder = tmp_path / Path(system).stem
        made = run("plan", workload_file, "--system", system, "--gpus", 8, "-o", folder)
        assert made.code == 0, made.err
        asked = ("estimate", workload_file, folder / "plan.json")
        priced = run(*asked, "--price", "9 USD/h")
        assert (words in " ".join(priced.out.split())) is is_said
        assert words not in " ".join(run(*asked, "--system", system).out.split())


def test_compare(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path, fake_api: FakeApi
) -> None:
    args = ("compare", workload_file, plan_file, plan_file, "--system", system_file)
    done = run(*args)
    assert done.code == 0, done.err
    assert "5.0 % slower" in " ".join(done.out.split())
    assert "Time per stage" in done.out
    assert "Re-sharding from" in done.out
    assert "pays back after iterations" in " ".join(done.out.split())
    assert max(len(line.rstrip()) for line in done.out.splitlines()) <= 100
    data = json.loads(run(*args, "--json").out)
    assert data["plans"][1]["change_ratio"] == pytest.approx(0.05)
    assert data["failed"] is False


@pytest.mark.parametrize(("limit", "code"), [("3%", 1), ("5.1%", 0), ("0%", 1)])
def test_fail_over(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path, limit: str, code: int
) -> None:
    args = ("compare", workload_file, plan_file, plan_file, "--system", system_file)
    done = run(*args, "--fail-over", limit)
    assert done.code == code
    assert ("slower by 5.0 %" in done.err) is (code == 1)
    assert run(*args, "--fail-over", limit, "--json").code == code


def test_plan_names() -> None:
    assert plan_names((Path("run1/plan.json"), Path("run2/plan.json"))) == ("run1", "run2")
    assert plan_names((Path("old.json"), Path("run2/plan.json"))) == ("old", "run2")
    assert plan_names((Path("a/x.json"), Path("b/x.json"))) == ("a/x.json", "b/x.json")
    assert plan_names((Path("x.json"), Path("x.json"))) == ("x.json (1)", "x.json (2)")


# ------------------------------------------------------------------ schemas


@pytest.mark.parametrize("kind", ["workload", "system", "plan"])
def test_schemas_are_json(run: Run, kind: str) -> None:
    schema = json.loads(run("check", "--schema", kind).out)
    assert "properties" in schema


# ------------------------------------------------------------------ init, systems, list


def test_init(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("import", "tables")
    assert done.code == 0, done.err
    assert "#" in (tmp_path / "workload.yaml").read_text()
    assert "next: shardplan plan workload.yaml" in done.err
    assert run("check", "workload.yaml").code == 0
    assert json.loads(run("import", "tables", "other.yaml", "--json").out) == {
        "written": "other.yaml"
    }
    assert run("import", "tables").code == 2
    refused = run("import", "tables", "tables.csv")
    assert (refused.code, "is read as a list of tables" in refused.err) == (2, True)
    assert not (tmp_path / "tables.csv").exists()


def test_systems(run: Run) -> None:
    done = run("systems")
    assert done.code == 0, done.err
    assert "h100_sxm" in done.out
    assert max(len(line.rstrip()) for line in done.out.splitlines()) <= 100
    data = json.loads(run("systems", "--json").out)
    assert data["h100_sxm"]["hbm_capacity_bytes"] > 7e10


def test_systems_show(run: Run) -> None:
    text = run("systems", "show", "h100_sxm").out
    assert "hbm_capacity:" in text
    assert json.loads(run("systems", "show", "h100_sxm", "--json").out)["text"] == text


# ------------------------------------------------------------------ help


@pytest.mark.parametrize("name", ["plan", "estimate", "compare", "check", "systems"])
def test_help_teaches_by_example(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0
    assert "Examples:" in done.out
    assert f"shardplan {name}" in done.out.split("Examples:")[1]
    assert max(len(line) for line in done.out.splitlines()) <= 100


def test_group_help_and_version(run: Run) -> None:
    done = run("-h")
    assert "Exit codes" in done.out
    assert done.out.index("  plan ") < done.out.index("  predict ")
    assert run("--version").out.startswith("shardplan, version ")
    assert run().code == 2


def test_a_reader_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: object, **kwargs: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("planner.cli.run.cli.main", gone)
    monkeypatch.setattr("planner.cli.run.abandon", lambda _: None)
    assert run_command_line(["systems"]) == 0


def test_predict_dense_takes_small_letters_and_says_its_type(run: Run, tmp_path: Path) -> None:
    """What is assumed is said; a column of types ends the remark."""
    path = tmp_path / "gemm.csv"
    path.write_text("m,k,n\n512,256,128\n")
    done = run("predict", "dense", path, "--system", "h100_sxm")
    assert done.code == 0, done.err
    assert "predicted_us" in done.out
    assert "taken as fp32" in done.err
    path.write_text("M,K,N,dtype\n512,256,128,tf32\n")
    assert "fp32" not in run("predict", "dense", path, "--system", "h100_sxm").err
