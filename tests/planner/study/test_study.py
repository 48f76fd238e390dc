"""Studies: bounds lose nothing, no result depends on an order, and nothing is lost."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.system_models import sync_time_s
from costmodels.topology import Topology
from planner.errors import InvalidInputError, NoPlanFoundError
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.solving.prepare import search_space
from planner.study import Effort, Operation, Space, Study, trials
from planner.study.compare import choices, study_page, verdict
from planner.study.figures import GOALS, behind, with_checkpoints
from planner.study.trials import DIED, FAILED, Trials
from planner.support.processes import WorkerPool
from tests.planner.cases import DeadlySearch, first
from tests.planner.report.report_samples import make_result
from tests.planner.study.here import Here
from tests.planner.study.spaces import problem_on, space_of

pytestmark = pytest.mark.usefixtures("floors_once")

FEW = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
EVERY = Effort(evaluations=5, is_grid=True)
BOUNDS = Effort(evaluations=5, trials=10_000)


def few_ways(problem: PlanningProblem) -> PlanningProblem:
    """Proofs over all seven ways to cut a table take most of the time."""
    return replace(problem, constraints=Constraints(sharding_types=FEW))


@pytest.fixture(scope="module")
def space() -> Space:
    """Two clusters, batches, codecs and widths, and copies."""
    return space_of(
        few_ways(problem_on("a100_80gb_sxm", 4)),
        few_ways(problem_on("h100_sxm", 4)),
        more={
            "training.batch_size_per_rank": (1024, 4096),
            "training.communication": (None, "fp16/bf16"),
            "copies": (1, 4),
            "column_width": (4, 32),
        },
    )


@pytest.fixture(scope="module")
def small() -> Space:
    """Two clusters with two batches."""
    return space_of(
        few_ways(problem_on("a100_80gb_sxm", 4)),
        few_ways(problem_on("h100_sxm", 4)),
        more={"training.batch_size_per_rank": (1024, 4096)},
    )


@pytest.fixture(scope="module")
def every(space: Space) -> Study:
    """Every setup searched."""
    study = Study(space, EVERY, goals=("throughput", "cost"))
    study.run()
    return study


def times(study: Study) -> dict[Any, float | None]:
    return {r.setup: r.figures and r.figures.time_s for r in study.results}


def test_a_grid_searches_every_setup_once(space: Space, every: Study) -> None:
    assert len(space.setups) == 2 * 2 * 2 * 2 * 2
    assert [r.setup for r in every.results] == list(space.setups)
    for result in every.results:
        figures, problem = result.figures, space.problem(result.setup)
        assert figures is not None
        samples = problem.workload.batch_size_per_rank * problem.topology.world_size
        assert figures.samples_per_s == pytest.approx(samples / figures.time_s)


@pytest.mark.parametrize("goals", [("throughput",), ("cost",), ("throughput", "cost", "headroom")])
def test_bounds_lose_nothing(space: Space, every: Study, goals: tuple[str, ...]) -> None:
    """What is ruled out is no better than what was found, and the proof is true."""
    study = Study(space, BOUNDS, goals=goals)
    study.run()
    found = np.array([study.values(r.figures) for r in study.front])
    searched = {r.setup for r in study.results}
    assert len(searched) + len(study.ruled_out) == len(space.setups)
    if len(goals) == 1:
        assert len(searched) < len(space.setups) / 2
    others = np.array([study.values(r.figures) for r in every.results])
    ratio = study.proof_ratio
    assert ratio is not None
    assert ratio + 1e-12 >= float(behind(found, others).max())
    out = set(study.ruled_out)
    ruled = np.array([study.values(r.figures) for r in every.results if r.setup in out]).reshape(
        -1, len(goals)
    )
    assert float(behind(found, ruled).max(initial=0.0)) <= 1e-9
    for result in every.results:
        bound = study.bound(result.setup)
        assert bound is not None
        assert result.figures is not None
        for goal in GOALS.values():
            least = goal.value(bound)
            assert least <= goal.value(result.figures) + 1e-9 * abs(least)


def test_the_recommended_setup_is_the_best_or_ties_with_it(every: Study) -> None:
    best = every.best()
    value = GOALS["throughput"].value(best.figures)
    assert value <= min(every.value(r) for r in every.results) * (1 - 1e-3)
    assert best.figures.time_s == pytest.approx(best.result.estimate.time.time_s + best.sync_s)


def test_the_worth_of_a_choice_is_what_was_found_with_it(every: Study) -> None:
    rows = choices(every).rows
    for knob in every.space.varying:
        own = [(searched, loss) for name, _, searched, loss, _ in rows if name == knob]
        assert sum(searched for searched, _ in own) == len(every.results), knob
        assert min(loss for _, loss in own if loss is not None) <= 1e-3
    assert [verdict(every, r) for r in every.results].count("recommended") == 1


def test_the_page_shows_every_setup_and_loads_nothing(every: Study) -> None:
    page = study_page(every, "<b>model</b>")
    assert "&lt;b&gt;model" in page
    assert page.index("Recommended: ") < page.index('<svg class="plot')
    assert page.count("<tr") == 2 + len(every.results) + len(choices(every).rows)
    assert page.count("<circle") == len(every.results)
    assert page.count('<tr class="front">') == len(every.front)
    assert "http:" not in page
    assert "https:" not in page


@pytest.mark.parametrize("pool", first([Here, WorkerPool], 1))
def test_processes_find_the_same(pool: type[WorkerPool], small: Space, tmp_path: Path) -> None:
    """Whichever of them is done first: by default the last one, of a pool that starts none."""
    alone = Study(small, EVERY)
    alone.run()
    with pool(2) as place:
        study = Study(small, EVERY, place=place, journal=tmp_path / "j")
        study.run()
    assert times(study) == times(alone)


@pytest.mark.slow
def test_a_cluster_finds_the_same_though_a_worker_is_killed(space: Space, every: Study) -> None:
    """What it was at is done by another worker."""
    distributed = pytest.importorskip("distributed")
    killed: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        one = next(iter(client.run(os.getpid).values()))

        def kill_once(_: str) -> None:
            if not killed:
                killed.append(one)
                os.kill(one, signal.SIGKILL)

        study = Study(space, EVERY, goals=every.goals, place=client)
        study.run(progress=kill_once)
    assert killed
    assert times(study) == times(every)


def test_a_process_that_dies_fails_its_setup_alone(every: Study) -> None:
    problems = [few_ways(problem_on(s, 4)) for s in ("a100_80gb_sxm", "h100_sxm")]
    topology = problems[0].topology
    deadly = DeadlySearch(**{name: getattr(topology, name) for name in Topology.__slots__})
    space = space_of(replace(problems[0], topology=deadly), problems[1])
    with Here(2) as place:
        study = Study(space, EVERY, place=place)
        study.run()
    assert [(r.status, r.reason) for r in study.results] == [(FAILED, DIED), ("done", "")]


# ------------------------------------------------------------------ going on


@pytest.fixture
def uneven(large: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one setup is searched for long."""
    honest = trials.search

    def search(operation: Operation, settings: Any, asked: Any, **hooks: Any) -> Any:
        most = 60 if asked[0] == large.setups[0] else 1
        return honest(operation, replace(settings, max_evaluations=most), asked, **hooks)

    monkeypatch.setattr(trials, "search", search)


