"""All constants of a machine from all its points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.calibration.fit_lookup import Caches, fit_lookups, table_seconds
from costmodels.calibration.fitting import (
    FitError,
    FloatArray,
    folds,
    geomean_error,
    log_errors,
    non_negative,
)
from costmodels.calibration.points import (
    CalibrationPoints,
    CollectivePoint,
    DensePoint,
    ExchangePoint,
    FamilyPoint,
    GroupPoint,
)
from costmodels.cpu.constants import (
    CollectiveConstants,
    CpuConstants,
    DenseConstants,
    ExchangeConstants,
    GradientConstants,
    GroupConstants,
    LookupConstants,
)
from costmodels.cpu.dense import dense_counts
from costmodels.cpu.exchange import beyond_caches
from costmodels.cpu.gloo import all_to_all_counts, buffer_counts
from costmodels.dense.base import Product

_FOLDS = 4
_ODD = 0.5
_MOST_ODD = 5
_INDEX_BYTES = 8.0
_LENGTH_BYTES = 4.0
_VECTOR_BYTES = 4.0
_STEPS = ("input_s", "output_s", "gradient_s")
_KINDS = ("table_wise", "column_wise", "row_wise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants and how well they fit."""

    constants: CpuConstants
    errors: tuple[FitError, ...]


def fit_machine(
    points: CalibrationPoints, caches: Caches, *, machine: str, world_size: int
) -> Fitted:
    """Fit every model of a machine whose ranks are CPU cores."""
    fused, fused_errors = fit_lookups(points.lookups, caches, "fused")
    replicated, replicated_errors = fit_lookups(points.lookups, caches, "dense")
    exchanges, once, exchange_errors = _fit_exchanges(points.exchanges)
    dense, dense_errors = _fit_dense(points.dense)
    collective, collective_errors = _fit_collectives(points.collectives)
    sizes = np.array([[1.0, p.num_bytes] for p in points.gradients])
    times = np.array([p.time_s for p in points.gradients])
    gradient, gradient_error = _fit(sizes, times, "gradient reduction")
    group, group_errors = fit_groups(points.groups, fused, caches)
    constants = CpuConstants(
        machine=machine,
        world_size=world_size,
        l2_bytes=caches.l2_bytes,
        l3_bytes=caches.l3_bytes,
        call_s=group.forward_s[0] + group.backward_s[0],
        group=group,
        fused=fused,
        replicated=replicated,
        exchange_s=once,
        table_wise=exchanges["table_wise"],
        column_wise=exchanges["column_wise"],
        row_wise=exchanges["row_wise"],
        collective=collective,
        dense=dense,
        gradient=GradientConstants(fixed_s=gradient[0], per_byte_s=gradient[1]),
    )
    errors = (*fused_errors, *replicated_errors, *exchange_errors, *dense_errors)
    return Fitted(
        constants=constants, errors=(*group_errors, *errors, *collective_errors, gradient_error)
    )


def _fit(
    counts: FloatArray,
    times_s: FloatArray,
    name: str,
    describe: Callable[[int], str] | None = None,
) -> tuple[tuple[float, ...], FitError]:
    """Non-negative coefficients, with errors on points held out in turn."""
    coefficients = non_negative(counts, times_s)
    inside = log_errors(counts @ coefficients, times_s)
    outside = np.zeros(len(times_s))
    for held in folds(len(times_s), _FOLDS):
        kept = np.setdiff1d(np.arange(len(times_s)), held)
        if len(kept):
            model = non_negative(counts[kept], times_s[kept])
            outside[held] = log_errors(counts[held] @ model, times_s[held])
    odd = [i for i in np.argsort(-np.abs(outside)) if abs(outside[i]) > _ODD][:_MOST_ODD]
    error = FitError(
        name=name,
        num_points=len(times_s),
        geomean_ratio=geomean_error(inside),
        held_out_ratio=geomean_error(outside),
        p90_ratio=float(np.expm1(np.quantile(np.abs(outside), 0.9))),
        odd_points=tuple(
            f"{describe(i) if describe else f'point {i}'}: predicted / measured "
            f"{np.exp(outside[i]):.2f}"
            for i in odd
        ),
    )
    return tuple(float(c) for c in coefficients), error


def fit_groups(
    points: Sequence[GroupPoint], fused: LookupConstants, caches: Caches
) -> tuple[GroupConstants, tuple[FitError, FitError]]:
    """What changes when tables share a call: a factor, and costs per bag and element."""
    found, errors = [], []
    for phase in ("forward", "backward"):
        counts = [
            [
                1.0,
                sum(table_seconds(t, fused, caches, phase) for t in p.tables),
                float(len(p.tables)),
                sum(t.num_bags for t in p.tables),
                sum(float(t.num_bags) * t.embedding_dim for t in p.tables),
            ]
            for p in points
        ]
        times = np.array([getattr(p, f"{phase}_s") for p in points])
        coefficients, error = _fit(np.array(counts), times, f"lookup {phase} fused calls")
        found.append(coefficients)
        errors.append(error)
    constants = GroupConstants(forward_s=found[0], backward_s=found[1])
    return constants, (errors[0], errors[1])


