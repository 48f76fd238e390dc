"""``export`` and ``validate trace``: files that other tools read, and back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner import io
from planner.cli.output import refuse_own_input
from planner.errors import InvalidInputError
from planner.io.documents import with_named_files
from tests.planner.cli.command_line import Run


@pytest.fixture
def planned(workload_file: Path, plan_file: Path) -> tuple[Path, ...]:
    """Workload and plan of a finished run."""
    return workload_file, plan_file


def test_traces_go_out_and_come_back(
    run: Run, planned: tuple[Path, ...], system_file: Path, tmp_path: Path
) -> None:
    """What is exported validates without error; a second export replaces the first."""
    folder = tmp_path / "trace"
    for _ in range(2):
        done = run("export", "trace", *planned, "--system", system_file, "-o", folder)
        assert done.code == 0
    assert sorted(p.name for p in folder.iterdir()) == [f"rank-{r}.json.gz" for r in range(4)]
    files = sorted(folder.iterdir())
    told = run("validate", "trace", *planned, *files, "--system", system_file, "--json")
    rows = json.loads(told.out)["rows"]
    assert {r["rank"] for r in rows} == {0, 1, 2, 3}
    assert all(abs(r["error_ratio"]) < 0.01 for r in rows if r["wait_s"] == 0)


def test_one_rank_can_be_chosen(
    run: Run, planned: tuple[Path, ...], system_file: Path, tmp_path: Path
) -> None:
    """Ranks that do not exist are refused before anything is written."""
    folder = tmp_path / "trace"
    asked = ("export", "trace", *planned, "--system", system_file, "-o", folder)
    assert run(*asked, "--rank", 9).code == 2
    assert not folder.exists()
    assert run(*asked, "--rank", 2).code == 0
    assert [p.name for p in folder.iterdir()] == ["rank-2.json.gz"]


def test_a_folder_of_other_things_is_left_alone(
    run: Run, planned: tuple[Path, ...], system_file: Path, tmp_path: Path
) -> None:
    """Exit code 2, and nothing written."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    done = run("export", "trace", *planned, "--system", system_file, "-o", folder)
    assert done.code == 2
    assert "thesis.tex" in done.err
    assert [p.name for p in folder.iterdir()] == ["thesis.tex"]


def test_a_folder_inside_a_file_is_refused_as_such(
    run: Run, planned: tuple[Path, ...], system_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("x")
    folder = tmp_path / "notes" / "trace"
    done = run("export", "trace", *planned, "--system", system_file, "-o", folder)
    assert done.code == 2
    assert "notes is a file, not a folder" in done.err


def test_the_exported_plan_is_the_plan(
    run: Run, planned: tuple[Path, ...], system_file: Path, tmp_path: Path
) -> None:
    """As TorchRec's serialization and as CSV, shard by shard."""
    workload, topology = io.load_workload(planned[0]), io.load_system(system_file)
    original = io.load_plan(planned[1], workload, topology).plan
    out, rows = tmp_path / "torchrec.json", tmp_path / "shards.csv"
    assert run("export", "torchrec", *planned, "--system", system_file, "-o", out).code == 0
    assert io.load_plan(out, workload, topology).plan == original
    assert run("export", "csv", *planned, "--system", system_file, "-o", rows).code == 0
    with rows.open() as file:
        listed = list(csv.DictReader(file))
    assert len(listed) == sum(len(p.shards) for p in original.placements)


def test_the_matrix_says_how_to_replay_it(
    run: Run, planned: tuple[Path, ...], system_file: Path, tmp_path: Path
) -> None:
    """The command of nccl-tests is printed with the buffer size it needs."""
    out = tmp_path / "matrix.txt"
    done = run("export", "nccl-matrix", *planned, "--system", system_file, "-o", out)
    assert done.code == 0
    assert f"NCCL_TESTS_ALLTOALLV_MATRIX_FILE={out} \\\n  alltoallv_perf -b " in done.out
    rows = [line.split() for line in out.read_text().splitlines()]
    assert [len(row) for row in rows] == [4] * 4


@pytest.mark.parametrize("kind", ["torchrec", "csv", "nccl-matrix"])
def test_no_file_that_is_read_is_written_over(
    kind: str, run: Run, planned: tuple[Path, ...], system_file: Path
) -> None:
    for path in (*planned, system_file):
        before = path.read_text()
        done = run("export", kind, *planned, "--system", system_file, "-o", path)
        assert (done.code, "would be lost" in done.err) == (2, True)
        assert path.read_text() == before


def test_no_file_that_an_input_names_is_written_over(
    run: Run, planned: tuple[Path, ...], system_file: Path, tmp_path: Path
) -> None:
    """The base of a system was replaced by a system that stood on itself."""
    child = tmp_path / "child.yaml"
    child.write_text(f"base: {system_file.name}\nname: child\n")
    other = tmp_path / "grand.yaml"
    other.write_text(f"base: {child.name}\nlong: {'x' * 5000}\n")
    assert with_named_files([other, tmp_path / "none"]) == {other, child, system_file}
    for path in (system_file, child):
        before = path.read_text()
        done = run("export", "csv", *planned, "--system", child, "-o", path)
        assert (done.code, "would be lost" in done.err) == (2, True)
        assert path.read_text() == before


@pytest.mark.parametrize("command", ["export", "fit", "drift"])
def test_a_file_that_only_a_flag_names_is_not_written_over(
    command: str, run: Run, planned: tuple[Path, ...], system_file: Path
) -> None:
    """The statistics of ``--set`` were replaced by the output, in silence."""
    workload, plan = planned
    stats = workload.with_name("s.json")
    stats.write_text("{}")
    words = {
        "export": ["csv", workload, plan],
        "fit": [workload, "--run", f"{plan}=3 ms"],
        "drift": [workload, plan, "--stats", stats],
    }[command]
    for change in (
        "tables.0.distribution.stats=s.json",
        "tables.0.distribution.stats='s.json' # measured",
        "tables.0.distribution={stats: s.json}",
    ):
        named = ["--set", change, "--system", system_file]
        done = run(command, *words, *named, "-o", stats)
        assert (done.code, "would be lost" in done.err) == (2, True)
        assert stats.read_text() == "{}"


def test_statistics_that_a_workload_names_are_not_written_over(tmp_path: Path) -> None:
    stats, workload = tmp_path / "s.json", tmp_path / "w.yaml"
    stats.write_text("{}")
    workload.write_text("tables: [{name: a, distribution: {stats: s.json}}]\n")
    with pytest.raises(InvalidInputError, match="would be lost"):
        refuse_own_input([stats], [workload])
    refuse_own_input([tmp_path / "new.json"], [workload])
