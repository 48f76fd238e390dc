"""The command line, run in this process, on small files and with a planner that answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

import planner.api
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner.cli.run import run as run_command_line
from planner.problem import PlanningProblem
from planner.result import Candidate, PlanningResult
from planner.settings import SearchSettings
from tests.planner.cli.command_line import SYSTEM_TEXT, TWO_WAYS, WORKLOAD_TEXT, Done, FakeApi, Run
from tests.planner.report.report_samples import make_candidate, make_result


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 columns without colour, whatever the tests run in."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line as the shell would and return exit code, stdout and stderr."""

    def once(*args: object) -> Done:
        capsys.readouterr()
        code = run_command_line([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Done(code=code, out=captured.out, err=captured.err)

    return once


@pytest.fixture
def workload_file(tmp_path: Path) -> Path:
    """Six small tables."""
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD_TEXT)
    return path


@pytest.fixture
def two_ways_file(workload_file: Path) -> Path:
    """The same, cut in two ways."""
    workload_file.write_text(WORKLOAD_TEXT + TWO_WAYS)
    return workload_file


@pytest.fixture
def system_file(tmp_path: Path) -> Path:
    """A host of four small GPUs."""
    path = tmp_path / "box.yaml"
    path.write_text(SYSTEM_TEXT)
    return path


@pytest.fixture(scope="session")
def small_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The plan file of the small workload on the small system, searched for once."""
    folder = tmp_path_factory.mktemp("small")
    workload, system = folder / "small.yaml", folder / "box.yaml"
    workload.write_text(WORKLOAD_TEXT)
    system.write_text(SYSTEM_TEXT)
    words = ("--system", system, "--evaluations", 20, "-q", "-o", folder / "run")
    assert run_command_line([str(word) for word in ("plan", workload, *words)]) == 0
    return (folder / "run" / "plan.json").read_text()


@pytest.fixture
def plan_file(small_plan: str, tmp_path: Path) -> Path:
    """The same in a folder of its own."""
    path = tmp_path / "run" / "plan.json"
    path.parent.mkdir()
    path.write_text(small_plan)
    return path


@pytest.fixture
def fake_api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """A planner that answers at once, with what the test wants."""
    fake = FakeApi()

    def solve(
        problem: PlanningProblem, *, search: SearchSettings, **options: Any
    ) -> PlanningResult:
        fake.search, fake.asked = search, problem
        for number in fake.signals:
            fake.send(options, number)
        if fake.error is not None:
            raise fake.error
        return make_result(problem.workload, problem.topology, status=fake.status, bound=fake.bound)

    def estimate(
        workload: Workload, topology: Topology, plan: Plan, **options: object
    ) -> Candidate:
        del plan, options
        return make_candidate("plan", workload, topology)

    def compare(
        workload: Workload, topology: Topology, plans: Mapping[str, Plan], **options: object
    ) -> tuple[Candidate, ...]:
        del options
        return tuple(
            make_candidate(name, workload, topology, time_s=time_s, shift=shift)
            for shift, (name, time_s) in enumerate(zip(plans, fake.times_s, strict=False))
        )

    for function in (solve, estimate, compare):
        real = getattr(planner.api, function.__name__)
        monkeypatch.setattr(
            planner.api, function.__name__, create_autospec(real, side_effect=function)
        )
    return fake
