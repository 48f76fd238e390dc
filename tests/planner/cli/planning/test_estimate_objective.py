"""``estimate`` of a written plan says what the search said, for every objective and scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.objectives import objective_names
from tests.planner.cli.command_line import Done, Run

SEARCH = ("--gpus", 8, "--evaluations", 5, "-q")


@pytest.fixture
def box(system_file: Path) -> Path:
    """The system with a price."""
    text = system_file.read_text()
    system_file.write_text(f"{text}price: 2.5 USD/h (datasheet)\n")
    return system_file


def solver(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)["solver"]
    return found


@pytest.mark.parametrize("objective", objective_names())
def test_the_value_of_a_written_plan(
    run: Run, workload_file: Path, box: Path, tmp_path: Path, objective: str
) -> None:
    """Without a flag it is that of the objective that the plan was made for."""
    asked = (workload_file, "--system", box, *SEARCH)
    made = run("plan", *asked, "--objective", objective, "-o", tmp_path / "run", "--json")
    plan = tmp_path / "run" / "plan.json"
    written = json.loads(plan.read_text())["solver"]
    assert solver(made)["value"] == written["value"]
    for flags in ((), ("--objective", objective)):
        again = run("estimate", workload_file, plan, "--system", box, "--json", *flags)
        assert solver(again)["objective"] == objective
        assert solver(again)["value"] == pytest.approx(written["value"], rel=1e-9)
        assert solver(again)["bound"] is None
    out = run("estimate", workload_file, plan, "--system", box).out
    assert ("Objective" in out) is (objective != "iteration")
    other = run("estimate", workload_file, plan, "--system", box, "--objective", "phases", "--json")
    assert solver(other)["objective"] == "phases"
    assert 0 < float(solver(other)["value"]) < float("inf")


@pytest.mark.parametrize("objective", ["torchrec", "torchrec-critical-path"])
def test_torchrecs_own_figures(
    run: Run, workload_file: Path, box: Path, tmp_path: Path, objective: str
) -> None:
    """The plan remembers that they were meant."""
    asked = (workload_file, "--system", box, *SEARCH, "--objective", objective)
    assert run("plan", *asked, "--torchrec-defaults", "-o", tmp_path / "run").code == 0
    plan = tmp_path / "run" / "plan.json"
    written = json.loads(plan.read_text())["solver"]
    again = run("estimate", workload_file, plan, "--system", box, "--json")
    assert solver(again)["value"] == pytest.approx(written["value"], rel=1e-9)
    assert solver(again)["torchrec_defaults"]
    assert "default figures" in run("estimate", workload_file, plan, "--system", box).out


@pytest.mark.parametrize("robust", ["worst", "mean"])
@pytest.mark.parametrize("objective", ["iteration", "phases"])
def test_scenarios(
    run: Run, workload_file: Path, box: Path, tmp_path: Path, objective: str, robust: str
) -> None:
    text = workload_file.read_text()
    other = tmp_path / "busy.yaml"
    other.write_text(text.replace("batch_size_per_rank: 512", "batch_size_per_rank: 2048"))
    flags = ("--scenario", other)
    asked = (workload_file, "--system", box, *SEARCH, "--objective", objective)
    done = run("plan", *asked, *flags, "--robust", robust, "-o", tmp_path / "run")
    assert done.code == 0, done.err
    plan = tmp_path / "run" / "plan.json"
    whole = json.loads(plan.read_text())
    written = whole["solver"]
    assert written["objective"] == f"{robust} {objective}"
    priced = ("estimate", workload_file, plan, "--system", box)
    document = json.loads(run(*priced, *flags, "--json").out)
    assert document["scenarios"] == whole["scenarios"]
    assert document["memory"] == whole["memory"]
    again = document["solver"]
    assert again["objective"] == written["objective"]
    assert again["value"] == pytest.approx(written["value"], rel=1e-9)
    alone = run(*priced, "--json")
    assert solver(alone)["objective"] == objective
    assert solver(alone)["value"] < written["value"]
    words = f"was made for the {robust} of the workload and 1 scenarios"
    assert any(words in text for text in json.loads(alone.out)["warnings"])
    assert words in " ".join(run(*priced).out.split())


def test_a_plan_that_does_not_fit_in_a_scenario_does_not_fit(
    run: Run, workload_file: Path, plan_file: Path, system_file: Path, tmp_path: Path
) -> None:
    priced = ("estimate", workload_file, plan_file, "--system", system_file)
    assert run(*priced, "-q").code == 0
    text = workload_file.read_text()
    other = tmp_path / "huge.yaml"
    other.write_text(text.replace("batch_size_per_rank: 512", "batch_size_per_rank: 50000000"))
    done = run(*priced, "--scenario", other)
    assert done.code == 1
    assert "huge" in done.out


def test_what_means_nothing_is_refused(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """But what only the plan's file asks, and cannot be had here, is left out with a warning."""
    asked = (workload_file, "--system", system_file, *SEARCH)
    rated = ("--objective", "torchrec", "-o", tmp_path / "run")
    assert run("plan", *asked, *rated).code == 0
    plan = tmp_path / "run" / "plan.json"
    priced = ("estimate", workload_file, plan, "--system", system_file)
    done = run(*priced, "--set", "training.batch_shares=proportional", "--json")
    assert solver(done)["objective"] == "iteration"
    assert any("made for objective torchrec, which is left out" in w
               for w in json.loads(done.out)["warnings"])  # fmt: skip
    assert run("plan", *asked, "-o", tmp_path / "run").code == 0
    for flags, words in (
        (("--objective", "speed"), "'speed' is not one of iteration"),
        (("--robust", "mean"), "--robust needs --scenario"),
        (("--torchrec-defaults",), "add --objective torchrec"),
        (("--scenario", tmp_path / "none.yaml"), "none.yaml"),
    ):
        refused = run(*priced, *flags)
        assert refused.code == 2
        assert words in refused.err


def test_no_value_is_said_in_words(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    asked = (workload_file, "--system", system_file, *SEARCH)
    text = workload_file.read_text()
    workload_file.write_text(f"{text}constraints: [{{tables: '*', kernels: [fused_uvm]}}]\n")
    assert run("plan", *asked, "-o", tmp_path / "run").code == 0
    system_file.write_text(system_file.read_text().replace("256 GiB", "1 MiB"))
    plan = tmp_path / "run" / "plan.json"
    priced = ("estimate", workload_file, plan, "--system", system_file, "--objective", "torchrec")
    done = run(*priced)
    assert done.code == 1
    assert "has no value: the plan takes more host memory" in done.out
    assert json.loads(run(*priced, "--json").out)["solver"]["value"] is None


@pytest.mark.parametrize("named", ["speed", "best iteration", "", "worst worst iteration"])
def test_a_plan_for_something_unknown_is_priced_by_its_iteration(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path, named: str
) -> None:
    values = json.loads(plan_file.read_text())
    values["solver"]["objective"] = named
    plan_file.write_text(json.dumps(values))
    done = run("estimate", workload_file, plan_file, "--system", system_file, "--json")
    assert solver(done)["objective"] == "iteration"
