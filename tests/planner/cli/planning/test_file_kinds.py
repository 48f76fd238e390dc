"""A file of one kind in the place of another is named in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.run import run
from planner.io.documents import configs_folder, kind_of

CONFIGS = configs_folder()
FILES = {
    "workload": (CONFIGS / "workloads" / "small_demo.yaml").read_text(),
    "system": (CONFIGS / "systems" / "h100_sxm.yaml").read_text(),
    "constraints": "constraints: [{max_tables_per_rank: 2}]\n",
    "plan": '{"schema_version": 1, "plan": {"m": {}}}',
    "stats": '{"kind": "shardplan_stats", "schema_version": 2, "tables": {}}',
}
ARE = {
    "workload": "a workload",
    "system": "a system",
    "constraints": "a file of constraints",
    "plan": "a plan",
    "stats": "statistics of 'shardplan profile'",
}


@pytest.mark.parametrize("wanted", ["workload", "system", "constraints", "plan"])
@pytest.mark.parametrize("given", FILES)
def test_another_kind_of_file_is_named(
    wanted: str, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if given == wanted:
        return
    path = tmp_path / f"given.{'json' if given in {'plan', 'stats'} else 'yaml'}"
    path.write_text(FILES[given])
    words = {
        "workload": ["plan", path, "--system", "h100_sxm"],
        "system": ["plan", "small_demo", "--system", path],
        "constraints": ["plan", "small_demo", "--system", "h100_sxm", "--constraints", path],
        "plan": ["estimate", "small_demo", path, "--system", "h100_sxm", "--gpus", "8"],
    }[wanted]
    assert run([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"is {ARE[given]}, and {ARE[wanted]} is expected here" in said


def test_names_of_the_other_kind_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "h100_sxm", "--system", "h100_sxm"]) == 2
    assert "it is the name of a shipped system" in capsys.readouterr().err
    assert run(["plan", "small_demo", "--system", "small_demo"]) == 2
    assert "it is the name of a shipped workload" in capsys.readouterr().err


def test_files_of_no_kind_or_of_several_are_left_to_their_readers() -> None:
    assert kind_of({"training": {}, "constraints": []}) == "a workload"
    assert kind_of({"a": 1}) is None
    assert kind_of([1]) is None
