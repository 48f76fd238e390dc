"""``shardplan calibrate`` and ``validate torchrec`` around measurements that are made up."""

from __future__ import annotations

import json
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from costmodels.calibration.designs import FULL, QUICK
from costmodels.calibration.fit_machine import Fitted
from costmodels.calibration.fitting import FitError
from planner import io
from planner.validation.block_tasks import BLOCK_TASKS
from tests.costmodels.cpu.machines import MACHINE
from tests.planner.cli.command_line import Run
from tests.planner.cli.commands.test_validate_runs import RUNS, outcome

ERROR = FitError(
    name="lookup forward",
    num_points=3,
    geomean_ratio=0.05,
    held_out_ratio=0.08,
    p90_ratio=0.2,
    odd_points=("1000 x 64: predicted / measured 2.00",),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A machine that is measured at once; what was asked of it."""
    seen: dict[str, object] = {}

    def calibrate_machine(effort: object, **options: object) -> tuple[None, Fitted]:
        seen.update(options, effort=effort)
        return None, Fitted(constants=MACHINE, errors=(ERROR,))

    def validate_tasks(topology: object, **options: object) -> list[object]:
        seen.update(options, topology=topology)
        options["progress"](RUNS)  # type: ignore[operator]
        return list(RUNS)

    def validate_codecs(topology: object, **options: object) -> list[object]:
        seen.update(options, topology=topology)
        return [outcome(0, 0.02, 0.02, "fp32"), outcome(0, 0.01, 0.011, "fp16")]

    def validate_skew(topology: object, **options: object) -> list[object]:
        seen.update(options, topology=topology)
        return [outcome(0, 0.02, 0.02, "0"), outcome(0, 0.01, 0.011, "1.2")]

    fakes = {
        "calibrate_cpu": {
            "calibrate_machine": calibrate_machine,
            "calibrated_topology": lambda folder, ranks, progress: f"{ranks} ranks",
            "memory_bytes": lambda: 2.0**34,
        },
        "runs": {"RunSettings": lambda **options: options},
        "validate_torchrec": {
            "validate_tasks": validate_tasks,
            "validate_skew": validate_skew,
            "validate_codecs": validate_codecs,
        },
    }
    for name, functions in fakes.items():
        module = types.ModuleType(f"planner.integrations.measure.{name}")
        assert find_spec(module.__name__), "a stand-in for nothing would let the real one run"
        for key, function in functions.items():
            setattr(module, key, function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("planner.cli.real_runs.find_spec", lambda name: name)
    return seen


def test_calibrate_writes_a_system(run: Run, asked: dict[str, object], tmp_path: Path) -> None:
    done = run("calibrate", "-o", tmp_path / "here.yaml", "--seed", "3")
    assert done.code == 0, done.err
    assert "lookup forward" in done.out
    assert "Points that look wrong" in done.out
    assert (asked["effort"], asked["seed"], asked["world_size"]) == (FULL, 3, 2)
    assert io.load_system(tmp_path / "here.yaml").calibration.endswith("here.calibration.json")


def test_calibrate_prints_json(run: Run, asked: dict[str, object], tmp_path: Path) -> None:
    done = run("calibrate", "-o", tmp_path / "here.yaml", "--quick", "--ranks", "4", "--json")
    answer = json.loads(done.out)
    assert answer["fit"][0]["held_out_ratio"] == 0.08
    assert len(answer["written"]) == 2
    assert (asked["effort"], asked["world_size"]) == (QUICK, 4)


def test_validate_prints_scores_and_writes_runs(
    run: Run, asked: dict[str, object], tmp_path: Path
) -> None:
    done = run("validate", "torchrec", "--tasks", "2", "--plans", "2", "-v", "-o", tmp_path)
    assert done.code == 0, done.err
    assert "Every plan" in done.out
    assert "torchrec" in done.out
    assert "0.7 cores" in done.err
    assert (asked["topology"], asked["models"]) == ("2 ranks", "dlrm")
    assert (tmp_path / "validate_torchrec_runs.csv").exists()
    answer = json.loads(run("validate", "torchrec", "--json").out)
    assert len(answer["runs"]) == 4
    assert answer["models"]["shardplan"]["num_tasks"] == 2


def test_validate_trains_the_kind_of_models_that_was_asked_for(
    run: Run, asked: dict[str, object]
) -> None:
    for models in BLOCK_TASKS:
        done = run("validate", "torchrec", "--models", models, "--tasks", "1")
        assert (done.code, asked["models"]) == (0, models), done.err
    done = run("validate", "torchrec", "--codec", "fp16", "--tasks", "3")
    assert (done.code, asked["codec"], asked["num_tasks"]) == (0, "fp16", 3), done.err
    assert "Time with fp16 exchanges over time with fp32" in done.out
    for pair in (("--models", "sequence", "--skew"), ("--codec", "bf16", "--skew")):
        refused = run("validate", "torchrec", *pair)
        assert refused.code == 2
        assert "keep one of them" in refused.err
    refused = run("validate", "torchrec", "--skew", "--tasks", "3")
    assert (refused.code, "drop --tasks" in refused.err) == (2, True)


def test_validate_skew_uses_the_given_system(
    run: Run, asked: dict[str, object], system_file: Path
) -> None:
    done = run("validate", "torchrec", "--skew", "--system", system_file, "--ranks", "4")
    assert done.code == 0, done.err
    assert "uniform" in done.out
    assert asked["topology"].world_size == 4  # type: ignore[attr-defined]
