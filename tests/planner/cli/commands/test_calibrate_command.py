"""``shardplan calibrate`` and ``validate torchrec`` around measurements that are made up."""

from __future__ import annotations

import json
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from costmodels.calibration.device import DeviceJob, HostCalls
from costmodels.calibration.fitting import Calibration, FitError
from costmodels.calibration.points import FULL, QUICK
from planner import io
from planner.io.documents import configs_folder
from planner.validation.tasks import BLOCK_TASKS
from tests.costmodels.cpu.machines import MACHINE
from tests.planner.cli.command_line import Run
from tests.planner.cli.commands.test_validate_runs import RUNS, outcome

ERROR = FitError(
    name="lookup forward",
    num_points=3,
    geomean_ratio=0.05,
    held_out_ratio=0.08,
    p90_ratio=0.2,
)


_ALL_ROWS = (configs_folder() / "published" / "gpu_h200.jsonl").read_text().splitlines()
ROWS = [line for line in _ALL_ROWS if '"ceilings"' in line] + _ALL_ROWS[-1:]

JOB = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
"""What torchrun sets for the first of four ranks."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A machine that is measured at once; what was asked of it."""
    seen: dict[str, object] = {}

    def measure_machine(effort: object, **options: object) -> str:
        seen.update(options, effort=effort)
        return "points"

    def fit_here(points: object, *, world_size: int, seed: int, effort: str) -> Calibration:
        seen.update(points=points, fitted_ranks=world_size)
        return Calibration(constants=MACHINE, errors=(ERROR,), seed=seed, effort=effort)

    def write_rows(job: DeviceJob, **options: object) -> None:
        seen.update(options, job=job)
        Path(job.path).write_text("\n".join(ROWS))

    def validate_tasks(topology: object, **options: object) -> list[object]:
        seen.update(options, topology=topology)
        coded = [outcome(0, 0.02, 0.02, "fp32"), outcome(0, 0.01, 0.011, "fp16")]
        return [coded if options["what"] == "fp16" else list(RUNS)]

    fakes = {
        "calibrate": {
            "measure_machine": measure_machine,
            "fit_here": fit_here,
            "calibrated_topology": lambda folder, ranks, progress: f"{ranks} ranks",
            "memory_bytes": lambda: 2.0**34,
            "sees_gpus": lambda: seen.get("gpus", 0),
            "write_rows": write_rows,
        },
        "runs": {"RunSettings": lambda **options: options, "validate_tasks": validate_tasks},
    }
    for name, functions in fakes.items():
        module = types.ModuleType(f"planner.integrations.measure.{name}")
        assert find_spec(module.__name__), "a stand-in for nothing would let the real one run"
        for key, function in functions.items():
            setattr(module, key, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("planner.cli.inputs.find_spec", lambda name: name)
    for name in JOB:
        monkeypatch.delenv(name, raising=False)
    return seen


def test_calibrate_writes_a_system(run: Run, asked: dict[str, object], tmp_path: Path) -> None:
    done = run("calibrate", "-o", tmp_path / "here.yaml", "--seed", "3")
    assert done.code == 0, done.err
    assert "lookup forward" in done.out
    assert (asked["effort"], asked["seed"], asked["world_size"]) == (FULL, 3, 2)
    assert io.load_system(tmp_path / "here.yaml").calibration.endswith("here.calibration.json")


def test_calibrate_prints_json(run: Run, asked: dict[str, object], tmp_path: Path) -> None:
    done = run("calibrate", "-o", tmp_path / "here.yaml", "--quick", "--ranks", "4", "--json")
    answer = json.loads(done.out)
    assert answer["fit"][0]["held_out_ratio"] == 0.08
    assert len(answer["written"]) == 2
    assert (asked["effort"], asked["world_size"]) == (QUICK, 4)


def test_calibrate_refuses_an_output_before_it_measures(
    run: Run, asked: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    for output, said in (
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "file" / "here.yaml", "is a file, not a folder"),
    ):
        refused = run("calibrate", "-o", output)
        assert (refused.code, said in refused.err) == (2, True), refused.err
    assert "effort" not in asked, "nothing is measured"


def test_both_commands_start_their_own_ranks_only(
    run: Run, asked: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    for command in (("validate", "torchrec"), ("calibrate", "-o", tmp_path / "here.yaml")):
        refused = run(*command)
        assert (refused.code, "a launcher has started it 4 times" in refused.err) == (2, True)
    assert not {"topology", "effort"} & set(asked)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert run("validate", "torchrec", "--tasks", "1").code == 0


def test_validate_prints_scores_and_writes_runs(
    run: Run, asked: dict[str, object], tmp_path: Path
) -> None:
    done = run("validate", "torchrec", "--tasks", "2", "--plans", "2", "-o", tmp_path)
    assert done.code == 0, done.err
    assert "torchrec" in done.out
    assert "0.7 cores" in done.err
    assert (asked["topology"], asked["what"]) == ("2 ranks", "dlrm")
    assert (tmp_path / "validate_torchrec_runs.csv").exists()
    answer = json.loads(run("validate", "torchrec", "--json").out)
    assert len(answer["runs"]) == 4
    assert answer["models"]["shardplan"]["num_tasks"] == 2


def test_validate_trains_the_kind_of_models_that_was_asked_for(
    run: Run, asked: dict[str, object]
) -> None:
    for models in BLOCK_TASKS:
        done = run("validate", "torchrec", "--models", models, "--tasks", "1")
        assert (done.code, asked["what"]) == (0, models), done.err
    done = run("validate", "torchrec", "--codec", "fp16", "--tasks", "3")
    assert (done.code, asked["what"], asked["num_tasks"]) == (0, "fp16", 3), done.err
    assert "Time with fp16 exchanges over time with fp32" in done.out
    assert run("validate", "torchrec", "--codec", "fp16", "--models", "dlrm").code == 0
    refused = run("validate", "torchrec", "--models", "sequence", "--codec", "bf16")
    assert refused.code == 2
    assert "--codec and --models exclude each other" in refused.err


def test_validate_uses_the_given_system(
    run: Run, asked: dict[str, object], system_file: Path
) -> None:
    done = run("validate", "torchrec", "--system", system_file, "--ranks", "4")
    assert done.code == 0, done.err
    assert asked["topology"].world_size == 4  # type: ignore[attr-defined]


def test_a_gpu_is_measured_into_rows_and_a_system(
    run: Run, asked: dict[str, object], tmp_path: Path
) -> None:
    asked["gpus"] = 4
    done = run("calibrate", "-o", tmp_path / "here.yaml", "--system", "h200_sxm", "--quick")
    assert done.code == 0, done.err
    assert "device: cuda, torch sees 4 GPUs" in done.err
    assert (asked["world_size"], asked["job"].kind) == (1, "cuda")  # type: ignore[attr-defined]
    assert (tmp_path / "here.rows.jsonl").exists()
    device = io.load_system(tmp_path / "here.yaml").device
    assert 4.2e12 < device.hbm_bandwidth_bytes_per_s < 4.3e12


def test_rows_replace_no_file_of_another_kind(run: Run, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("keep me\n", encoding="utf-8")
    done = run("calibrate", "--rows", notes)
    assert done.code == 2
    assert "notes.txt:1: not well-formed JSON" in done.err
    assert notes.read_text(encoding="utf-8") == "keep me\n"


def test_rows_can_be_measured_without_a_system(
    run: Run, asked: dict[str, object], tmp_path: Path
) -> None:
    rows = tmp_path / "cores.jsonl"
    done = run("calibrate", "--device", "cpu", "--rows", rows, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"] == len(ROWS) - 1
    assert asked["job"].effort.size_ratio < 1  # type: ignore[attr-defined]
    assert "effort" not in asked, "nobody asked for a system of CPU ranks"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "nothing to write"),
        (("-o", "x.yaml", "--from", "r.jsonl"), "--from needs --system"),
        (
            ("-o", "x.yaml", "--from", "r.jsonl", "--system", "h100_sxm", "--quick"),
            "--from and --quick exclude",
        ),
        (("-o", "x.yaml", "--from", "r.jsonl", "--system", "h100_sxm", "--seed", "1"), "--seed"),
        (("--host", "--rows", "r.jsonl"), "--host and --rows exclude"),
        (("--host", "--from", "r.jsonl"), "--host and --from exclude"),
        (("--host", "--device", "cuda"), "torch sees no GPU"),
        (("-o", "x.yaml", "--device", "cuda"), "needs --system"),
        (("-o", "x.yaml", "--device", "cpu", "--system", "h100_sxm"), "drop --system"),
        (("-o", "x.yaml", "--device", "cpu", "--ranks", "1"), "need at least 2 ranks"),
        (("--device", "cuda", "-o", "x.yaml", "--system", "h101"), "no shipped system"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(
    run: Run,
    asked: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("calibrate", *flags)
    assert (refused.code, said in refused.err) == (2, True), refused.err
    assert not list(tmp_path.iterdir())
    assert "job" not in asked


def test_calls_of_the_host_are_printed_and_written(
    run: Run, asked: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_host(kind: str) -> HostCalls:
        asked["kind"] = kind
        return HostCalls(eager_call_s=2e-5, eager_pass_s=3e-4, machine="some host")

    module = types.ModuleType("planner.integrations.measure.device_rows")
    assert find_spec(module.__name__), "a stand-in for nothing would let the real one run"
    monkeypatch.setattr(module, "measure_host", measure_host, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    done = run("calibrate", "--host")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "host:",
        "  eager_call: 20.00 us (measured, some host)",
        "  eager_pass: 300.0 us (measured, some host)",
    ]
    assert asked["kind"] == "cpu"
    path = tmp_path / "mine.yaml"
    path.write_text(f"base: h200_sxm\nname: mine\n{done.out.replace('20.00', '5')}")
    told = run("calibrate", "--host", "-o", path, "--json")
    assert json.loads(told.out)["written"] == [str(path)]
    assert io.load_system(path).host.eager_call_s == pytest.approx(2e-5)
    assert io.load_system(path).host.eager_pass_s == pytest.approx(3e-4)
    lost = run("calibrate", "--host", "-o", tmp_path / "none.yaml")
    assert (lost.code, "cannot be read: No such file" in lost.err) == (2, True)
