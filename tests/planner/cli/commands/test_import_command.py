"""``import``: each tool's file becomes a workload that checks and plans, or one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from planner import io
from tests.planner.cli.command_line import Done, Run
from tests.planner.io.importers import samples

SYSTEM = ("--system", "h100_sxm", "--gpus", 8)


def saved(folder: Path, value: object) -> Path:
    """A JSON file of that content."""
    path = folder / "theirs.json"
    path.write_text(json.dumps(value))
    return path


IMPORTS: dict[str, Callable[[Path], list[object]]] = {
    "torchrec": lambda f: [saved(f, samples.torchrec_plan()), "--shape", "hour=24x4"],
    "dlrm_s": lambda f: ["--", *samples.SMALL_DLRM.split()],
    "dlrm_main": lambda f: ["--", samples.TORCHREC_DLRM],
    "hugectr": lambda f: [saved(f, samples.hugectr_config())],
    "fbgemm": lambda f: [saved(f, samples.tbe_config())],
    "param": lambda f: [saved(f, samples.param_config())],
}


def arguments(kind: str, folder: Path, *options: object) -> list[object]:
    """The command line that imports a sample; options of ours stand before the ``--``."""
    return ["import", kind.partition("_")[0], *options, *IMPORTS[kind](folder)]


@pytest.mark.parametrize("kind", IMPORTS)
def test_imported_files_check_and_plan(kind: str, run: Run, tmp_path: Path) -> None:
    output = tmp_path / "ours.yaml"
    done = run(*arguments(kind, tmp_path, "-o", output))
    assert done.code == 0, done.err
    assert f"written to {output}; assumed:" in done.err
    checked = run("check", output)
    assert checked.code == 0, checked.err
    folder = tmp_path / "run"
    planned = run("plan", output, *SYSTEM, "--evaluations", 8, "-o", folder, "-q")
    assert planned.code == 0, planned.err
    assert io.load_plan(folder / "plan.json").world_size == 8


@pytest.mark.parametrize("kind", IMPORTS)
def test_stdout_holds_the_workload_or_json(kind: str, run: Run, tmp_path: Path) -> None:
    shown = run(*arguments(kind, tmp_path, "--name", "mine", "--batch-size", 96))
    path = tmp_path / "shown.yaml"
    path.write_text(shown.out)
    workload = io.load_workload(path)
    assert (workload.name, workload.batch_size_per_rank) == ("mine", 96)
    told = json.loads(run(*arguments(kind, tmp_path, "--json", "--batch-size", 96)).out)
    assert told["tables"] == len(workload.tables)
    assert "training.batch_size_per_rank" not in told["assumed"]
    assert told["files"] == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("torchrec", {"plan": {"m": {"t": {"sharding_type": "diagonal"}}}}),
        ("torchrec", []),
        ("hugectr", {"layers": []}),
        ("hugectr", {"layers": [], "solver": {"batchsize": -1}}),
        ("fbgemm", {"T": 1}),
        ("fbgemm", 3),
        ("param", {}),
        ("collectives", {"results": 3}),
    ],
)
def test_broken_files_leave_nothing_behind(
    kind: str, value: object, run: Run, tmp_path: Path
) -> None:
    path = saved(tmp_path, value)
    done = run("import", kind, path, "-o", tmp_path / "out.yaml")
    assert done.code == 2
    assert done.err.startswith(f"shardplan: error: {path}")
    assert "Traceback" not in done.err
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["torchrec", "hugectr", "fbgemm", "param"])
@pytest.mark.parametrize(
    "text", [None, "", "{", "\x00", '{"a": NaN}', "[" * 2000, "é".encode("latin-1")]
)
def test_files_that_are_no_json(
    kind: str, text: str | bytes | None, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.json"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    done = run("import", kind, path, "-o", tmp_path / "out.yaml")
    assert done.code == 2
    assert str(path) in done.err
    assert not (tmp_path / "out.yaml").exists()


@pytest.mark.parametrize("shape", ["hour", "hour=24", "hour=axb", "=1x2", "hour=-1x4"])
def test_shapes_that_are_none(shape: str, run: Run, tmp_path: Path) -> None:
    path = saved(tmp_path, samples.torchrec_plan())
    done = run("import", "torchrec", path, "--shape", shape)
    assert done.code == 2
    assert "NAME=ROWSxCOLUMNS" in done.err


def priced(run: Run, workload: Path, plan: Path) -> Done:
    """What ``estimate`` says of a plan."""
    return run("estimate", workload, plan, "--system", "h100_sxm", "--json")


def test_hugectr_plans_are_priced_and_go_back(run: Run, tmp_path: Path) -> None:
    """Configuration to workload and plan; plan file to plan; plan to plan file."""
    workload, plan = tmp_path / "w.yaml", tmp_path / "plan.json"
    config = saved(tmp_path, samples.hugectr_config())
    done = run("import", "hugectr", config, "-o", workload, "--plan", plan)
    assert done.code == 0, done.err
    assert priced(run, workload, plan).code == 0
    theirs = saved(tmp_path, samples.hugectr_plan())
    done = run("import", "hugectr", theirs, "--workload", workload, "--plan", plan)
    assert (done.code, done.out) == (0, ""), done.err
    assert priced(run, workload, plan).code == 0
    back = tmp_path / "back.json"
    exported = run("export", "hugectr", workload, plan, "--system", "h100_sxm", "-o", back)
    assert exported.code == 0, exported.err
    again = tmp_path / "again.json"
    done = run("import", "hugectr", back, "--workload", workload, "--plan", again)
    assert done.code == 0
    assert again.read_text() == plan.read_text()


def test_hugectr_flags_that_do_not_go_together(run: Run, tmp_path: Path) -> None:
    config, plan = tmp_path / "config.json", tmp_path / "theirs.json"
    config.write_text(json.dumps(samples.hugectr_config()))
    plan.write_text(json.dumps(samples.hugectr_plan()))
    assert "leave --workload out" in run("import", "hugectr", config, "--workload", plan).err
    assert "leave --gpus-per-host out" in run("import", "hugectr", config, "--gpus-per-host", 2).err
    done = run("import", "hugectr", plan, "--plan", tmp_path / "out.json")
    assert (done.code, "add --workload" in done.err) == (2, True)
    config.write_text(json.dumps(samples.hugectr_config("HybridSparseEmbedding")))
    out = tmp_path / "out.yaml"
    done = run("import", "hugectr", config, "-o", out, "--plan", tmp_path / "out.json")
    assert (done.code, out.exists()) == (2, False)


def test_one_path_for_two_files_is_refused(run: Run, tmp_path: Path) -> None:
    config, out = saved(tmp_path, samples.hugectr_config()), tmp_path / "out"
    done = run("import", "hugectr", config, "-o", out, "--plan", out)
    assert (done.code, out.exists()) == (2, False)


@pytest.mark.parametrize("kind", ["torchrec", "hugectr", "fbgemm", "param"])
def test_the_file_that_is_read_is_never_written_over(kind: str, run: Run, tmp_path: Path) -> None:
    words = arguments(kind, tmp_path)
    theirs = tmp_path / "theirs.json"
    before = theirs.read_text()
    done = run(*words, "-o", tmp_path / "." / "theirs.json")
    assert (done.code, "would be lost; name another output" in done.err) == (2, True)
    assert theirs.read_text() == before


def test_models_and_plans_are_read_by_commands_of_their_own(run: Run, tmp_path: Path) -> None:
    plan = saved(tmp_path, samples.torchrec_plan())
    done = run("import", "torchrec", plan, "--shape", "hour=24x4", "--device", "cuda")
    assert (done.code, "No such option '--device'" in done.err) == (2, True)
    done = run("import", "torchrec", "package.models:build", "--shape", "hour=24x4")
    assert (done.code, "'shardplan import module' reads the model" in done.err) == (2, True)