@pytest.fixture(scope="module")
def large() -> Space:
    problems = [problem_on("a100_80gb_sxm", n, "dlrm_criteo_terabyte") for n in (16, 32)]
    return space_of(*problems, more={"training.batch_size_per_rank": (8192,)})


@pytest.mark.usefixtures("uneven")
def test_a_study_goes_on_wherever_it_was_stopped(large: Space, tmp_path: Path) -> None:
    """Also with its last line cut off."""
    whole = Study(large, Effort(is_grid=True))
    whole.run()
    path = tmp_path / "study.journal"
    for _ in range(12):
        done: list[str] = []
        study = Study(large, Effort(is_grid=True), journal=path)
        study.run(progress=done.append, should_stop=lambda d=done: len(d) >= 2)  # type: ignore[misc]
        path.write_bytes(path.read_bytes()[:-7])
        if not done:
            break
    assert times(study) == times(whole)


def test_a_gap_counts_all_that_is_proven_of_its_setup(space: Space) -> None:
    """A search that ends soon proves little; what bounds its family bounds its plan too."""
    study = Study(space, BOUNDS, goals=("throughput",))
    study.run()
    for result in study.results:
        bound, gap = study.bound(result.setup, result.bound_s), study.gap_ratio(result)
        assert bound is not None
        assert result.figures is not None
        assert gap == pytest.approx(1 - bound.time_s / result.figures.time_s)
    assert study.recommended is not None
    assert study.gap_ratio(study.recommended) <= study.proof_ratio + 2e-3  # type: ignore[operator]


