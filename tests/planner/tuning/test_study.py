"""Studies: what they pick, what they share, and what survives a killed process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from costmodels.topology import Topology
from costmodels.workload import Pipeline, Workload
from planner import load_system, load_workload
from planner.errors import InvalidInputError
from planner.problem import PlanningProblem
from planner.search.bounds.feasibility import require_feasible
from planner.space.evaluation import SearchSpace
from planner.tuning import Effort, Setup, Study, menu_of
from planner.tuning.groups import group_topology, sync_time_s
from planner.tuning.liveness import has_ended, own_process

EFFORT = Effort(trials=7, trial_limit_s=600.0, trial_evaluations=20, grace_s=0.0)


@pytest.fixture(scope="module")
def problem() -> PlanningProblem:
    """A few tables on two hosts."""
    return PlanningProblem(
        workload=load_workload("small_demo"), topology=load_system("h100_sxm", gpus=16)
    )


def test_a_study_begins_with_the_usual_setup_and_every_alternative(
    problem: PlanningProblem,
) -> None:
    """Pipelines and group sizes are each tried once before the sampler has its say."""
    menu = menu_of(problem, groups=True)
    study = Study(problem, menu, EFFORT)
    study.run()
    picks = [setup for setup, _ in study.values()]
    assert picks[0] == menu.base()
    assert {s.pipeline for s in picks} == set(menu.pipelines)
    assert {s.group_size for s in picks} == {16, 8, 4, 2, 1}


def test_the_best_is_never_worse_than_any_pick(problem: PlanningProblem) -> None:
    """The plan handed out costs what its trial said, and no trial said less."""
    study = Study(problem, menu_of(problem, groups=True, sync_interval=10), EFFORT)
    study.run()
    best = study.best()
    values = [value for _, value in study.values() if value is not None]
    assert best.value_s == min(values)
    assert best.value_s == pytest.approx(best.result.estimate.time.time_s + best.sync_s)


def test_the_same_seed_makes_the_same_study(problem: PlanningProblem, tmp_path: Path) -> None:
    """In memory and in a journal alike, as long as no clock ends a search."""
    menu = menu_of(problem)
    runs = []
    for journal in (None, None, tmp_path / "study.journal"):
        study = Study(problem, menu, EFFORT, journal=journal)
        study.run()
        runs.append(study.values())
    assert runs[0] == runs[1]
    assert runs[0][:4] == runs[2][:4]


def test_a_later_process_goes_on_with_a_journal(problem: PlanningProblem, tmp_path: Path) -> None:
    """Trials already done are not done again."""
    journal, menu = tmp_path / "study.journal", menu_of(problem)
    first = Study(problem, menu, Effort(trials=3, trial_evaluations=60), journal=journal)
    first.run()
    second = Study(problem, menu, Effort(trials=5, trial_evaluations=60), journal=journal)
    second.run()
    assert second.values()[:3] == first.values()[:3]
    assert len(second.values()) == 5
    assert second.best().value_s <= first.best().value_s


def test_another_problem_is_refused(problem: PlanningProblem, tmp_path: Path) -> None:
    """A journal belongs to one question."""
    journal = tmp_path / "study.journal"
    Study(problem, menu_of(problem), EFFORT, journal=journal)
    other = PlanningProblem(
        workload=problem.workload, topology=load_system("a100_80gb_sxm", gpus=16)
    )
    with pytest.raises(InvalidInputError, match="another study"):
        Study(other, menu_of(other), EFFORT, journal=journal)


@pytest.mark.parametrize("content", ["tables: []\n", "{}\n", "[1]\n", "\x00\x01"])
def test_a_file_that_is_no_journal_is_left_alone(
    problem: PlanningProblem, tmp_path: Path, content: str
) -> None:
    """Optuna would append to it."""
    path = tmp_path / "workload.yaml"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match="no journal"):
        Study(problem, menu_of(problem), EFFORT, journal=path)
    assert path.read_text() == content


def _hang(journal: Path, problem: PlanningProblem, begun: Path) -> None:
    """A worker that finishes two trials and never ends its third."""
    from planner import api

    plan, done = api.solve, [0]

    def slow(*args: Any, **kwargs: Any) -> Any:
        done[0] += 1
        if done[0] > 2:
            begun.touch()
            time.sleep(600)
        return plan(*args, **kwargs)

    api.solve = slow
    effort = Effort(trials=8, trial_limit_s=0.2, trial_evaluations=40, grace_s=0.0)
    Study(problem, menu_of(problem, groups=True), effort, journal=journal).run()


def test_a_killed_worker_loses_nothing(problem: PlanningProblem, tmp_path: Path) -> None:
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

    menu = menu_of(problem, groups=True)
    effort = Effort(trials=8, trial_limit_s=0.2, trial_evaluations=40, grace_s=0.0)
    study = Study(problem, menu, effort, journal=journal)
    assert len(study.values()) == 2
    study.run()
    picks = [setup for setup, _ in study.values()]
    assert len(picks) == 8
    third = Setup(pipeline=Pipeline.NONE, group_size=16)
    assert third in picks


def test_a_lost_trial_on_this_machine_is_seen_at_once(
    problem: PlanningProblem, tmp_path: Path
) -> None:
    """One elsewhere only when it is older than any trial may be."""
    journal, menu = tmp_path / "study.journal", menu_of(problem)
    effort = Effort(trials=2, trial_limit_s=1e6, trial_evaluations=40)
    gone = multiprocessing.get_context("fork").Process(target=_leave, args=(journal, problem))
    gone.start()
    gone.join()
    study = Study(problem, menu, effort, journal=journal)
    study.run()
    assert len(study.values()) == 2
    assert not has_ended({"process": own_process()})
    assert not has_ended({}), "written by an earlier version"
    assert not has_ended({"process": {**own_process(), "where": "elsewhere", "pid": gone.pid}})
    assert has_ended({"process": {**own_process(), "pid": gone.pid}})


def _leave(journal: Path, problem: PlanningProblem) -> None:
    """A process that ends in the middle of its first trial."""
    from planner import api

    api.solve = lambda *_, **__: os._exit(9)  # type: ignore[assignment]
    effort = Effort(trials=2, trial_limit_s=1e6, trial_evaluations=40)
    Study(problem, menu_of(problem), effort, journal=journal).run()


def test_a_trial_that_is_stopped_is_given_back(
    problem: PlanningProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pick is done again; until then its plan so far is better than none."""
    searching = [0]

    def listed(space: SearchSpace) -> None:
        require_feasible(space)
        searching[0] = 1

    monkeypatch.setattr("planner.api.require_feasible", listed)
    journal, menu = tmp_path / "study.journal", menu_of(problem)
    effort = Effort(trials=2)
    asked = [0]

    def in_the_search() -> bool:
        asked[0] += searching[0]
        return asked[0] > 3

    study = Study(problem, menu, effort, journal=journal)
    study.run(should_stop=in_the_search)
    assert study.values() == ()
    assert study.has_plan
    assert study.best().setup == menu.base()
    again = Study(problem, menu, Effort(trials=4, trial_evaluations=40), journal=journal)
    assert not again.has_plan
    again.run()
    assert menu.base() in [setup for setup, _ in again.values()]


