"""Sweeps: no point is lost, none stops the others, and the front is the front."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from costmodels.topology import Topology
from costmodels.workload import Pipeline
from planner import load_system, load_workload
from planner.errors import InvalidInputError
from planner.problem import NO_CONSTRAINTS
from planner.report.charts import _COLOURS as COLOURS
from planner.search.construct.handed import HandedPlan
from planner.sweep import Grid, Journal, Operation, Point, pareto, run, smallest
from planner.sweep.hand_on import better, handed_to
from planner.sweep.outcome import DIED, PointResult, PointStatus
from planner.sweep.page import sweep_page
from planner.sweep.runner import Task, failed, solve, solve_beside
from tests.planner.cases import DeadlySearch


def _tasks(
    name: str = "small_demo", gpus: tuple[int, int] = (2, 4), batch: int = 256, **changes: object
) -> list[Task]:
    grid = Grid(systems=("h100_sxm", "a100_80gb_sxm"), gpus=gpus, batch_sizes=(batch,))
    workload = load_workload(name)
    return [
        Task(
            point=point,
            problem=point.problem(
                workload, NO_CONSTRAINTS, load_system(point.system, gpus=point.gpus)
            ),
            operation=Operation(),
            max_evaluations=10,
            **changes,  # type: ignore[arg-type]
        )
        for point in grid.points()
    ]


def _times(found: Sequence[PointResult]) -> list[float | None]:
    return [result.iteration_time_s for result in found]


@pytest.fixture(scope="module")
def results() -> tuple[PointResult, ...]:
    """Four small points."""
    return run(_tasks())


def test_every_point_has_its_plan_in_the_order_of_the_grid(
    results: tuple[PointResult, ...],
) -> None:
    """Throughput is samples of all ranks over the iteration."""
    assert [r.point for r in results] == [t.point for t in _tasks()]
    for r in results:
        assert r.status is PointStatus.DONE
        assert r.iteration_time_s is not None
        assert r.samples_per_s is not None
        samples = r.local_batch_size * r.point.gpus
        assert r.samples_per_s == pytest.approx(samples / r.iteration_time_s)


@pytest.fixture(scope="module")
def uneven() -> tuple[Task, ...]:
    """Four points of which only the first is searched for long."""
    tasks = reversed(_tasks("dlrm_criteo_terabyte", (16, 32), 8192))
    return tuple(replace(t, max_evaluations=1 if i else 150) for i, t in enumerate(tasks))


@pytest.fixture(scope="module")
def handed_on(uneven: tuple[Task, ...]) -> tuple[PointResult, ...]:
    """What becomes of them."""
    return run(uneven)


def test_plans_are_handed_on_and_no_point_gets_worse(
    uneven: tuple[Task, ...], handed_on: tuple[PointResult, ...]
) -> None:
    """Those searched for a moment have most of what the long search found; bounds stay."""
    alone = [solve(task) for task in uneven]
    for before, after in zip(alone, handed_on, strict=True):
        assert before.iteration_time_s is not None
        assert after.iteration_time_s is not None
        assert after.iteration_time_s <= before.iteration_time_s
        assert after.bound_s == before.bound_s
        assert (after.bound_s or 0.0) <= after.iteration_time_s
    gained = [
        (after.iteration_time_s or 0.0) / (before.iteration_time_s or 1.0)
        for before, after in zip(alone, handed_on, strict=True)
    ]
    assert max(gained[1], gained[3]) < 0.95  # both on 16 GPUs; the last is two steps from the first


def test_a_point_without_a_plan_gets_one_from_others(
    uneven: tuple[Task, ...], handed_on: tuple[PointResult, ...]
) -> None:
    """Unless its process died of its first search; then it is left alone."""
    lost = failed(uneven[1], "the search ended before it found a plan that fits")
    again = uneven[1].again(lost, handed_on)
    assert again is not None
    assert solve(again).status is PointStatus.DONE
    assert uneven[1].again(replace(lost, reason=DIED), handed_on) is None


def test_a_search_of_sizes_hands_on_too(
    uneven: tuple[Task, ...], handed_on: tuple[PointResult, ...]
) -> None:
    """Each size begins with the plans of those tried before it."""
    alone, beside = solve(uneven[1]), solve_beside(uneven[1], handed_on[:1])
    assert (beside.iteration_time_s or 0.0) < 0.95 * (alone.iteration_time_s or 0.0)
    assert solve_beside(uneven[1], ()) == alone


def test_plans_handed_on_are_the_same_on_processes(
    uneven: tuple[Task, ...], handed_on: tuple[PointResult, ...]
) -> None:
    """Whichever of them is done first."""
    assert run(uneven, workers=2) == handed_on


def test_workers_of_another_version_are_refused() -> None:
    """They would not know what they are sent."""
    client = SimpleNamespace(run=lambda *_: {"tcp://a": "0.0.1"})
    with pytest.raises(InvalidInputError, match=r"workers have shardplan 0\.0\.1"):
        run(_tasks(), dask=client)


@pytest.mark.slow
def test_a_cluster_finds_the_same_though_a_worker_is_killed(
    uneven: tuple[Task, ...], handed_on: tuple[PointResult, ...]
) -> None:
    """What it was at is done by another worker."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        first = next(iter(client.run(os.getpid).values()))

        def kill_once(result: PointResult) -> None:
            del result
            if not killed:
                killed.append(first)
                os.kill(first, signal.SIGKILL)

        killed: list[int] = []
        assert run(uneven, dask=client, progress=kill_once) == handed_on
        assert killed


