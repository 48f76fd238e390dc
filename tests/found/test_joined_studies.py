"""A study with models of users is the same study in every process, whatever was priced before."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.lookup.roofline import Roofline
from costmodels.stages.models import CostModels
from planner import api, io
from planner.cli.run import run
from planner.io.plan.result_json import inputs_hash
from planner.models import chosen_models
from planner.problem import PlanningProblem
from planner.settings import SearchSettings

DATA = Path(__file__).parent / "data"


def double(value: float) -> float:
    return 2.0 * value


class Keeps(Roofline):  # type: ignore[misc]
    """A model that keeps results in a dictionary of its own."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        for name, value in (("_seen", {}), ("known", []), ("factor", factor), ("law", double)):
            object.__setattr__(self, name, value)

    def forward_time(self, work: Any, topology: Any) -> Any:
        seen: Any = self
        seen._seen[work.shape] = len(seen.known)
        seen.known.append(work.shape)
        return super().forward_time(work, topology) * seen.factor


@dataclass(frozen=True)
class Fields(Roofline):  # type: ignore[misc]
    """A model that keeps results in a field that does not count."""

    seen: dict[Any, Any] = field(default_factory=dict, compare=False)

    def forward_time(self, work: Any, topology: Any) -> Any:
        self.seen[work.shape] = 1.0
        return super().forward_time(work, topology)


def asked(models: CostModels) -> PlanningProblem:
    return replace(io.load_problem("small_demo", "h100_sxm", gpus=8), models=models)


@pytest.mark.parametrize("kind", ["file", "keeps", "fields"])
def test_the_hash_does_not_depend_on_what_was_priced(kind: str) -> None:
    def models() -> CostModels:
        topology = io.load_system("h100_sxm", gpus=8)
        own = chosen_models(topology, {"lookup": str(DATA / "mm.py")})
        if kind == "file":
            return own
        return replace(own, lookup=Keeps() if kind == "keeps" else Fields())

    problem = asked(models())
    before = inputs_hash(problem)
    api.solve(problem, search=SearchSettings(max_evaluations=20, with_baselines=False))
    assert inputs_hash(problem) == before
    assert inputs_hash(asked(models())) == before


def test_unlike_models_stay_apart() -> None:
    one, other = (inputs_hash(asked(CostModels(lookup=Keeps(f)))) for f in (1.0, 2.0))
    assert one != other


def test_another_process_joins_the_journal(tmp_path: Path) -> None:
    """It was told that the journal belongs to another study."""
    command = ["study", DATA / "small.yaml", "--system", "h100_sxm", "--gpus", 2]
    command += ["--vary", "training.pipeline=sparse_dist,none", "--trials", 1]
    command += ["--evaluations", 5, "-o", tmp_path / "out", "--workers", 1]
    command += ["--model", f"lookup={DATA / 'mm.py'}"]
    words = [str(word) for word in command]
    assert run(words) == 0
    again = [sys.executable, "-m", "planner", *words]
    done = subprocess.run(again, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
