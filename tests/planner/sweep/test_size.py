"""The smallest size that is fast enough, held against plain loops over all sizes."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Topology
from planner import load_system, load_workload
from planner.problem import Constraints, PlanningProblem
from planner.sweep import Operation, Point, Sizing, most_samples_per_s, smallest
from planner.sweep.outcome import PointResult, PointStatus
from planner.sweep.runner import Task, failed, solve
from tests.planner.cases import first
from tests.planner.sweep.grids import grid_tasks

TWO_WAYS = Constraints(sharding_types=(ShardingType.TABLE_WISE, ShardingType.ROW_WISE))
"""Proofs over all seven ways to cut a table take most of the time."""


@functools.cache
def no_plan() -> PointResult:
    """A size without a plan, made once."""
    return failed(grid_tasks()[0], "")


def point(samples_per_s: float) -> PointResult:
    """A size that was searched."""
    done = PointStatus.DONE
    return replace(no_plan(), status=done, samples_per_s=samples_per_s, availability_ratio=1.0)


def sized(
    speeds: dict[int, float], limits: dict[int, float], target: float
) -> tuple[Sizing, list[int]]:
    """The answer, and the sizes searched in their order."""
    searched: list[int] = []

    def best(size: int) -> PointResult:
        searched.append(size)
        return point(speeds[size])

    answer = smallest(
        "box",
        best,
        at_most=limits.__getitem__,
        target_samples_per_s=target,
        sizes=tuple(speeds),
    )
    return answer, searched


@pytest.mark.parametrize(("target", "hosts"), [(1.0, 1), (30.0, 3), (70.0, 7), (320.0, 32)])
def test_where_more_hosts_are_faster_few_sizes_are_searched(target: float, hosts: int) -> None:
    """Ten samples per second and host, and proofs that are 3 % off."""
    speeds = {8 * n: 10.0 * n for n in range(1, 33)}
    limits = {size: 1.03 * speed for size, speed in speeds.items()}
    sizing, searched = sized(speeds, limits, target)
    assert sizing.answer is not None
    assert sizing.answer.samples_per_s == 10.0 * hosts
    assert len(searched) == len(set(searched)) <= 11


def test_a_target_out_of_reach_is_proven_so_without_more_searches() -> None:
    speeds = {n: float(n) for n in range(8, 97, 8)}
    sizing, searched = sized(speeds, speeds, 1e9)
    assert sizing.answer is None
    assert searched == [8, 16, 32, 64, 96]
    assert sizing.ruled_out == tuple(n for n in speeds if n not in searched)
    assert max(r.samples_per_s or 0 for r in sizing.tried) == 96


def test_three_hosts_may_be_fast_enough_where_four_and_eight_are_not() -> None:
    """Doubling passes them by."""
    speeds = {1: 1.0, 2: 2.0, 3: 5.0, 4: 3.0, 5: 3.0, 6: 3.0, 7: 3.0, 8: 4.0}
    sizing, _ = sized(speeds, dict.fromkeys(speeds, math.inf), 5.0)
    assert sizing.answer is not None
    assert sizing.answer.samples_per_s == 5.0


def test_any_speeds_against_a_plain_loop() -> None:
    """In any order, with proofs that are right, however loose."""
    rng = np.random.default_rng(0)
    answered = 0
    for _ in range(500):
        count = int(rng.integers(1, 20))
        sizes = np.cumsum(rng.integers(1, 4, size=count)).tolist()
        speeds = dict(zip(sizes, rng.uniform(1.0, 10.0, size=count).tolist(), strict=True))
        limits = {size: speed * float(rng.uniform(1.0, 2.0)) for size, speed in speeds.items()}
        target = float(rng.uniform(1.0, 11.0))
        sizing, searched = sized(speeds, limits, target)
        expected = next((speed for speed in speeds.values() if speed >= target), None)
        assert (sizing.answer and sizing.answer.samples_per_s) == expected
        assert len(searched) == len(set(searched)) == len(sizing.tried)
        assert all(limits[size] < target for size in sizing.ruled_out)
        assert not set(searched) & set(sizing.ruled_out)
        answered += expected is not None
    assert 100 < answered < 500


# ------------------------------------------------------------------ small clusters


def draw_cluster(rng: np.random.Generator) -> Topology:
    """Hosts of one to three ranks on a network that may be slow or far away."""
    base = load_system("h100_sxm")
    link = replace(
        base.network_link,
        bandwidth_bytes_per_s=float(10.0 ** rng.uniform(7.0, 10.5)),
        latency_s=float(10.0 ** rng.uniform(-5.0, -2.5)),
    )
    local = int(rng.integers(1, 4))
    return replace(base, local_world_size=local, domain_size=local, network_link=link)


def task_of(cluster: Topology, hosts: int, batch: int, operation: Operation) -> Task:
    """A small model on so many hosts of the cluster."""
    topology = replace(cluster, num_hosts=hosts)
    workload = replace(load_workload("small_demo"), local_batch_size=batch)
    return Task(
        point=Point(system="h100_sxm", gpus=topology.world_size, batch_size=batch),
        problem=PlanningProblem(workload=workload, topology=topology, constraints=TWO_WAYS),
        operation=operation,
        max_evaluations=10,
    )


@pytest.mark.parametrize("seed", first(range(4), 2))
def test_small_clusters_against_a_plain_loop(seed: int) -> None:
    """Targets just below and just above what each size reaches."""
    rng = np.random.default_rng(seed)
    cluster, batch = draw_cluster(rng), int(rng.choice([64, 1024]))
    operation = Operation(mtbf_s=3e5) if seed % 2 else Operation()
    tasks = {
        hosts * cluster.local_world_size: task_of(cluster, hosts, batch, operation)
        for hosts in range(1, 7)
    }
    found = {gpus: solve(task) for gpus, task in tasks.items()}
    limits = {gpus: most_samples_per_s(task) for gpus, task in tasks.items()}
    reached = {gpus: result.trained_samples_per_s or 0.0 for gpus, result in found.items()}
    assert all(0.0 < reached[gpus] <= limits[gpus] < math.inf for gpus in tasks)
    for speed, factor in itertools.product(reached.values(), (1.0 - 1e-6, 1.0 + 1e-6)):
        target = factor * speed
        sizing = smallest(
            "h100_sxm",
            found.__getitem__,
            at_most=limits.__getitem__,
            target_samples_per_s=target,
            sizes=tuple(tasks),
        )
        expected = next((gpus for gpus, rate in reached.items() if rate >= target), None)
        assert (sizing.answer and sizing.answer.point.gpus) == expected


def test_nothing_is_the_most_where_nothing_fits() -> None:
    task = task_of(load_system("h100_sxm"), 1, 64, Operation())
    device = replace(task.problem.topology.device, hbm_capacity_bytes=1e6)
    host = replace(task.problem.topology.host, ddr_capacity_bytes=0.0)
    small = replace(task.problem.topology, device=device, host=host)
    assert most_samples_per_s(replace(task, problem=replace(task.problem, topology=small))) == 0.0


def test_what_cannot_be_asked_is_left_to_the_search_which_tells_why() -> None:
    task = task_of(load_system("h100_sxm"), 1, 64, Operation())
    rules = Constraints(
        sharding_types=(ShardingType.DATA_PARALLEL,), kernels=(ComputeKernel.FUSED,)
    )
    wrong = replace(task, problem=replace(task.problem, constraints=rules))
    assert most_samples_per_s(wrong) == math.inf
    assert solve(wrong).status is PointStatus.FAILED
