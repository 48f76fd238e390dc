"""Microbenchmarks and training runs on two gloo ranks of this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

from costmodels.calibration.points import MeasuringEffort
from planner.cli.printing import rankings
from planner.integrations.measure import calibrate
from planner.integrations.measure.gloo_ranks import RankError, rendezvous, run_on_ranks
from planner.integrations.measure.runs import RunSettings, validate_tasks
from planner.validation.tasks import BLOCK_TASKS, choose_plans, random_workload

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

TINY = MeasuringEffort(
    num_lookups=(18, 6, 6),
    num_steps=24,
    num_passes=1,
    num_operators=60,
    num_chains=20,
    num_blocks=1,
)
FEW = RunSettings(num_blocks=2, iterations=4, warm_up=2, seed=5)


def product(rank: int, world_size: int, factor: int) -> int:
    for _ in range(5):
        rendezvous()
    return rank * world_size * factor


def fails(rank: int, world_size: int) -> None:
    """One rank has had enough while the other waits for it."""
    if rank == 1:
        message = f"rank {rank} of {world_size} had enough"
        raise RuntimeError(message)
    rendezvous()


def test_ranks_answer_in_order_and_failures_name_the_rank() -> None:
    assert run_on_ranks(product, 2, 5) == [0, 10]
    with pytest.raises(RankError, match="had enough"):
        run_on_ranks(fails, 2)


def test_a_calibrated_machine_predicts_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "QUICK", TINY)
    topology = calibrate.calibrated_topology(tmp_path, 2, lambda _: None)
    assert topology.device.single_stream
    (outcomes,) = validate_tasks(topology, num_tasks=1, num_plans=4, settings=FEW)
    assert len(outcomes) == 4
    assert outcomes[0].origin == "searched"
    assert rankings(outcomes)["shardplan"]["worst_error_ratio"] < 0.6
    assert all(o.measured_s > 0 and o.spread_ratio < 1 for o in outcomes)
    for models in BLOCK_TASKS:
        (found,) = validate_tasks(topology, num_tasks=1, num_plans=2, settings=FEW, what=models)
        assert len({o.kinds for o in found} | {o.origin for o in found}) > 1
        assert all(0.3 < o.predicted_s / o.measured_s < 3 for o in found)
        assert all(min(o.stages_measured_s) > 0 for o in found)


def test_measurements_cover_everything() -> None:
    small = replace(TINY, num_lookups=(6, 6, 6), num_steps=6)
    points = calibrate.measure_machine(small, world_size=2, seed=1)
    assert len(points.lookups) == 2 * (6 + 6 + 6)
    assert all(p.forward_s > 0 and p.backward_s > 0 for p in points.lookups)
    assert all(len(step.stages_s) == 2 for step in points.steps)
    assert all(s >= 0 for step in points.steps for rank in step.stages_s for s in rank)
    assert all(sum(step.stages_s[0]) > 1e-3 for step in points.steps)
    assert all(p.time_s > 0 for p in points.collectives)


def test_plans_of_a_task_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "QUICK", TINY)
    topology = calibrate.calibrated_topology(tmp_path, 2, lambda _: None)
    plans = choose_plans(random_workload(3), topology, 8, 3)
    assert len(dict(plans)) == 8