def test_groups_interleave_so_that_copies_are_neighbours(problem: PlanningProblem) -> None:
    """16 ranks on 2 hosts: groups of 8 have 4 ranks on each host, groups of 2 one."""
    topology: Topology = problem.topology
    shapes = {s: group_topology(topology, s) for s in (16, 8, 4, 2, 1)}
    found = {s: (t.num_hosts, t.local_world_size) for s, t in shapes.items() if t is not None}
    assert found == {16: (2, 8), 8: (2, 4), 4: (2, 2), 2: (2, 1), 1: (1, 1)}


def test_averaging_copies_costs_more_the_more_there_are(problem: PlanningProblem) -> None:
    """One copy costs nothing; copies on other hosts cost more than copies within one."""
    from planner import api

    workload: Workload = problem.workload
    plan = api.plan(workload, problem.topology, time_limit_s=2, max_evaluations=20)
    times = [sync_time_s(problem.topology, size, plan.best.memory) for size in (16, 8, 2, 1)]
    assert times[0] == 0
    assert 0 < times[1] < times[2] < times[3]


def test_groups_need_equal_ranks(problem: PlanningProblem) -> None:
    """A copy on slower ranks would be another plan."""
    from dataclasses import replace

    uneven = replace(problem.topology, speed_by_rank_ratio=(1.0,) * 15 + (0.5,))
    with pytest.raises(InvalidInputError, match="--groups"):
        menu_of(replace(problem, topology=uneven), groups=True)
