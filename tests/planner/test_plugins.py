"""Each thing of ARCHITECTURE.md's table "Where to add what" is added in one file, and then used.

Files of users are named on the command line. Other files are put into a folder of a package, or
into a copy of the packages where the package has to be imported anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import costmodels.collective
import costmodels.lookup
import planner.objectives
import planner.search
from costmodels import discovery
from planner import load_system, load_workload, plan
from planner.cli.run import run
from planner.models import chosen_models
from planner.objectives import objective_names
from planner.solving.run import strategy_named

OBJECTIVE = """
from typing import final

import numpy as np

from planner.space.objective import AbstractNamedObjective, Cut


@final
class TwiceThePhases(AbstractNamedObjective):
    name = "twice-the-phases"
    unit = "s"

    def __init__(self, space):
        self._pipeline = space.pipeline

    @property
    def weights(self):
        return 2 * np.asarray(self._pipeline.phases.weights, dtype=float)

    def values(self, work):
        phases = np.asarray(self._pipeline.phases.times(work)).max(axis=-2)
        return np.asarray(2 * self._pipeline.phases.base_s + phases @ self.weights)

    def gradient(self, row):
        return self._pipeline.phases.gradient(row)

    def always(self):
        return Cut(base=2 * float(self._pipeline.phases.base_s), slopes=self.weights)
"""

STRATEGY = """
from typing import final

from planner.search.construct.greedy import AbstractListGreedy


@final
class NarrowFirst(AbstractListGreedy):
    @staticmethod
    def cost(table):
        return -table.embedding_dim
"""

LOOKUP = """
from dataclasses import dataclass
from typing import final

from costmodels.lookup.roofline import Roofline


@final
@dataclass(frozen=True)
class Sluggish(Roofline):
    def backward_time(self, work, topology):
        return 3 * super().backward_time(work, topology)
"""

COLLECTIVE = """
from dataclasses import dataclass
from typing import final

from costmodels.collective.alpha_beta import AlphaBeta


@dataclass(frozen=True)
class Doubled(AlphaBeta):
    def all_to_all(self, send, receive, topology):
        return 2 * super().all_to_all(send, receive, topology)
"""

LAYER = """
from dataclasses import dataclass
from typing import final

from costmodels.layers.base import AbstractLayer, Built, Flow
from costmodels.operators import Operator, OperatorKind


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Squeeze(AbstractLayer):
    width: int

    def build(self, flow: Flow) -> Built:
        product = Operator(
            name=self.prefix,
            kind=OperatorKind.MATMUL,
            dtype=flow.dtype,
            shape=(1, flow.positions, flow.width, self.width),
        )
        return self.placed((product,), flow.after(self.width))
"""

WORKLOAD = """
name: of_a_test
training: {batch_size_per_rank: 1024}
dense:
  num_dense_features: 16
  layers:
    - {kind: mlp, sizes: [32], before_tables: true}
    - {kind: mlp, sizes: [64]}
    - {kind: squeeze, width: 8}
tables:
  - {name: t, num_embeddings: 5000, embedding_dim: 32, pooling_factor: 4, count: 4}
"""

ROOT = Path(__file__).resolve().parents[2]


def add(
    package: ModuleType, name: str, text: str, tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    """Put a file into a folder of a package, as if it lay in the package itself."""
    (tmp_path / f"{name}.py").write_text(text)
    patch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])


def test_an_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(planner.objectives, "twice_the_phases", OBJECTIVE, tmp_path, monkeypatch)
    assert "twice-the-phases" in objective_names()
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=4)
    once = plan(workload, system, objective="phases", max_evaluations=40)
    twice = plan(workload, system, objective="twice-the-phases", max_evaluations=40)
    assert twice.solver.value == pytest.approx(2 * once.solver.value, rel=1e-6)
    assert twice.solver.bound is not None
    assert twice.solver.bound <= twice.solver.value


def test_a_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(planner.search, "narrow_first", STRATEGY, tmp_path, monkeypatch)
    assert type(strategy_named("narrow_first")).__name__ == "NarrowFirst"
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=4)
    assert plan(workload, system, strategy="narrow_first").solver.evaluations == 1


@pytest.mark.parametrize(
    ("package", "family", "text"),
    [
        (costmodels.lookup, "lookup", LOOKUP),
        (costmodels.collective, "collective", COLLECTIVE),
    ],
)
def test_a_cost_model(
    package: ModuleType, family: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"of_a_test_{family}"
    add(package, name, text, tmp_path, monkeypatch)
    assert name in discovery.names(package)
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=4)
    models = chosen_models(system, {family: name})
    found = plan(workload, system, models=models, max_evaluations=20)
    assert type(getattr(models, family)).__module__ == f"{package.__name__}.{name}"
    assert found.estimate.time.time_s > 0


def test_a_lookup_model_in_a_file_of_a_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sluggish_of_a_user.py"
    path.write_text(LOOKUP)
    words = ["plan", "small_demo", "--system", "h100_sxm", "--gpus", "4", "--evaluations", "20"]
    words += ["--batch-size", "131072"]
    times_s = []
    for model in ("roofline", str(path)):
        assert run([*words, "--json", "--model", f"lookup={model}"]) == 0
        found = json.loads(capsys.readouterr().out)["predicted"]
        times_s.append(found["iteration_time_s"])
    assert times_s[1] > times_s[0]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of both packages, in which a layer, an objective and a key were added."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("costmodels", "planner"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "costmodels" / "layers" / "squeeze.py").write_text(LAYER)
    (folder / "planner" / "objectives" / "twice_the_phases.py").write_text(OBJECTIVE)
    path, text = folder / "costmodels" / "workload.py", ""
    for line in path.read_text().splitlines(keepends=True):
        text += line.replace("self.gradient_accumulation\n", "self.repeats\n")
        if line.startswith("    tensor_parallel: Annotated["):
            text += "    repeats: int = 1\n"
    assert text.count("repeats") == 2
    path.write_text(text)
    (folder / "of_a_test.yaml").write_text(WORKLOAD)
    return folder


def printed(copy: Path, *words: str) -> dict[str, Any]:
    """What a command of the copy prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "planner", *words, "--system", "h100_sxm", "--gpus", "4", "--json"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_dense_layer_and_an_objective(copy: Path) -> None:
    """A layer or an objective that is not found is refused."""
    objective = ("--objective", "twice-the-phases", "--evaluations", "20")
    found = printed(copy, "plan", "of_a_test.yaml", *objective)
    assert found["solver"]["objective"] == "twice-the-phases"
    assert 0 < found["solver"]["bound"] <= found["solver"]["value"]


def test_a_key_of_a_workload_is_a_knob_of_the_study(copy: Path) -> None:
    knob = ("--vary", "training.repeats=1,2", "--vary", "training.pipeline=none", "--grid")
    found = printed(copy, "study", "of_a_test.yaml", *knob, "--evaluations", "10", "--workers", "1")
    once, twice = (setup["samples_per_s"] for setup in found["setups"])
    assert twice == pytest.approx(2 * once)
    assert found["setup"]["training.repeats"] == 2
