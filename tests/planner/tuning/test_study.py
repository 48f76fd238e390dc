"""Studies: what they pick, and what survives a killed process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.sharding import ShardingType
from costmodels.system_models import sync_time_s
from costmodels.topology import Topology, group_topology
from costmodels.workload import Pipeline, Workload
from planner import load_system, load_workload
from planner.cli import tuning
from planner.errors import InvalidInputError
from planner.problem import Constraints, PlanningProblem
from planner.search.bounds.feasibility import require_feasible
from planner.space.evaluation import SearchSpace
from planner.tuning import DesignSpace, Effort, Look, Menu, Study, design_space

pytestmark = pytest.mark.usefixtures("floors_once")

EFFORT = Effort(trials=7, trial_limit_s=600.0, trial_evaluations=8, sampler="tpe")


def grouped(problem: PlanningProblem) -> DesignSpace:
    """Pipelines, groups and widths."""
    return design_space(problem, menu=Menu(tries_groups=True))


@pytest.fixture(scope="module")
def problem() -> PlanningProblem:
    """A few tables on two hosts, cut in two ways: proofs of all seven take most of the time."""
    few = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)
    return PlanningProblem(
        workload=load_workload("small_demo"),
        topology=load_system("h100_sxm", gpus=8, gpus_per_host=4),
        constraints=Constraints(sharding_types=few),
    )


def test_a_study_begins_with_the_usual_setup_and_every_alternative(
    problem: PlanningProblem,
) -> None:
    """Pipelines and group sizes are each tried once before the sampler has its say."""
    space = grouped(problem)
    study = Study(space, EFFORT)
    study.run()
    picks = [*(look.setup for look in study.looks), *study.ruled_out]
    assert picks[0] == space.base
    assert {s.pipeline for s in picks} == set(space.menu.pipelines)
    assert {s.group_size for s in picks} == {8, 4, 2, 1}


def test_the_best_is_never_worse_than_any_pick(problem: PlanningProblem) -> None:
    """The plan handed out costs what its trial said, and no trial said less."""
    space = design_space(problem, menu=Menu(tries_groups=True, sync_intervals=(10,)))
    study = Study(space, EFFORT)
    study.run()
    best = study.best()
    values = [look.facts.time_s for look in study.looks if look.facts is not None]
    assert best.value_s == min(values)
    assert best.value_s == pytest.approx(best.result.estimate.time.time_s + best.sync_s)


def test_the_same_seed_makes_the_same_study(problem: PlanningProblem, tmp_path: Path) -> None:
    """In memory and in a journal alike, as long as no clock ends a search."""
    space = design_space(problem)
    few = replace(EFFORT, trials=4)

    def looks(effort: Effort, journal: Path | None = None) -> tuple[Look, ...]:
        study = Study(space, effort, journal=journal)
        study.run()
        return study.looks

    in_memory = looks(few)
    assert looks(few) == in_memory
    assert looks(few, tmp_path / "tpe.journal")[:3] == in_memory[:3]
    proving = replace(few, sampler="bounds")
    assert looks(proving, tmp_path / "bounds.journal")[:4] == looks(proving)[:4]


def test_a_later_process_goes_on_with_a_journal(problem: PlanningProblem, tmp_path: Path) -> None:
    """Trials already done are not done again."""
    journal, space = tmp_path / "study.journal", design_space(problem)
    first = Study(space, Effort(trials=3, trial_evaluations=60), journal=journal)
    first.run()
    before = first.looks
    assert len(before) == 3
    second = Study(space, Effort(trials=5, trial_evaluations=60), journal=journal)
    second.run()
    assert second.looks[:3] == before
    assert len(second.looks) == 5
    assert second.best().value_s <= first.best().value_s


def test_another_problem_is_refused(problem: PlanningProblem, tmp_path: Path) -> None:
    """A journal belongs to one question."""
    journal = tmp_path / "study.journal"
    Study(design_space(problem), EFFORT, journal=journal)
    other = PlanningProblem(
        workload=problem.workload, topology=load_system("a100_80gb_sxm", gpus=16)
    )
    with pytest.raises(InvalidInputError, match="another study"):
        Study(design_space(other), EFFORT, journal=journal)
    with pytest.raises(InvalidInputError, match="another study"):
        Study(design_space(problem), EFFORT, journal=journal, goals=("throughput",))


@pytest.mark.parametrize("content", ["tables: []\n", "{}\n", "[1]\n", "\x00\x01"])
def test_a_file_that_is_no_journal_is_left_alone(
    problem: PlanningProblem, tmp_path: Path, content: str
) -> None:
    """Optuna would append to it."""
    path = tmp_path / "workload.yaml"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match="no journal"):
        Study(design_space(problem), EFFORT, journal=path)
    assert path.read_text() == content


LIMITED = replace(EFFORT, trials=8, trial_limit_s=0.2, trial_evaluations=40)


def _hang(journal: Path, problem: PlanningProblem, begun: Path) -> None:
    """A process that finishes two trials and never ends its third."""
    from planner import api

    plan, done = api.solve, [0]

    def slow(*args: Any, **kwargs: Any) -> Any:
        done[0] += 1
        if done[0] > 2:
            begun.touch()
            time.sleep(600)
        return plan(*args, **kwargs)

    api.solve = slow
    Study(grouped(problem), LIMITED, journal=journal).run()


def test_a_killed_process_loses_nothing(problem: PlanningProblem, tmp_path: Path) -> None:
    """Its finished trials count, and the setup it was at is done by another process."""
    journal, begun = tmp_path / "study.journal", tmp_path / "begun"
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_hang, args=(journal, problem, begun))
    worker.start()
    deadline = time.monotonic() + 600
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert begun.exists()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()

    space = grouped(problem)
    study = Study(space, LIMITED, journal=journal)
    assert len(study.looks) == 2
    study.run()
    picks = [*(look.setup for look in study.looks), *study.ruled_out]
    assert len(set(picks)) == len(picks) == 8
    third = replace(space.base, pipeline=Pipeline.NONE)
    assert third in picks


def test_a_trial_that_is_stopped_is_given_back(
    problem: PlanningProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pick is done again; until then its plan so far is better than none."""
    searching = [0]

    def listed(space: SearchSpace) -> None:
        require_feasible(space)
        searching[0] = 1

    monkeypatch.setattr("planner.solving.run.require_feasible", listed)
    journal, space = tmp_path / "study.journal", design_space(problem)
    effort = Effort(trials=2, trial_evaluations=40)
    asked = [0]

    def in_the_search() -> bool:
        asked[0] += searching[0]
        return asked[0] > 3

    study = Study(space, effort, journal=journal)
    study.run(should_stop=in_the_search)
    assert study.looks == ()
    assert study.has_plan
    assert study.best().setup == space.base
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "setups.csv").write_text("of an earlier study\n")
    written = tuning._write(study, tmp_path / "tuned", study.best().result)
    assert {p.name for p in written} == {p.name for p in (tmp_path / "tuned").iterdir()}
    assert {p.name for p in written} == {"plan.json", "tune.html"}
    assert "Stopped before the search of any setup had ended" in written[1].read_text()
    again = Study(space, Effort(trials=4, trial_evaluations=40), journal=journal)
    assert not again.has_plan
    again.run()
    assert space.base in [look.setup for look in again.looks]