# ------------------------------------------------------------------ journals


def _hang(journal: Path, space: Space, begun: Path) -> None:
    """A process that finishes two setups and never ends its third."""
    from planner import api

    plan, done = api.solve, [0]

    def slow(*args: Any, **kwargs: Any) -> Any:
        done[0] += 1
        if done[0] > 2:
            begun.touch()
            time.sleep(600)
        return plan(*args, **kwargs)

    api.solve = slow
    Study(space, EVERY, journal=journal).run()


def test_a_killed_process_loses_nothing(small: Space, tmp_path: Path) -> None:
    """Its finished searches count, and the setup it was at is searched by another process."""
    journal, begun = tmp_path / "study.journal", tmp_path / "begun"
    worker = multiprocessing.get_context("fork").Process(target=_hang, args=(journal, small, begun))
    worker.start()
    deadline = time.monotonic() + 600
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    study = Study(small, EVERY, journal=journal)
    assert len(study.results) == 2
    study.run()
    assert len(study.results) == len(small.setups)


def test_a_trial_has_the_setup_that_its_process_searches(space: Space, tmp_path: Path) -> None:
    """Also if another process has queued its own in between; both share a journal."""
    mine, other = (
        Trials(space, tmp_path / "study.journal", "tpe", seed=seed, num_goals=1) for seed in (0, 1)
    )
    first, second = space.setups[:2]
    other.study.enqueue_trial(dict(second.picks))
    trial, _ = mine.begin(first)
    assert [tuple(pick) for pick in trial.user_attrs["setup"]] == list(first.picks)
    assert other.taken == {first}


def test_a_journal_belongs_to_one_question_and_budget(space: Space, tmp_path: Path) -> None:
    journal = tmp_path / "study.journal"
    Study(space, BOUNDS, goals=("throughput",), journal=journal)
    with pytest.raises(InvalidInputError, match="another study"):
        Study(space, BOUNDS, goals=("cost",), journal=journal)
    other = space_of(few_ways(problem_on("h100_sxm", 2)))
    with pytest.raises(InvalidInputError, match="another study"):
        Study(other, BOUNDS, goals=("throughput",), journal=journal)
    for effort in (replace(BOUNDS, seed=7), replace(BOUNDS, evaluations=9)):
        with pytest.raises(
            InvalidInputError,
            match=r"another study, with other --(evaluations \(it was 5\)|seed \(it was 0\))",
        ):
            Study(space, effort, goals=("throughput",), journal=journal)


@pytest.mark.parametrize("content", ["tables: []\n", "{}\n", "[1]\n", "\x00\x01"])
def test_a_file_that_is_no_journal_is_left_alone(
    space: Space, tmp_path: Path, content: str
) -> None:
    """Optuna would append to it."""
    path = tmp_path / "study.journal"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match="no journal"):
        Study(space, BOUNDS, journal=path)
    assert path.read_text() == content


def test_a_journal_goes_on_whose_system_has_a_name_outside_utf_8(
    space: Space, tmp_path: Path
) -> None:
    for _ in range(2):
        found = Trials(space, tmp_path / "study.journal", "tpe", seed=0, num_goals=1)
        found.study.set_user_attr("system", "m\udcffy.yaml")


def test_plans_of_dominated_setups_are_not_kept(space: Space) -> None:
    """With hundreds of tables plans are nearly all of a journal."""
    study = Study(space, EVERY)
    study.run()
    assert study.recommended is not None
    assert study.recommended.plan
    assert not all(r.plan for r in study.results if r.figures)


