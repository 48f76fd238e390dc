"""Sweeps: no point is lost, none stops the others, and the front is the front."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from costmodels.topology import Topology
from costmodels.workload import Pipeline
from planner.errors import InvalidInputError
from planner.report.charts import _COLOURS as COLOURS
from planner.search.construct.handed import HandedPlan
from planner.sweep import Journal, Operation, Point, pareto, run
from planner.sweep.hand_on import better, handed_to
from planner.sweep.outcome import DIED, PointResult, PointStatus
from planner.sweep.page import sweep_page
from planner.sweep.runner import failed
from tests.planner.cases import DeadlySearch
from tests.planner.sweep.grids import grid_tasks
from tests.planner.sweep.here import Here


def _times(found: Sequence[PointResult]) -> list[float | None]:
    return [result.iteration_time_s for result in found]


@pytest.fixture(scope="module")
def results() -> tuple[PointResult, ...]:
    """Four small points."""
    return run(grid_tasks())


def test_every_point_has_its_plan_in_the_order_of_the_grid(
    results: tuple[PointResult, ...],
) -> None:
    """Throughput is samples of all ranks over the iteration."""
    assert [r.point for r in results] == [t.point for t in grid_tasks()]
    for r in results:
        assert r.status is PointStatus.DONE
        assert r.iteration_time_s is not None
        assert r.samples_per_s is not None
        samples = r.local_batch_size * r.point.gpus
        assert r.samples_per_s == pytest.approx(samples / r.iteration_time_s)


def test_workers_of_another_version_are_refused() -> None:
    """They would not know what they are sent."""
    client = SimpleNamespace(run=lambda *_: {"tcp://a": "0.0.1"})
    with pytest.raises(InvalidInputError, match=r"workers have shardplan 0\.0\.1"):
        run(grid_tasks(), dask=client)


@pytest.mark.slow
def test_a_point_that_kills_every_worker_fails_alone(results: tuple[PointResult, ...]) -> None:
    """After a few workers it is given up."""
    distributed = pytest.importorskip("distributed")
    tasks = grid_tasks()
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
        replace(failed(grid_tasks()[0], ""), point=p, plan=replace(plan, world_size=n))
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

    tasks = [replace(task, max_evaluations=None) for task in grid_tasks()[:1]]
    assert run(tasks, should_stop=in_the_search) == ()
    assert asked[0] > 2


def test_other_inputs_are_other_points(tmp_path: Path) -> None:
    """A result is not reused for another model, search, seed or rate of failures."""
    path = tmp_path / "points.jsonl"
    task = grid_tasks()[0]
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


@pytest.mark.parametrize(
    "changed",
    [
        {"bound_s": "x"},
        {"gpus": "8"},
        {"system": []},
        {"handed_hash": {}},
        {"hosts": None},
        {"plan": {"tables": ["t"], "cuts": [[]], "load_factors": [None]}},
    ],
    ids=str,
)
def test_a_line_with_values_of_another_type_is_refused(
    changed: dict[str, object], tmp_path: Path, results: tuple[PointResult, ...]
) -> None:
    """The table of the sweep could not be written with them, which was a bug."""
    path = tmp_path / "points.jsonl"
    line = results[0].to_line()
    if isinstance(changed.get("plan"), dict):
        changed = {"plan": line["plan"] | changed["plan"]}
    path.write_text(json.dumps(line | changed) + "\n")
    with pytest.raises(InvalidInputError, match=r"points\.jsonl:1: is no result of a sweep"):
        Journal(path)


def test_a_point_that_does_not_fit_stops_nothing(results: tuple[PointResult, ...]) -> None:
    """It is a result with its reason."""
    tasks = grid_tasks()
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


def _check_that_others_get_their_plans(
    deadly: type[Topology], results: tuple[PointResult, ...]
) -> None:
    tasks = grid_tasks()
    topology = tasks[2].problem.topology
    killing = deadly(**{name: getattr(topology, name) for name in Topology.__slots__})
    tasks[2] = replace(tasks[2], problem=replace(tasks[2].problem, topology=killing))
    found = run(tasks, workers=2)
    assert found[2].status is PointStatus.FAILED
    assert found[2].reason == DIED
    assert _times([*found[:2], *found[3:]]) == _times([*results[:2], *results[3:]])


def test_a_process_that_dies_fails_its_point_alone(
    results: tuple[PointResult, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others still get their plans. Here a pool says that a process died; slow ones do die."""
    monkeypatch.setattr("planner.sweep.runner.WorkerPool", Here)
    _check_that_others_get_their_plans(DeadlySearch, results)


@pytest.mark.slow
@pytest.mark.parametrize("deadly", [_Deadly, DeadlySearch])
def test_a_process_that_does_die_fails_its_point_alone(
    deadly: type[Topology], results: tuple[PointResult, ...]
) -> None:
    """As it receives its point, or in the middle of the search."""
    _check_that_others_get_their_plans(deadly, results)


def _point(speed: float, cost: float | None, room: float) -> PointResult:
    return replace(
        failed(grid_tasks()[0], ""),
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


def test_time_lost_to_failures_is_no_throughput() -> None:
    """Of two points the one that is faster while it trains, and trains less of the time, loses."""
    slower = replace(_point(10, 2, 1), availability_ratio=0.9)
    faster = replace(_point(11, 3, 1), availability_ratio=0.8)
    assert pareto([slower, faster]) == (slower,)
    told = [faster.to_json()[key] for key in ("samples_per_s", "trained_samples_per_s")]
    assert told == [11, pytest.approx(8.8)]


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
