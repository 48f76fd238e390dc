"""``shardplan check`` by its command line."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.planner.cli.command_line import Run


def test_check_tells_the_kind(
    run: Run, workload_file: Path, system_file: Path, plan_file: Path, tmp_path: Path
) -> None:
    done = run("check", workload_file)
    assert done.code == 0
    assert " ".join(done.out.split()).startswith(f"OK {workload_file}: workload: 6 tables")
    words = " ".join((run("check", system_file).out + run("check", plan_file).out).split())
    assert "system: 4 x small_box per host, 16 GiB" in words
    assert "plan: 6 tables on 4 ranks" in words
    table = tmp_path / "tables.csv"
    table.write_text("name,rows,dim\nuser,100,8\n")
    assert "workload: 1 table, " in " ".join(run("check", table).out.split())
    data = json.loads(run("check", workload_file, "--json").out)
    assert (data["ok"], data["kind"]) == (True, "workload")
    for path, kind in ((workload_file, "workload"), (system_file, "system")):
        named = path.rename(path.with_suffix(".json"))
        assert f"OK {named}: {kind}: " in " ".join(run("check", named).out.split())


@pytest.mark.parametrize(
    ("name", "words"), [("h100_smx", "no set 'h100_smx'"), ("none.csv", "none.csv")]
)
def test_check_reads_the_curves_that_a_system_names(
    run: Run, system_file: Path, name: str, words: str
) -> None:
    assert run("check", system_file).code == 0
    system_file.write_text(f"{system_file.read_text()}collective_curves: [{name}]\n")
    done = run("check", system_file)
    assert done.code == 2
    assert f"{system_file}:" in done.err
    assert words in done.err


def test_check_lists_every_error(run: Run, workload_file: Path) -> None:
    text = workload_file.read_text()
    workload_file.write_text(
        text.replace("1 GiB", "1").replace("embedding_dim: 32, pool", "embedding_dim: -1, pool")
    )
    done = run("check", workload_file)
    assert done.code == 2
    assert len(done.err.splitlines()) >= 3
    assert f"{workload_file}:4" in done.err
    failed = run("check", workload_file, "--json")
    assert failed.code == 2
    data = json.loads(failed.out)
    assert data["ok"] is False
    assert len(data["problems"]) == len(done.err.splitlines())


def test_check_of_constraints(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "constraints:\n  - {tables: 'user*', sharding_types: [row_wise]}\n  - {apart: [a, b]}\n"
    )
    done = run("check", path)
    assert done.code == 0, done.err
    assert "constraints: 2 rules" in " ".join(done.out.split())
    path.write_text(path.read_text().replace("row_wise", "rowwise"))
    done = run("check", path)
    assert done.code == 2
    assert f"{path}:2" in done.err


def test_what_comes_through_a_pipe_is_read_as_often_as_it_is_needed(
    run: Run, workload_file: Path, plan_file: Path
) -> None:
    """As from the shell's ``<(command)``: the kind, the errors and the values are read in turn."""
    reading, writing = os.pipe()
    os.write(writing, workload_file.read_bytes())
    os.close(writing)
    done = run("check", f"/dev/fd/{reading}")
    os.close(reading)
    assert done.code == 0, done.err
    assert "workload: 6 tables" in " ".join(done.out.split())
    reading, writing = os.pipe()
    os.write(writing, plan_file.read_bytes())
    os.close(writing)
    done = run("estimate", workload_file, f"/dev/fd/{reading}", "--system", "h100_sxm", "-q")
    os.close(reading)
    assert done.code == 0, done.err


def test_a_pipe_with_a_name_is_waited_for_once(
    run: Run, workload_file: Path, tmp_path: Path
) -> None:
    """Opening such a pipe waits for a writer, and there is none after the first time."""
    pipe = tmp_path / "workload.yaml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[workload_file.read_bytes()])
    writer.start()
    done = run("check", pipe)
    writer.join(timeout=10)
    assert not writer.is_alive()
    assert done.code == 0, done.err
    assert "workload: 6 tables" in " ".join(done.out.split())


def test_check_of_something_else(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("colour: red\n")
    done = run("check", path)
    assert done.code == 2
    assert "neither a workload" in done.err


def test_check_tells_what_a_file_leaves_open(run: Run, workload_file: Path, tmp_path: Path) -> None:
    """A file without a reserve is well formed, and it is said what that means."""
    path = tmp_path / "bare.yaml"
    path.write_text(
        "name: w\ntraining: {batch_size_per_rank: 512}\ntables:\n"
        "  - {name: a, num_embeddings: 5000, embedding_dim: 16}\n"
    )
    done = run("check", path)
    assert done.code == 0
    assert "no memory.reserve" in done.err
    told = json.loads(run("check", path, "--json").out)["warnings"]
    assert any("no memory.reserve" in text for text in told)


def test_a_pipe_gets_a_long_name_on_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    path = tmp_path / f"{'long ' * 20}name.yaml"
    assert run("import", "tables", path, "--tables", 2).out == f"Wrote {path}\n"
    assert run("check", path).out.startswith(f"OK  {path}: workload: 2 tables, ")