@pytest.mark.slow
def test_a_point_that_kills_every_worker_fails_alone(results: tuple[PointResult, ...]) -> None:
    """After a few workers it is given up."""
    distributed = pytest.importorskip("distributed")
    tasks = _tasks()
    topology = tasks[2].problem.topology
    deadly = DeadlySearch(**{name: getattr(topology, name) for name in Topology.__slots__})
    tasks[2] = replace(tasks[2], problem=replace(tasks[2].problem, topology=deadly))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = run(tasks, dask=client)
    assert found[2].status is PointStatus.FAILED
    assert found[2].reason == DIED
    assert _times([*found[:2], *found[3:]]) == _times([*results[:2], *results[3:]])


def test_a_sweep_goes_on_wherever_it_was_stopped(
    uneven: tuple[Task, ...], handed_on: tuple[PointResult, ...], tmp_path: Path
) -> None:
    """Stopped after every result in turn, also between second looks, with its last line cut off."""
    path = tmp_path / "points.jsonl"
    fresh: list[PointResult] = []
    for _ in range(20):
        fresh.clear()
        found = run(
            uneven,
            journal=Journal(path),
            progress=fresh.append,
            should_stop=lambda: len(fresh) >= 2,
        )
        if len(fresh) < 2:
            break
        path.write_bytes(path.read_bytes()[:-40])
    assert found == handed_on
    lines = path.read_text()
    assert lines.count("\n") > len(uneven)
    assert run(uneven, journal=Journal(path), progress=fresh.append) == handed_on
    assert path.read_text() == lines


def test_more_points_give_others_the_same_first_plans(
    uneven: tuple[Task, ...], handed_on: tuple[PointResult, ...], tmp_path: Path
) -> None:
    """A sweep of more points that goes on from one of fewer ends as if it had begun with them."""
    path = tmp_path / "points.jsonl"
    run(uneven[1:], journal=Journal(path))
    assert run(uneven, journal=Journal(path)) == handed_on


def test_points_of_a_version_without_plans_are_searched_again(tmp_path: Path) -> None:
    """A line of theirs is no error."""
    path = tmp_path / "points.jsonl"
    task = _tasks()[0]
    line = solve(task).to_json()
    path.write_text(json.dumps(line) + "\n")
    fresh: list[PointResult] = []
    run([task], journal=Journal(path), progress=fresh.append)
    assert [r.point for r in fresh] == [task.point]