def _fit_exchanges(
    points: Sequence[tuple[ExchangePoint, ...]],
) -> tuple[dict[str, ExchangeConstants], tuple[float, ...], tuple[FitError, ...]]:
    """Constants per sharding type, what each step costs once, and errors."""
    seen = [(p, r) for ranks in points for r, p in enumerate(ranks)]
    steps: dict[str, tuple[float, ...]] = {}
    errors = []
    for step in _STEPS:
        counts = np.array([exchange_counts(p, r, step) for p, r in seen])
        times = np.array([getattr(p, step) for p, _ in seen])
        name = f"exchange {step.removesuffix('_s')}"
        steps[step], error = _fit(counts, times, name, lambda i: str(seen[i]))
        errors.append(error)
    found = {}
    for k, kind in enumerate(_KINDS):
        own = {}
        for step, all_constants in steps.items():
            size = (len(all_constants) - 1) // len(_KINDS)
            own[step] = all_constants[1 + k * size : 1 + (k + 1) * size]
        found[kind] = ExchangeConstants(**own)
    return found, tuple(steps[step][0] for step in _STEPS), tuple(errors)


def exchange_counts(point: ExchangePoint, rank: int, step: str) -> FloatArray:
    """1, then for each kind its counts in the order of the exchange model."""
    blocks = [np.ones(1)]
    families = {f.sharding_type: f for f in point.families}
    for kind in _KINDS:
        width = 5 if step == "input_s" else 4
        family = families.get(kind)
        counts = np.zeros(width) if family is None else _family_counts(point, family, rank, step)
        blocks.append(counts)
    return np.concatenate(blocks)


def _family_counts(point: ExchangePoint, family: FamilyPoint, rank: int, step: str) -> FloatArray:
    batch, world = float(point.local_batch_size), len(family.widths)
    features = np.array([float(len(w)) for w in family.widths])
    columns = np.array([float(sum(w)) for w in family.widths])
    indices = point.pooling_factor * _INDEX_BYTES * batch
    if family.sharding_type == "row_wise":
        features = np.full(world, features.sum())
        columns = np.full(world, columns.sum())
        indices /= world
    if step == "input_s":
        lengths = features * _LENGTH_BYTES * batch
        arriving = features * indices + lengths
        return np.array([1.0, lengths.sum(), lengths[rank], arriving.sum(), arriving[rank]])
    leaving = columns * _VECTOR_BYTES * batch
    produced, joined = world * leaving[rank], leaving.sum()
    return np.array([1.0, produced, joined, beyond_caches(produced + joined)])


def _fit_dense(points: Sequence[DensePoint]) -> tuple[DenseConstants, tuple[FitError, ...]]:
    counts = np.array([_point_counts(p) for p in points])
    forward, forward_error = _fit(counts, np.array([p.forward_s for p in points]), "dense forward")
    backward, backward_error = _fit(
        counts, np.array([p.backward_s for p in points]), "dense backward"
    )
    return DenseConstants(forward_s=forward, backward_s=backward), (forward_error, backward_error)


def _point_counts(point: DensePoint) -> FloatArray:
    batch = point.local_batch_size
    joined = point.bottom_mlp[-1] + sum(point.embedding_dims)
    chains = ((point.num_dense_features, *point.bottom_mlp), (joined, *point.top_mlp))
    products = [
        Product(m=batch, k=fan_in, n=fan_out)
        for sizes in chains
        for fan_in, fan_out in itertools.pairwise(sizes)
    ]
    return dense_counts(products, float(batch * joined))


def _fit_collectives(
    points: Sequence[CollectivePoint],
) -> tuple[CollectiveConstants, tuple[FitError, ...]]:
    found, errors = {}, []
    for operation in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce"):
        seen = [p for p in points if p.operation == operation]
        counts = np.array([collective_counts(p) for p in seen])
        times = np.array([p.time_s for p in seen])
        names = [str(p) for p in seen]
        found[f"{operation}_s"], error = _fit(counts, times, f"gloo {operation}", names.__getitem__)
        errors.append(error)
    return CollectiveConstants(**found), tuple(errors)


def collective_counts(point: CollectivePoint) -> FloatArray:
    """Counts of the slowest rank in the order of :class:`costmodels.cpu.gloo.Gloo`."""
    if point.operation == "all_to_all":
        total, world = sum(point.sent_bytes), point.world_size
        rows = []
        for rank in range(world):
            arriving = (total - point.sent_bytes[rank]) / max(world - 1, 1)
            rows.append(all_to_all_counts(point.sent_bytes[rank], arriving, point.kept_bytes[rank]))
        return np.asarray(np.max(rows, axis=0))
    held = point.kept_bytes[0]
    return buffer_counts(held if point.operation == "all_reduce" else held * point.world_size)
