"""Fits give back the constants that made the data, and say which points are odd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.calibration import designs
from costmodels.calibration.fit_lookup import Caches, fit_lookups, point_access, table_seconds
from costmodels.calibration.fit_machine import (
    collective_counts,
    exchange_counts,
    fit_groups,
    fit_machine,
)
from costmodels.calibration.fitting import (
    folds,
    geomean_error,
    learned_residual,
    log_errors,
    non_negative,
)
from costmodels.calibration.points import (
    CalibrationPoints,
    CallPoint,
    CollectivePoint,
    ExchangePoint,
    FamilyPoint,
    LookupPoint,
)
from costmodels.cpu.dense import dense_counts
from costmodels.cpu.features import features
from costmodels.cpu.lookup import factor
from costmodels.dense.base import Product
from costmodels.errors import InvalidValueError
from tests.costmodels.cpu.machines import MACHINE

CACHES = Caches(l2_bytes=MACHINE.l2_bytes, l3_bytes=MACHINE.l3_bytes)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def timed_lookup(point: LookupPoint) -> LookupPoint:
    dense = point.kernel == "dense"
    counted = features(
        point_access(point), l2_bytes=CACHES.l2_bytes, l3_bytes=CACHES.l3_bytes, dense=dense
    )
    constants = MACHINE.replicated if dense else MACHINE.fused
    return replace(
        point,
        forward_s=float(counted.forward @ np.array(constants.forward_s)),
        backward_s=float(counted.backward @ np.array(constants.backward_s)),
    )


def lookups() -> tuple[LookupPoint, ...]:
    fused = designs.lookup_points(60, "fused", rng(1))
    dense = designs.lookup_points(24, "dense", rng(2))
    return tuple(timed_lookup(p) for p in (*fused, *dense))


def made_points() -> CalibrationPoints:
    """What a machine with the constants of MACHINE would measure, without noise."""
    groups = []
    for group in designs.group_points(12, rng(3)):
        times = []
        for phase in ("forward", "backward"):
            counts = [
                1.0,
                sum(table_seconds(t, MACHINE.fused, CACHES, phase) for t in group.tables),
                len(group.tables),
                sum(t.num_bags for t in group.tables),
                sum(t.num_bags * t.embedding_dim for t in group.tables),
            ]
            times.append(float(np.dot(counts, getattr(MACHINE.group, f"{phase}_s"))))
        groups.append(replace(group, forward_s=times[0], backward_s=times[1]))
    exchanges = [
        tuple(timed_exchange(point, rank) for rank in range(2))
        for point in designs.exchange_points(60, 2, rng(4))
    ]
    return CalibrationPoints(
        lookups=lookups(),
        calls=(CallPoint(num_tables=1, forward_s=1e-4, backward_s=1e-4),),
        groups=tuple(groups),
        exchanges=tuple(exchanges),
        dense=tuple(
            replace(
                p,
                forward_s=1e-3 * (i + 1),
                backward_s=2e-3 * (i + 1),
            )
            for i, p in enumerate(designs.dense_points(8, rng(5)))
        ),
        collectives=tuple(timed_collective(p) for p in designs.collective_points(2)),
        gradients=tuple(
            replace(p, time_s=5e-4 + 5e-10 * p.num_bytes) for p in designs.gradient_points(2)
        ),
    )


def timed_exchange(point: ExchangePoint, rank: int) -> ExchangePoint:
    times = {}
    for k, step in enumerate(("input_s", "output_s", "gradient_s")):
        kinds = (MACHINE.table_wise, MACHINE.column_wise, MACHINE.row_wise)
        constants = [MACHINE.exchange_s[k], *(c for kind in kinds for c in getattr(kind, step))]
        times[step] = float(exchange_counts(point, rank, step) @ np.array(constants))
    return replace(point, **times)


def timed_collective(point: CollectivePoint) -> CollectivePoint:
    constants = getattr(MACHINE.collective, f"{point.operation}_s")
    return replace(point, time_s=float(collective_counts(point) @ np.array(constants)))


def test_a_machine_is_recovered_from_its_own_measurements() -> None:
    points = made_points()
    fitted = fit_machine(points, CACHES, machine="made up", world_size=2)
    found = fitted.constants
    assert found.gradient.per_byte_s == pytest.approx(5e-10, rel=1e-3)
    assert found.collective.all_to_all_s == pytest.approx(MACHINE.collective.all_to_all_s, rel=1e-3)
    assert found.row_wise.output_s[0] == pytest.approx(MACHINE.row_wise.output_s[0], rel=0.2)
    errors = {e.name: e for e in fitted.errors}
    assert errors["exchange output"].held_out_ratio < 1e-3
    assert errors["gloo all_reduce"].geomean_ratio < 1e-6
    assert errors["lookup forward fused"].held_out_ratio < 0.02
    assert not errors["lookup forward fused"].odd_points


def test_held_out_tables_are_predicted_in_spite_of_noise() -> None:
    noise = rng(9)
    noisy = [
        replace(
            p,
            forward_s=p.forward_s * float(np.exp(0.05 * noise.standard_normal())),
            backward_s=p.backward_s * float(np.exp(0.05 * noise.standard_normal())),
        )
        for p in lookups()
        if p.kernel == "fused"
    ]
    spoilt = replace(noisy[0], forward_s=5 * noisy[0].forward_s)
    _, (forward, backward) = fit_lookups([spoilt, *noisy[1:]], CACHES, "fused")
    assert backward.held_out_ratio < 0.12
    assert len(forward.odd_points) >= 1
    assert f"{spoilt.num_embeddings} x {spoilt.embedding_dim}" in forward.odd_points[0]


def test_groups_of_free_tables_leave_the_call() -> None:
    points = [replace(g, forward_s=1e-3, backward_s=2e-3) for g in made_points().groups]
    constants, (forward, _) = fit_groups(points, MACHINE.fused, CACHES)
    assert forward.num_points == len(points)
    assert min(constants.forward_s) >= 0


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


def test_errors_and_folds() -> None:
    assert geomean_error(np.array([])) == 0.0
    assert geomean_error(log_errors(np.array([1.1, 1.1]), np.array([1.0, 1.0]))) == pytest.approx(
        0.1
    )
    parts = folds(10, 4)
    assert sorted(int(i) for part in parts for i in part) == list(range(10))
    assert len(folds(2, 4)) == 2


def test_row_wise_features_are_shared_and_others_are_not() -> None:
    even = ExchangePoint(
        local_batch_size=100,
        pooling_factor=2.0,
        families=(FamilyPoint(sharding_type="row_wise", widths=((8, 4), ())),),
    )
    assert exchange_counts(even, 0, "output_s") == pytest.approx(
        exchange_counts(even, 1, "output_s")
    )
    table = replace(even, families=(FamilyPoint(sharding_type="table_wise", widths=((8, 4), ())),))
    first, second = (exchange_counts(table, r, "output_s") for r in range(2))
    assert first[2] == 2 * 12 * 4 * 100
    assert second[2] == 0.0
    assert first[3] == second[3] == 12 * 4 * 100


def test_designs_respect_their_limits() -> None:
    tables = designs.lookup_points(50, "dense", rng())
    assert all(p.num_embeddings * p.embedding_dim * 4 <= 3e7 for p in tables)
    exchanges = designs.exchange_points(30, 3, rng())
    assert {len(p.families) for p in exchanges} == {1, 2, 3}
    assert all(len(f.widths) == 3 for p in exchanges for f in p.families)
    groups = designs.group_points(10, rng())
    assert all(len({t.num_bags for t in g.tables}) == 1 for g in groups)
    sent = [p.sent_bytes for p in designs.collective_points(3)]
    assert all(len(s) == 3 for s in sent)


def test_dense_counts_name_what_layers_do() -> None:
    counts = dense_counts([Product(m=4, k=3, n=2)], 10.0)
    assert counts.tolist() == [1.0, 1.0, 24.0, 8.0, 10.0, 12.0]