def test_a_plan_that_beats_the_bound_withdraws_it(results: tuple[PointResult, ...]) -> None:
    """The bound of the first search holds for every plan, or it is wrong."""
    first = replace(results[0], iteration_time_s=3.0, bound_s=2.0)
    faster = replace(results[0], iteration_time_s=2.5, bound_s=None)
    assert better(first, faster).bound_s == 2.0
    assert better(first, replace(faster, iteration_time_s=1.9)).bound_s is None
    assert better(first, replace(faster, iteration_time_s=3.1)) == first
    assert better(first, replace(faster, iteration_time_s=None)) == first


def test_the_nearest_points_hand_on() -> None:
    """Points that differ in one thing, by ratio; no more than six."""
    point = Point(system="a", gpus=64, batch_size=256)
    plan = HandedPlan(world_size=1, local_world_size=1, options=(), places=())
    others = [replace(point, gpus=g) for g in (64, 512, 8, 128, 32, 16, 256, 65)]
    others += [replace(point, system="b"), replace(point, batch_size=512, gpus=65)]
    found = [
        replace(failed(_tasks()[0], ""), point=p, plan=replace(plan, world_size=n))
        for n, p in enumerate(others)
    ]
    nearest = [others[p.world_size] for p in handed_to(point, found)]
    assert [p.gpus for p in nearest] == [65, 128, 32, 64, 16, 256]
    assert nearest[3].system == "b"


def test_a_point_stopped_in_the_middle_is_no_result() -> None:
    """Its plan so far would be taken for the best one by the next run."""
    asked = [0]

    def in_the_search() -> bool:
        asked[0] += 1
        return asked[0] > 2  # before the point, then inside its search

    tasks = [replace(task, max_evaluations=None) for task in _tasks()[:1]]
    assert run(tasks, should_stop=in_the_search) == ()
    assert asked[0] > 2


def test_other_inputs_are_other_points(tmp_path: Path) -> None:
    """A result is not reused for another model, search, seed or rate of failures."""
    path = tmp_path / "points.jsonl"
    task = _tasks()[0]
    run([task], journal=Journal(path))
    changed = replace(task.problem.workload, cuda_graph=True)
    others = [
        replace(task, problem=replace(task.problem, workload=changed)),
        replace(task, max_evaluations=(task.max_evaluations or 0) + 1),
        replace(task, seed=task.seed + 1),
        replace(task, operation=Operation(mtbf_s=1e6)),
    ]
    for other in others:
        fresh: list[PointResult] = []
        run([other], journal=Journal(path), progress=fresh.append)
        assert len(fresh) == 1
        every_s = fresh[0].checkpoint_interval_s
        assert (every_s is not None and every_s > 0) == (other is others[-1])
    run([task, *others], journal=Journal(path), progress=lambda _: pytest.fail("searched again"))


def test_a_file_of_other_things_is_refused(tmp_path: Path) -> None:
    """It names the line."""
    path = tmp_path / "points.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(InvalidInputError, match=r"points\.jsonl:1"):
        Journal(path)


def test_a_point_that_does_not_fit_stops_nothing(results: tuple[PointResult, ...]) -> None:
    """It is a result with its reason."""
    tasks = _tasks()
    small = replace(tasks[0].problem.workload, reserved_bytes=1e12)
    tasks[0] = replace(tasks[0], problem=replace(tasks[0].problem, workload=small))
    found = run(tasks)
    assert found[0].status is PointStatus.DOES_NOT_FIT
    assert found[0].reason
    assert _times(found[1:]) == _times(results[1:])


