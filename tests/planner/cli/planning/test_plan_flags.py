"""Flags of ``plan`` beyond workload, system and search, with the real planner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels import units
from tests.planner.cli.command_line import Done, Run

FEW = ("--evaluations", "8")
QUICK = (*FEW, "--json", "-q")


@pytest.fixture
def plan(run: Run, workload_file: Path, system_file: Path) -> Run:
    """``shardplan plan`` of the small workload on four ranks."""

    def once(*args: object) -> Done:
        return run("plan", workload_file, "--system", system_file, "--gpus", 4, *args)

    return once


def ranks(done: Done, table: str) -> set[int]:
    plan = json.loads(done.out)["plan"]
    return {
        r for module in plan.values() for t, e in module.items() if t == table for r in e["ranks"]
    }


def test_constraints_of_a_file(plan: Run, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("constraints:\n  - {together: [user, item]}\n  - {tables: user, ranks: [2]}\n")
    done = plan(*QUICK, "--constraints", rules)
    assert done.code in (0, 4), done.err
    assert ranks(done, "user") == ranks(done, "item") == {2}
    rules.write_text(rules.read_text() + "  - {apart: [user, item]}\n")
    refused = plan(*QUICK, "--constraints", rules)
    assert refused.code == 2
    assert "both name 'user', 'item'" in refused.err


def test_from_a_plan_in_use(plan: Run, tmp_path: Path) -> None:
    first = plan(*QUICK, "--strategy", "size_greedy", "-o", tmp_path / "a")
    assert first.code in (0, 4), first.err
    use = tmp_path / "a" / "plan.json"
    done = plan(*FEW, "--from", use, "--max-moved-tables", 1, "-o", tmp_path / "b")
    assert done.code in (0, 4), done.err
    assert "Move" in done.out
    data = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert data["reshard"]["moved_tables"] <= 1
    before = json.loads(use.read_text())["predicted"]["iteration_time_s"]
    assert data["predicted"]["iteration_time_s"] <= before * (1 + 1e-9)


def test_the_plan_in_use_is_not_written_over(plan: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert plan(*QUICK, "-o", folder).code == 0
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    done = plan(*QUICK, "--from", folder / "plan.json", "-o", folder)
    assert (done.code, "would be lost" in done.err) == (2, True)
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before


def test_scenarios_and_price(plan: Run, workload_file: Path, tmp_path: Path) -> None:
    weekend = tmp_path / "weekend.yaml"
    text = workload_file.read_text().replace("pooling_factor: 8", "pooling_factor: 80")
    weekend.write_text(text.replace("name: small\n", "name: weekend\n"))
    args = ("--scenario", weekend, "--robust", "mean", "--price", "2 USD/h")
    done = plan(*FEW, *args, "-o", tmp_path / "run")
    assert done.code in (0, 4), done.err
    assert "Scenarios" in done.out
    assert "4 GPUs at 2 USD/h (user, --price)" in done.out
    data = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert [s["name"] for s in data["scenarios"]] == ["small", "weekend"]
    assert data["usd_per_billion_samples"] > 0
    assert data["solver"]["objective"] == "mean iteration"


def test_constraints_of_a_scenario_are_left_out_with_a_word(
    plan: Run, run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Unless they are those of the workload, whose copy a scenario often is."""
    rule = "constraints: [{tables: user, sharding_types: [row_wise]}]\n"
    scenario = tmp_path / "weekend.yaml"
    scenario.write_text(workload_file.read_text() + rule)
    words = "its constraints are left out"
    done = plan(*FEW, "--scenario", scenario, "-o", tmp_path / "run")
    assert (done.code, words in " ".join(done.out.split())) == (0, True)
    priced = ("estimate", workload_file, tmp_path / "run" / "plan.json", "--system", system_file)
    assert words in run(*priced, "--scenario", scenario, "--json").out
    workload_file.write_text(scenario.read_text())
    assert words not in plan(*QUICK, "--scenario", scenario).out


def test_scenarios_have_names_of_their_own_and_the_slowest_is_the_headline(
    plan: Run, run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """A variant that kept the workload's name goes by its file's."""
    weekend = tmp_path / "weekend.yaml"
    weekend.write_text(
        workload_file.read_text().replace("pooling_factor: 8", "pooling_factor: 2000")
    )
    done = plan(*FEW, "--scenario", weekend, "-o", tmp_path / "run")
    assert done.code == 0, done.err
    data = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert [s["name"] for s in data["scenarios"]] == ["small", "weekend"]
    slowest = max(data["scenarios"], key=lambda s: s["time_s"])
    assert slowest["name"] == "weekend"
    assert slowest["low_s"] < slowest["time_s"] < slowest["high_s"]
    headline = done.out[done.out.index("Predicted") :]
    assert "in weekend, the slowest scenario" in headline
    assert f"{units.format_time(slowest['time_s'])}/iter" in headline.splitlines()[0]
    priced = ("estimate", workload_file, tmp_path / "run" / "plan.json", "--system", system_file)
    again = run(*priced, "--scenario", weekend, "--scenario", weekend, "--json")
    names = [s["name"] for s in json.loads(again.out)["scenarios"]]
    assert names == ["small", "weekend (1)", "weekend (2)"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--max-moved-tables", 3), "--from"),
        (("--robust", "mean"), "--scenario"),
        (("--price", "3"), "USD/h"),
        (("--constraints", "missing.yaml"), "missing.yaml"),
    ],
)
def test_bad_flags_say_what_to_add(plan: Run, args: tuple[object, ...], words: str) -> None:
    done = plan(*args)
    assert done.code == 2
    assert words in done.err
    assert done.out == ""


def test_the_curve_of_moves_is_printed_and_the_diff_written(
    run: Run, tmp_path: Path, workload_file: Path, system_file: Path
) -> None:
    asked = ("plan", workload_file, "--system", system_file, "--evaluations", 8)
    assert run(*asked, "--strategy", "random", "-o", tmp_path / "old", "-q").code == 0
    used = ("--from", tmp_path / "old" / "plan.json", "--max-moved-tables", 3, "--curve")
    done = run(*asked, *used, "-o", tmp_path / "new")
    assert done.code == 0, done.err
    assert "Bytes moved against step time" in done.out
    assert "1 table " in done.out
    told = json.loads((tmp_path / "new" / "plan.json").read_text())
    assert [p["most_tables"] for p in told["curve"]] == [0, 1, 2, None]
    diff = json.loads((tmp_path / "new" / "reshard.json").read_text())
    assert diff["modules"] or diff["restart"] or not told["reshard"]["moved_tables"]
    refused = run(*asked, "--curve")
    assert refused.code == 2
    assert "--curve needs --from" in refused.err
