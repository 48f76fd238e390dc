"""Fits give back the constants that made the data, and say which points are odd."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from costmodels.calibration.fit_machine import KINDS, collective_counts, fit_machine
from costmodels.calibration.fitting import (
    fit_counts,
    fit_lookups,
    geomean_error,
    learned_residual,
    log_errors,
    non_negative,
    point_shards,
)
from costmodels.calibration.points import (
    CalibrationPoints,
    CollectivePoint,
    LookupPoint,
    StepPoint,
    collective_points,
    lookup_points,
    step_points,
)
from costmodels.cpu.dense import CpuDense, dense_counts
from costmodels.cpu.exchange import STAGES, Traffic
from costmodels.cpu.lookup import Accesses, factor, features
from costmodels.dense.base import dense_layers
from costmodels.errors import InvalidValueError
from costmodels.lookup.base import NUM_LOOKUP_WORK, LookupWork
from costmodels.measured.cpu_constants import Caches, CpuKernel
from costmodels.operators import Product
from costmodels.pipeline import CostPipeline
from costmodels.shard_work import work as columns
from costmodels.sharding import ComputeKernel, ShardingType, check_plan
from costmodels.system_models import cpu_models
from tests.costmodels.cpu.machines import MACHINE, cpu_topology

CACHES = Caches(l2_bytes=MACHINE.l2_bytes, l3_bytes=MACHINE.l3_bytes)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def timed_lookup(point: LookupPoint) -> LookupPoint:
    counted = features(Accesses(point_shards((point,))), point.kernel, CACHES)
    constants = MACHINE.lookups(point.kernel)
    return replace(
        point,
        forward_s=float(counted.forward[0] @ np.array(constants.forward_s)),
        backward_s=float(counted.backward[0] @ np.array(constants.backward_s)),
    )


def lookups() -> tuple[LookupPoint, ...]:
    fused = lookup_points(60, CpuKernel.FUSED, rng(1))
    dense = lookup_points(24, CpuKernel.DENSE, rng(2))
    sequence = lookup_points(24, CpuKernel.SEQUENCE, rng(3))
    return tuple(timed_lookup(p) for p in (*fused, *dense, *sequence))


@functools.cache
def made_points() -> CalibrationPoints:
    """What a machine with the constants of MACHINE would measure, without noise."""
    return CalibrationPoints(
        lookups=lookups(),
        steps=tuple(timed_step(p) for p in step_points(80, 2, rng(4))),
        collectives=tuple(timed_collective(p) for p in collective_points(2)),
    )


def timed_step(point: StepPoint) -> StepPoint:
    """Stages as the models price them: the counts are those of the predictions."""
    topology = cpu_topology()
    work = CostPipeline(point.workload, topology, cpu_models(MACHINE)).plan_work(point.plan)
    kernels = work[:, columns.LOOKUP : columns.INPUT].reshape(2, -1, NUM_LOOKUP_WORK).sum(axis=1)
    kernels /= topology.device.hbm_bandwidth_bytes_per_s
    calls_s = MACHINE.call_s * np.count_nonzero(work[:, columns.CALLS : columns.REPLICATED], axis=1)
    exchanges = [np.full(2, fixed_s) for fixed_s in MACHINE.exchange_s]
    for kind in KINDS:
        family = columns.EXCHANGING_TYPES.index(kind)
        traffic = Traffic(
            arriving_bytes=work[:, columns.INPUT + family],
            leaving_bytes=work[:, columns.OUTPUT + family],
            num_shards=work[:, columns.call_column(kind, ComputeKernel.FUSED)],
        )
        if traffic.num_shards.any():
            constants, vectors = getattr(MACHINE, kind.value), traffic.vector_counts
            indices = traffic.index_counts(point.workload.batch_size_per_rank)
            exchanges[0] += indices @ np.array(constants.input_s)
            exchanges[1] += vectors @ np.array(constants.output_s)
            exchanges[2] += vectors @ np.array(constants.gradient_s)
    dense = CpuDense(constants=MACHINE).times(point.workload, topology)
    layers = dense_layers(point.workload)
    reduced = 4.0 * sum(layers.num_parameters)
    reduced += work[:, columns.REPLICATED]
    held = work[:, columns.REPLICATED] > 0
    update = dense.bottom_backward_s + dense.optimizer_s + MACHINE.gradient.fixed_s * held
    found = {
        "dense_forward": np.full(2, dense.bottom_forward_s + dense.top_forward_s),
        "indices": exchanges[0],
        "lookup_forward": 0.25 * calls_s + kernels[:, LookupWork.FORWARD_ROWS_DRAM],
        "vectors": exchanges[1],
        "dense_backward": np.full(2, dense.top_backward_s),
        "gradients": exchanges[2],
        "lookup_backward": 0.75 * calls_s + kernels[:, LookupWork.BACKWARD_ROWS_DRAM],
        "update": update + reduced * MACHINE.gradient.per_byte_s,
    }
    stages_s = np.maximum([found[stage] for stage in STAGES], 1e-9).T
    return replace(point, stages_s=tuple(map(tuple, stages_s.tolist())))


def timed_collective(point: CollectivePoint) -> CollectivePoint:
    constants = getattr(MACHINE.collective, f"{point.operation}_s")
    return replace(point, time_s=float(collective_counts(point) @ np.array(constants)))


def test_a_machine_is_recovered_from_its_own_measurements() -> None:
    points = made_points()
    found, fit_errors = fit_machine(points, CACHES, cpu_topology(), machine="made up")
    assert found.gradient.per_byte_s == pytest.approx(5e-10, rel=0.05)
    assert found.call_s == pytest.approx(MACHINE.call_s, rel=0.5)
    assert found.collective.all_to_all_s == pytest.approx(MACHINE.collective.all_to_all_s, rel=1e-3)
    assert found.row_wise.output_s[0] == pytest.approx(MACHINE.row_wise.output_s[0], rel=0.2)
    known, sequence = MACHINE.lookups(CpuKernel.SEQUENCE), found.lookups(CpuKernel.SEQUENCE)
    assert sequence.backward_s == pytest.approx(known.backward_s, rel=0.05)
    assert dict(found.sigmas_ratio)["collective"] < 1e-3
    assert dict(found.sigmas_ratio)["lookup"] < 0.05
    errors = {e.name: e for e in fit_errors}
    assert errors["exchange of vectors"].held_out_ratio < 1e-3
    assert errors["bottom backward and update"].held_out_ratio < 1e-2
    assert errors["gloo all_reduce"].geomean_ratio < 1e-6
    assert errors["lookup forward fused"].held_out_ratio < 0.02


def test_intervals_cover_the_pace_of_the_calibration_and_of_other_times() -> None:
    """Half minutes that differ by 8 %, and 6 % from one time to another, make 10 %."""
    points = made_points()
    for apart, joined in ((0.0, 0.06), (0.08, 0.10)):
        constants, _ = fit_machine(
            replace(points, pace_sigma_ratio=apart), CACHES, cpu_topology(), machine="made up"
        )
        assert dict(constants.sigmas_ratio)["machine"] == pytest.approx(joined)


def test_held_out_tables_are_predicted_in_spite_of_noise() -> None:
    noise = rng(9)
    noisy = [
        replace(
            p,
            forward_s=p.forward_s * float(np.exp(0.05 * noise.standard_normal())),
            backward_s=p.backward_s * float(np.exp(0.05 * noise.standard_normal())),
        )
        for p in lookups()
        if p.kernel is CpuKernel.FUSED
    ]
    spoilt = replace(noisy[0], forward_s=5 * noisy[0].forward_s)
    _, (forward, backward) = fit_lookups([spoilt, *noisy[1:]], CACHES, CpuKernel.FUSED)
    assert backward.held_out_ratio < 0.12
    assert forward.p90_ratio < 0.25


def test_coefficients_are_not_negative_and_survive_one_bad_point() -> None:
    counts = np.column_stack([np.ones(30), np.arange(1.0, 31.0)])
    times = counts @ np.array([2.0, 0.5])
    times[7] *= 4
    assert non_negative(counts, times) == pytest.approx([2.0, 0.5], rel=0.05)
    falling = non_negative(counts, 100.0 - counts[:, 1])
    assert falling.min() >= 0
    with pytest.raises(InvalidValueError, match="above 0"):
        non_negative(counts, np.zeros(30))


def test_the_residual_learns_a_smooth_factor() -> None:
    shapes = rng().uniform(0, 5, (80, 2))
    ratio = 0.2 * np.sin(shapes[:, 0])
    residual = learned_residual(shapes, ratio, limit=0.4)
    found = np.array([np.log(factor(residual, s)) for s in shapes])
    assert np.abs(found - ratio).mean() < 0.05


def test_errors() -> None:
    assert geomean_error(np.array([])) == 0.0
    assert geomean_error(log_errors(np.array([1.1, 1.1]), np.array([1.0, 1.0]))) == pytest.approx(
        0.1
    )


def test_steps_are_held_out_together() -> None:
    counts = np.column_stack([np.ones(12), np.arange(12.0)])
    times = counts @ np.array([1.0, 0.5])
    groups = [i // 3 for i in range(12)]
    *_, held_out_s = fit_counts(counts, times, "made up", groups)
    assert held_out_s == pytest.approx(times)
    *_, held_out_s = fit_counts(counts[:3], 2 * times[:3], "made up", [0, 0, 0])
    assert held_out_s == pytest.approx(2 * times[:3])
    coefficients, error, _ = fit_counts(counts, 1.1 * times, "made up", groups)
    assert coefficients == pytest.approx((1.1, 0.55))
    assert error.held_out_ratio < 1e-9


def test_designs_respect_their_limits() -> None:
    tables = lookup_points(50, CpuKernel.DENSE, rng())
    assert all(p.table.weight_bytes <= 3e7 for p in tables)
    steps = step_points(60, 3, rng())
    kinds = {p.sharding_type for step in steps for p in step.plan.placements}
    assert kinds == {*KINDS, ShardingType.DATA_PARALLEL}
    for step in steps:
        check_plan(step.plan, step.workload, 3)
        replicated = [p for p in step.plan.placements if p.sharding_type not in KINDS]
        assert all(step.workload.table(p.table).weight_bytes <= 8e6 for p in replicated)
    sent = [p.sent_bytes for p in collective_points(3)]
    assert all(len(s) == 3 for s in sent)


def test_dense_counts_name_what_layers_do() -> None:
    counts = dense_counts([Product(m=4, k=3, n=2)], 10.0)
    assert counts.tolist() == [1.0, 1.0, 24.0, 8.0, 10.0, 12.0]
