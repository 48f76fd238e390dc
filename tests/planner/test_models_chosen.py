"""Models by argument, by name and by file: they price, and they are searched with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.stages.models import CostModels
from costmodels.system_models import default_models
from planner import compare, estimate, load_system, load_workload, plan, solve
from planner.errors import InvalidInputError
from planner.io.plan.result_json import inputs_hash
from planner.models import chosen_models, models_of
from planner.problem import PlanningProblem
from planner.search.auto import Auto
from planner.search.base import AbstractStrategy
from planner.search.improve.second_search import SecondSearch
from planner.settings import SearchSettings
from planner.space.evaluation import Assignment
from tests.planner.cases import scheduled

MODEL = """
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel


@dataclass(frozen=True)
class Slow(AbstractCollectiveModel):
    inner: AlphaBeta = field(default_factory=AlphaBeta)

    def fixed_s(self, topology, *, ranks, across_hosts):
        return self.inner.fixed_s(topology, ranks=ranks, across_hosts=across_hosts)

    def all_to_all(self, send, receive, topology):
        return np.asarray(FACTOR * self.inner.all_to_all(send, receive, topology))

    def reduce_scatter(self, num_bytes, topology, *, within_host):
        return self.inner.reduce_scatter(num_bytes, topology, within_host=within_host)
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collective model under which all-to-alls take twenty times as long."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    path = tmp_path / f"slow_{tmp_path.name}.py"
    path.write_text(MODEL.replace("FACTOR", "20"))
    return path


def test_models_price_and_are_searched_with(model_file: Path) -> None:
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
    slow = chosen_models(system, {"collective": str(model_file)})
    found = plan(workload, system, models=slow, max_evaluations=60)
    assert found.problem.models == slow
    assert found.solver.value == pytest.approx(
        estimate(workload, system, found.plan, models=slow).estimate.time.time_s, rel=1e-9
    )
    quick = plan(workload, system, max_evaluations=60)
    by_slow, by_own = (
        [c.estimate.time.time_s for c in compare(workload, system, plans, models=models)]
        for models in (slow, None)
        for plans in [{"slow": found.plan, "quick": quick.plan}]
    )
    assert by_slow[0] <= by_slow[1]
    assert by_own[1] <= by_own[0]
    assert by_slow[1] > by_own[1]


def test_the_systems_own_model_is_kept_where_it_is_named() -> None:
    system = load_system("h100_sxm", gpus=16)
    own = default_models(system)
    assert chosen_models(system, {"collective": "measured"}) == own
    assert chosen_models(system, {"collective": "alpha_beta"}).collective == AlphaBeta()
    assert chosen_models(system, {}) == own


def test_models_count_in_the_hash_of_the_inputs() -> None:
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
    problem = plan(workload, system, max_evaluations=20).problem
    other = replace(problem, models=CostModels(collective=AlphaBeta()))
    assert models_of(problem) == default_models(system)
    assert models_of(other).collective == AlphaBeta()
    assert inputs_hash(problem) != inputs_hash(other)


@pytest.mark.parametrize(
    ("family", "name", "message"),
    [
        ("network", "alpha_beta", "'network' is not one of lookup, collective, dense"),
        ("collective", "nothing", "'nothing' is not one of costmodels.collective: alpha_beta"),
        ("collective", "nothing.py", "nothing.py: there is no such file"),
    ],
)
def test_what_is_not_there_is_named(family: str, name: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        chosen_models(load_system("h100_sxm", gpus=8), {family: name})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no AbstractCollectiveModel"),
        ("x = ", "cannot be run: SyntaxError"),
        (MODEL.replace("= field(default_factory=AlphaBeta)", ""), "works? without arguments"),
    ],
)
def test_files_that_define_no_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    path = tmp_path / f"bad_{tmp_path.name}.py"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        chosen_models(load_system("h100_sxm", gpus=8), {"collective": str(path)})


def test_a_file_cannot_take_the_name_of_a_module(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text(MODEL)
    with pytest.raises(InvalidInputError, match="a module named 'json' exists already"):
        chosen_models(load_system("h100_sxm", gpus=8), {"collective": str(path)})


def test_a_file_whose_name_has_dots_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.model.py"
    path.write_text(MODEL)
    with pytest.raises(InvalidInputError, match="a module's name has no dots"):
        chosen_models(load_system("h100_sxm", gpus=8), {"collective": str(path)})


def test_a_second_process_finds_the_class_too(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second search runs in a process of its own."""
    found: list[Assignment | None] = []
    honest = SecondSearch.plan

    def told(self: SecondSearch, stopped: Callable[[], bool]) -> Assignment | None:
        found.append(honest(self, stopped))
        return found[-1]

    monkeypatch.setattr(SecondSearch, "plan", told)
    workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
    slow = chosen_models(system, {"collective": str(model_file)})
    settings = SearchSettings(strategy=Auto(), max_evaluations=40, with_baselines=False)
    with scheduled(second_size=0, further_s=0.0):
        solve(PlanningProblem(workload=workload, topology=system, models=slow), search=settings)
    assert len(found) == 1
    assert found[0] is not None


@pytest.mark.slow
def test_the_command_takes_a_file_also_with_a_second_process(model_file: Path) -> None:
    command = [
        *(sys.executable, "-m", "planner", "plan", "dlrm_dcnv2_mlperf", "--system", "h100_sxm"),
        *("--gpus", "16", "--evaluations", "3_000", "--model", f"collective={model_file}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Predicted" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("named", ["calibration", "curves"])
def test_a_problem_is_another_one_where_what_its_system_names_was_measured_anew(
    named: str, tmp_path: Path
) -> None:
    """A sweep that goes on takes no results from before."""
    calibration, curves = tmp_path / "box.calibration.json", tmp_path / "curves.csv"
    files = {
        "calibration": calibration,
        "curves": curves,
    }
    for path in files.values():
        path.write_text("before")
    topology = replace(
        load_system("h100_sxm", gpus=2),
        calibration=str(calibration),
        collective_curves=(str(curves),),
    )
    problem = PlanningProblem(workload=load_workload("small_demo"), topology=topology)
    before = inputs_hash(problem)
    assert inputs_hash(problem) == before
    files[named].write_text("after")
    assert inputs_hash(problem) != before


def test_what_is_no_outcome_of_a_strategy_is_named() -> None:
    class Silent(AbstractStrategy):
        def search(self, *given: object, **more: object) -> Any:
            return None

    with pytest.raises(InvalidInputError, match=r"^what the strategy returned: None is no Search"):
        plan(
            load_workload("small_demo"),
            load_system("h100_sxm", gpus=2),
            strategy=Silent(),
            max_evaluations=5,
        )