def test_groups_interleave_so_that_copies_are_neighbours() -> None:
    """16 ranks on 2 hosts: groups of 8 have 4 ranks on each host, groups of 2 one."""
    topology: Topology = load_system("h100_sxm", gpus=16)
    shapes = {s: group_topology(topology, s) for s in (16, 8, 4, 2, 1)}
    found = {s: (t.num_hosts, t.local_world_size) for s, t in shapes.items() if t is not None}
    assert found == {16: (2, 8), 8: (2, 4), 4: (2, 2), 2: (2, 1), 1: (1, 1)}


def test_averaging_copies_costs_more_the_more_there_are(problem: PlanningProblem) -> None:
    """One copy costs nothing; copies on other hosts cost more than copies within one."""
    from planner import api

    workload: Workload = problem.workload
    topology = load_system("h100_sxm", gpus=16)
    plan = api.plan(workload, topology, time_limit_s=2, max_evaluations=20)
    times = [sync_time_s(topology, size, plan.best.memory) for size in (16, 8, 2, 1)]
    assert times[0] == 0
    assert 0 < times[1] < times[2] < times[3]


def test_groups_need_equal_ranks(problem: PlanningProblem) -> None:
    """A copy on slower ranks would be another plan."""
    uneven = replace(problem.topology, speed_by_rank_ratio=(1.0,) * 7 + (0.5,))
    with pytest.raises(InvalidInputError, match="--groups"):
        grouped(replace(problem, topology=uneven))
