"""A plug-in is one file: one of each kind is added from a temporary folder and used by name."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import costmodels.collective
import costmodels.lookup
import planner.objectives
import planner.search
from costmodels import discovery
from planner import load_system, load_workload, plan
from planner.models import chosen_models
from planner.objectives import objective_names
from planner.solving.run import strategy_names

OBJECTIVE = """
from typing import Self, final

import numpy as np

from planner.space.objective import AbstractNamedObjective, Cut


@final
class TwiceThePhases(AbstractNamedObjective):
    name = "twice-the-phases"
    unit = "s"

    def __init__(self, pipeline):
        self._pipeline = pipeline

    @classmethod
    def of(cls, space) -> Self:
        return cls(space.pipeline)

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
    def backward(self, *args, **kwargs):
        return super().backward(*args, **kwargs)
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
    assert "narrow_first" in strategy_names()
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


def test_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(planner.objectives, "twice_the_phases", OBJECTIVE, tmp_path, monkeypatch)
    assert "twice-the-phases" in objective_names()