def test_a_search_that_is_stopped_is_given_back(space: Space, tmp_path: Path) -> None:
    """Until it is searched again, its plan so far is better than none."""
    asked = [0]

    def in_the_search() -> bool:
        asked[0] += 1
        return asked[0] > 3

    journal = tmp_path / "study.journal"
    long = replace(BOUNDS, evaluations=100_000)
    study = Study(space, long, journal=journal)
    study.run(should_stop=in_the_search)
    assert study.results == ()
    if study.unfinished is not None:
        assert study.best().setup == space.base
    assert "nothing to compare" in study_page(study, "model")


# ------------------------------------------------------------------ samplers


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_samplers_of_optuna_search_nothing_twice(space: Space, sampler: str) -> None:
    effort = replace(BOUNDS, trials=20, sampler=sampler)
    studies = [Study(space, effort, goals=("throughput", "cost")) for _ in range(2)]
    for study in studies:
        study.run()
    picks = [*(r.setup for r in studies[0].results), *studies[0].ruled_out]
    assert len(set(picks)) == len(picks) == 20
    assert times(studies[0]) == times(studies[1])


def test_spaces_too_large_to_list_are_sampled() -> None:
    batches = {"training.batch_size_per_rank": tuple(range(1000, 4000))}
    space = space_of(few_ways(problem_on("h100_sxm", 2)), more=batches)
    assert not space.is_listed
    study = Study(space, replace(BOUNDS, trials=3), goals=("throughput",))
    study.run()
    assert study.sampler == "tpe"
    assert len(study.results) + len(study.ruled_out) == 3
    with pytest.raises(InvalidInputError, match="too many to list"):
        Study(space, EVERY, goals=("throughput",))


def test_a_share_that_does_not_matter_saves_searches(space: Space) -> None:
    exact, near = (
        Study(space, replace(BOUNDS, within_ratio=r), goals=("throughput",)) for r in (0.0, 0.5)
    )
    for study in (exact, near):
        study.run()
    assert len(near.results) <= len(exact.results)
    assert near.value(near.front[0]) <= exact.value(exact.front[0]) * 0.5


# ------------------------------------------------------------------ the smallest cluster


@pytest.mark.parametrize("mtbf_s", [math.inf, 3e5])
def test_the_smallest_cluster_against_a_plain_loop(mtbf_s: float) -> None:
    """Targets just below and just above what each size reaches."""
    operation = Operation(mtbf_s=mtbf_s)
    space = space_of(*(few_ways(problem_on("h100_sxm", n)) for n in (2, 4, 6, 8)))
    all_of_them = Study(space, EVERY, operation=operation, goals=("throughput",))
    all_of_them.run()
    reached = {r.setup.get("gpus"): -all_of_them.value(r) for r in all_of_them.results}
    for speed in list(reached.values())[1:3]:
        for target in (speed * (1 - 1e-6), speed * (1 + 1e-6)):
            study = Study(space, BOUNDS, operation=operation, smallest_for=target)
            study.run()
            expected = next((n for n, rate in reached.items() if rate >= target), None)
            (answer,) = study.answers
            found = None if answer.found is None else answer.found.setup.get("gpus")
            assert found is not None
            assert int(str(found)) <= int(str(expected))
            searched = {r.setup.get("gpus") for r in study.results}
            assert not searched & set(answer.ruled_out)


def test_a_target_out_of_reach_is_proven_so() -> None:
    space = space_of(*(few_ways(problem_on("h100_sxm", n)) for n in (2, 4)))
    study = Study(space, BOUNDS, smallest_for=1e12)
    study.run()
    (answer,) = study.answers
    assert (answer.found, answer.ruled_out) == (None, (2, 4))
    assert len(study.results) == 1


# ------------------------------------------------------------------ spaces


def test_the_loosest_setup_has_the_cache_sizes_that_constraints_name() -> None:
    """Setups without sizes of their own leave tables those of the constraints."""
    sizes = TableConstraint(pattern="*", cache_load_factors=(0.05, 0.37))
    cached = Constraints(kernels=(ComputeKernel.FUSED_UVM_CACHING,), tables=(sizes,))
    problem = replace(problem_on("a100_80gb_sxm", 2), constraints=cached)
    space = space_of(problem, more={"cache_sizes": (None, "[0.05, 0.2]")})
    for setup in space.setups:
        own, loosest = (
            {o for t in search_space(space.restricted(s), CostPipeline).tables for o in t.options}
            for s in (setup, space.loosest(setup))
        )
        assert own <= loosest


