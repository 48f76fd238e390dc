"""Sweeps: plans that are found at one point begin the search at others."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from planner.support.worker_pool import WorkerPool
from planner.sweep import Journal, run
from planner.sweep.outcome import DIED, PointResult, PointStatus
from planner.sweep.runner import Task, failed, solve, solve_beside
from tests.planner.cases import first
from tests.planner.sweep.grids import grid_tasks
from tests.planner.sweep.here import Here


@pytest.fixture(scope="module")
def uneven() -> tuple[Task, ...]:
    """Four points of which only the first is searched for long."""
    tasks = reversed(grid_tasks("dlrm_criteo_terabyte", (16, 32), 8192))
    return tuple(replace(t, max_evaluations=1 if i else 60) for i, t in enumerate(tasks))


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


@pytest.mark.parametrize("pool", first([Here, WorkerPool], 1))
def test_plans_handed_on_are_the_same_on_processes(
    pool: type[WorkerPool],
    uneven: tuple[Task, ...],
    handed_on: tuple[PointResult, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever of them is done first: by default the last one, of a pool that starts none."""
    monkeypatch.setattr("planner.sweep.runner.WorkerPool", pool)
    assert run(uneven, workers=2) == handed_on


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