class _Deadly(Topology):
    """A topology that kills the process that receives it."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (1,)


def test_a_process_that_dies_fails_its_point_alone(results: tuple[PointResult, ...]) -> None:
    """All others still get their plans."""
    tasks = _tasks()
    topology = tasks[2].problem.topology
    deadly = _Deadly(**{name: getattr(topology, name) for name in Topology.__slots__})
    tasks[2] = replace(tasks[2], problem=replace(tasks[2].problem, topology=deadly))
    found = run(tasks, workers=2)
    assert found[2].status is PointStatus.FAILED
    assert _times([*found[:2], *found[3:]]) == _times([*results[:2], *results[3:]])


def _point(speed: float, cost: float | None, room: float) -> PointResult:
    return replace(
        failed(_tasks()[0], ""),
        status=PointStatus.DONE,
        iteration_time_s=1.0,
        samples_per_s=speed,
        usd_per_billion_samples=cost,
        headroom_bytes=room,
    )


def test_the_front_is_what_nobody_beats() -> None:
    """Faster or cheaper than every other; free memory decides between equals alone."""
    fast, cheap, both = _point(9, 9, 1), _point(1, 1, 1), _point(8, 2, 1)
    beaten, unpriced, roomy = _point(7, 9, 1), _point(8, None, 1), _point(7, 3, 50)
    tighter = _point(9, 9, 0.5)
    every = [beaten, cheap, unpriced, fast, roomy, both, tighter]
    assert set(pareto(every)) == {fast, cheap, both}


@pytest.mark.parametrize(("target", "hosts"), [(1.0, 1), (30.0, 3), (70.0, 7), (320.0, 32)])
def test_size_finds_the_smallest_number_of_hosts(target: float, hosts: int) -> None:
    """Ten samples per second and host."""
    tried: list[int] = []

    def best(gpus: int) -> PointResult:
        tried.append(gpus)
        return replace(_point(10.0 * gpus / 8, 1.0, 1.0), availability_ratio=1.0)

    sizing = smallest("box", best, target_samples_per_s=target, gpus_per_host=8, max_gpus=256)
    assert sizing.answer is not None
    assert sizing.answer.samples_per_s == 10.0 * hosts
    assert len(tried) == len(set(tried)) <= 11


def test_size_says_when_nothing_suffices() -> None:
    """The largest size allowed was tried."""
    sizing = smallest(
        "box",
        lambda gpus: replace(_point(gpus, 1.0, 1.0), availability_ratio=1.0),
        target_samples_per_s=1e9,
        gpus_per_host=8,
        max_gpus=100,
    )
    assert sizing.answer is None
    assert max(r.samples_per_s or 0 for r in sizing.tried) == 96


def test_results_survive_json(results: tuple[PointResult, ...]) -> None:
    """Also with a pipeline and a global batch."""
    point = Point(system="a", gpus=4, global_batch_size=64, pipeline=Pipeline.NONE)
    for result in (*results, replace(results[0], point=point)):
        assert PointResult.from_line(json.loads(json.dumps(result.to_line()))) == result


def test_the_page_shows_every_point_and_loads_nothing(results: tuple[PointResult, ...]) -> None:
    """Names are escaped; no address of anything outside is in it."""
    page = sweep_page("<b>model</b>", results)
    assert "&lt;b&gt;model" in page
    assert page.count("<tr") == 1 + len(results)
    assert "http" not in page
    assert set(re.findall('<circle [^>]* fill="([^"]*)"', page)) <= {"none", *COLOURS}
    assert re.search('<circle [^>]* r="7" fill="#', page), "the front is filled"
    assert sweep_page("empty", ()).count("<tr") == 1


def test_the_page_has_no_empty_columns_and_each_cell_its_title(
    results: tuple[PointResult, ...],
) -> None:
    """Narrow screens show the title beside the value."""
    unpriced = tuple(
        replace(r, price_usd_per_hour=None, usd_per_billion_samples=None) for r in results
    )
    page = sweep_page("model", unpriced)
    assert "USD/h" not in page
    assert ">Pipeline<" not in page  # the grid has one pipeline, the workload's
    for cell in page.split("<td ")[1:]:
        assert cell.startswith("data-l=")
    assert 'data-l="M samples/s"' in page
    assert "USD/h" in sweep_page("model", results)