def test_a_setup_that_cannot_fit_is_told_and_never_searched() -> None:
    """The tables need several devices."""
    on_device = Constraints(kernels=(ComputeKernel.FUSED,))
    problems = [
        replace(problem_on("a100_40gb_sxm", g, "dlrm_dcnv2_mlperf"), constraints=on_device)
        for g in (8, 1)
    ]
    study = Study(space_of(*problems), replace(BOUNDS, evaluations=2))
    study.run()
    assert [s.get("gpus") for s in study.unfit] == [1]
    assert [r.setup.get("gpus") for r in study.results] == [8]
    alone = Study(space_of(problems[1]), replace(BOUNDS, evaluations=2))
    alone.run()
    with pytest.raises(NoPlanFoundError, match="the first: "):
        alone.best()


def test_averaging_never_takes_less_than_its_bound() -> None:
    space = space_of(few_ways(problem_on("h100_sxm", 4)), more={"copies": (2,)})
    study = Study(space, EVERY)
    study.run()
    choice, topology = study.best(), space.problem(space.base).topology
    weights = choice.result.problem.workload.weight_bytes
    least = sync_time_s(topology, 2, weights)
    assert 0 < least <= sync_time_s(topology, 2, choice.result.best.memory)
    assert choice.sync_s == pytest.approx(sync_time_s(topology, 2, choice.result.best.memory))


def test_groups_need_equal_ranks() -> None:
    """A copy on slower ranks would be another plan."""
    problem = problem_on("h100_sxm", 4)
    uneven_ranks = replace(problem.topology, speed_by_rank_ratio=(1.0,) * 3 + (0.5,))
    space = space_of(replace(problem, topology=uneven_ranks), more={"copies": (1, 2)})
    assert "ranks that are all alike" in next(iter(space.impossible.values()))


def test_goals_that_cannot_be_are_refused(space: Space) -> None:
    with pytest.raises(InvalidInputError, match="name some of iteration"):
        Study(space, EVERY, goals=("speed",))
    problem = problem_on("h100_sxm", 2)
    unpriced = replace(problem.topology, price_per_device_usd_per_hour=None)
    with pytest.raises(InvalidInputError, match="no price"):
        Study(space_of(replace(problem, topology=unpriced)), EVERY, goals=("cost",))


# ------------------------------------------------------------------ failures and checkpoints


def test_failures_are_counted_as_young_and_daly_do() -> None:
    operation = Operation(
        mtbf_s=20_000.0, restart_s=100.0, snapshot_bytes_per_s=1e9, persist_bytes_per_s=1e9
    )
    available, interval_s = operation.checkpoints(1e10, 2)
    interval = math.sqrt(2 * 10.0 * 10_000.0)
    lost = 10.0 / interval + (interval / 2 + 100.0) / 10_000.0
    assert interval_s == pytest.approx(interval)
    assert available == pytest.approx(1 - lost)
    assert Operation().checkpoints(1e10, 2) == (1.0, math.inf)


def test_a_plan_says_how_often_to_write_checkpoints() -> None:
    result = make_result()
    saved = max(r.weights_bytes + r.optimizer_bytes for r in result.best.memory.ranks)
    hosts = result.problem.topology.num_hosts
    found = with_checkpoints(result, 1e9 * hosts).checkpoint_interval_s
    stall_s = saved / Operation().snapshot_bytes_per_s
    assert found == pytest.approx(math.sqrt(2 * stall_s * 1e9))


def test_time_lost_to_failures_is_no_throughput() -> None:
    problem = few_ways(problem_on("h100_sxm", 8))
    speeds = []
    for mtbf_s in (math.inf, 5_000.0):
        study = Study(space_of(problem), EVERY, operation=Operation(mtbf_s=mtbf_s))
        study.run()
        figures = study.results[0].figures
        assert figures is not None
        speeds.append(figures.samples_per_s / figures.availability_ratio)
        assert (figures.checkpoint_interval_s is None) == math.isinf(mtbf_s)
    assert speeds[0] == pytest.approx(speeds[1])
