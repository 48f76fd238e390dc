"""Fits all constants of a machine: of the stages of its training steps, operators, collectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodels.calibration.fitting import (
    Caches,
    FitError,
    fit_counts,
    fit_lookups,
    held_out_seconds,
    log_errors,
)
from costmodels.calibration.points import (
    CalibrationPoints,
    CollectivePoint,
    OperatorPoint,
    StepPoint,
)
from costmodels.cpu.dense import (
    Counts,
    backward_counts,
    forward_counts,
    held_bytes,
    layer_counts,
    optimizer_counts,
    update_counts,
)
from costmodels.cpu.exchange import (
    ShardLoad,
    all_to_all_counts,
    buffer_counts,
    exchange_counts,
    shard_loads,
)
from costmodels.cpu.lookup import TOGETHER, factor, features, together
from costmodels.cpu.run_stages import STAGES
from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_layers
from costmodels.measured.cpu_constants import (
    OPERATOR_COUNTS,
    CollectiveConstants,
    CpuConstants,
    CpuKernel,
    DenseConstants,
    ExchangeConstants,
    GradientConstants,
    GroupConstants,
    LookupConstants,
    OperatorConstants,
)
from costmodels.operators import Operator
from costmodels.sharding import ShardingType
from costmodels.uncertainty import MACHINE

KINDS = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)
"""Sharding types with exchanges, in the order of their counts."""
_EXCHANGES = {"indices": "input_s", "vectors": "output_s", "gradients": "gradient_s"}
"""From a stage that is an exchange to its field of ``ExchangeConstants``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one rank measured in one step.

    Attributes:
        step: number of the step.
        rank: the rank.
        point: the step.
        loads: the shards of all ranks, with what arrives at them.
    """

    step: int
    rank: int
    point: StepPoint
    loads: tuple[ShardLoad, ...]

    def seconds(self, stage: str) -> float:
        """Measured seconds of a stage on this rank."""
        return self.point.stages_s[self.rank][STAGES.index(stage)]

    @property
    def exchanges(self) -> bool:
        """Whether the step has exchanges: TorchRec makes none if all tables are replicated."""
        return any(not x.replicated for x in self.loads)

    @property
    def own(self) -> tuple[ShardLoad, ...]:
        """The shards on this rank."""
        return tuple(x for x in self.loads if x.rank == self.rank)


def _fit_steps(
    points: Sequence[StepPoint],
    fused: LookupConstants,
    replicated: LookupConstants,
    caches: Caches,
) -> tuple[dict[str, Any], tuple[FitError, ...]]:
    """Fit each stage by itself; in errors on points left out, a step is left out as a whole.

    Args:
        points: measured training steps.
        fused: constants of fused tables that are looked up alone.
        replicated: constants of replicated tables that are looked up alone.
        caches: sizes of the caches of a core.

    Returns:
        The fields of :class:`CpuConstants` that steps tell, and the error of each fit.
    """
    seen = [
        _Seen(step=i, rank=r, point=p, loads=shard_loads(p.workload, p.plan, len(p.stages_s)))
        for i, p in enumerate(points)
        for r in range(len(p.stages_s))
    ]
    calls = [_fit_calls(seen, phase, (fused, replicated), caches) for phase in _PHASES]
    exchanges, handed_on, exchange_errors = _fit_exchanges(seen)
    dense, (replicated_s, per_byte_s), dense_errors = _fit_dense(seen)
    (forward, forward_error), (backward, backward_error) = calls
    constants = {
        **exchanges,
        "call_s": forward[0] + backward[0],
        "group": GroupConstants(forward_s=forward[1:6], backward_s=backward[1:6]),
        "replicated_group": GroupConstants(
            forward_s=_handed_on(forward[6:], handed_on["indices"], handed_on["vectors"]),
            backward_s=_handed_on(backward[6:], handed_on["gradients"]),
        ),
        "dense": dense,
        "gradient": GradientConstants(
            fixed_s=replicated_s + sum(costs[0] for costs in handed_on.values()),
            per_byte_s=per_byte_s,
        ),
        "sigmas_ratio": _sigmas(seen, (fused, replicated), caches),
    }
    return constants, (forward_error, backward_error, *exchange_errors, *dense_errors)


_DENSE = {
    "dense_forward": "dense forward",
    "dense_backward": "dense backward",
    "update": "bottom backward and update",
}
"""Stages of the dense part, with the names of their fits."""
_PHASES = ("forward", "backward")


def _fit_calls(
    seen: Sequence[_Seen],
    phase: str,
    constants: tuple[LookupConstants, LookupConstants],
    caches: Caches,
) -> tuple[tuple[float, ...], FitError]:
    """Fit the lookups of one pass: seconds for each of the counts of :func:`call_counts`."""
    used = [s for s in seen if s.own]
    counts = np.array([call_counts(s.own, phase, constants, caches) for s in used])
    times = np.array([s.seconds(f"lookup_{phase}") for s in used])
    return fit_counts(
        counts,
        times,
        f"lookup {phase}, calls in steps",
        groups=[s.step for s in used],
        describe=lambda i: _describe(used[i]),
    )


def call_counts(
    loads: Sequence[ShardLoad],
    phase: str,
    constants: tuple[LookupConstants, LookupConstants],
    caches: Caches,
) -> FloatArray:
    """What the lookups of a rank consist of in one pass, as counts.

    Args:
        loads: the shards of the rank.
        phase: ``forward`` or ``backward``.
        constants: constants of fused and of replicated tables that are looked up alone.
        caches: sizes of the caches of a core.

    Returns:
        First the number of fused calls. Then five sums over fused tables: seconds of the lookups
        alone, and the counts of :data:`costmodels.cpu.lookup.TOGETHER` (tables, bags, elements,
        indices). Then the same five sums over replicated tables.
    """
    counts = np.zeros(3 + 2 * len(TOGETHER))
    counts[0] = len({x.sharding_type for x in loads})
    for load in loads:
        own = constants[load.replicated]
        counted = features(
            load.access,
            l2_bytes=caches.l2_bytes,
            l3_bytes=caches.l3_bytes,
            kernel=load.kernel,
        )
        alone = float(getattr(counted, phase)[1:] @ np.array(getattr(own, f"{phase}_s")[1:]))
        alone *= float(factor(getattr(own, f"{phase}_residual"), counted.shape))
        start = 2 + len(TOGETHER) if load.replicated else 1
        counts[start : start + 1 + len(TOGETHER)] += alone, *together(load.access)
    return counts


def _fit_exchanges(
    seen: Sequence[_Seen],
) -> tuple[dict[str, Any], dict[str, tuple[float, ...]], list[FitError]]:
    """Fit the exchanges of indices, vectors and gradients.

    Returns:
        The constants of each sharding type and, as ``exchange_s``, the seconds that each exchange
        takes once in a step; for each exchange what replicated tables cost there, once if there are
        any, and for each of the counts of ``TOGETHER``; and the error of each fit.
    """
    seen = [s for s in seen if s.exchanges]
    found: dict[str, tuple[float, ...]] = {}
    errors = []
    for stage in _EXCHANGES:
        counts = [_exchange_counts(s, 0 if stage == "indices" else 1) for s in seen]
        found[stage], error = _fit_stage(seen, counts, stage, f"exchange of {stage}")
        errors.append(error)
    constants: dict[str, Any] = {"exchange_s": tuple(costs[0] for costs in found.values())}
    first = 2 + len(TOGETHER)
    for k, kind in enumerate(KINDS):
        own = {}
        for stage, name in _EXCHANGES.items():
            size = (len(found[stage]) - first) // len(KINDS)
            own[name] = found[stage][first + k * size : first + (k + 1) * size]
        constants[kind.value] = ExchangeConstants(**own)
    return constants, {stage: costs[1:first] for stage, costs in found.items()}, errors


def _exchange_counts(seen: _Seen, column: int) -> FloatArray:
    """What an exchange of a rank consists of, as counts.

    Args:
        seen: the rank and its step.
        column: 0 for the exchange of indices, 1 for vectors and their gradients.

    Returns:
        First 1. Then 1 if the rank has replicated tables, and their counts of ``TOGETHER``: tables,
        bags, elements, indices. Then the counts of each sharding type of ``KINDS``.
    """
    world = len(seen.point.stages_s)
    replicated = np.zeros(1 + len(TOGETHER))
    for load in seen.own:
        if load.replicated:
            replicated[0] = 1.0
            replicated[1:] += together(load.access)
    kinds = [exchange_counts(seen.loads, kind, seen.rank, world)[column] for kind in KINDS]
    return np.concatenate([[1.0], replicated, *kinds])


def _handed_on(group: tuple[float, ...], *extra: tuple[float, ...]) -> tuple[float, ...]:
    """Constants of the lookups of replicated tables, with what these tables cost in exchanges.

    Replicated tables exchange nothing, but their features are separated from the others in those
    stages. The seconds that this takes are counted with the lookups.

    Args:
        group: fitted constants of the lookups: a factor on the seconds alone, then seconds for each
            of the counts of ``TOGETHER``.
        extra: for each exchange of this pass, seconds once, then for each of these counts.
    """
    alone, *others = group
    added = np.sum([costs[1:] for costs in extra], axis=0)
    return (alone, *(float(x) for x in np.array(others) + added))


def _fit_dense(seen: Sequence[_Seen]) -> tuple[DenseConstants, tuple[float, ...], list[FitError]]:
    """Fit the dense part.

    Returns:
        The constants of the layers; seconds of the reduction of gradients, once if there are
        replicated tables and per byte; and the errors.
    """
    (forward, first), (backward, second), (update, third) = (
        _fit_stage(seen, [_dense_counts(s, stage) for s in seen], stage, name)
        for stage, name in _DENSE.items()
    )
    dense = DenseConstants(
        forward_s=forward,
        backward_s=backward,
        update_s=update[:-2],
    )
    return dense, update[-2:], [first, second, third]


def _dense_counts(seen: _Seen, stage: str) -> FloatArray:
    """Counts of a stage of the dense part: all layers forward, or the top's layers backward.

    The stage ``update`` counts the bottom's layers backward, the optimizer and what is reduced.
    """
    workload = seen.point.workload
    if stage == "update":
        return np.concatenate([update_counts(workload), _reduced(seen)])
    layers = dense_layers(workload)
    counts = layer_counts(layers.top, workload.dense.dtype.num_bytes)
    if stage == "dense_forward":
        counts += layer_counts(layers.bottom, workload.dense.dtype.num_bytes)
    counts[0] = 1.0
    return np.asarray(counts)


def _reduced(seen: _Seen) -> FloatArray:
    """1 if the rank has replicated tables, else 0; and the bytes of gradients that are reduced."""
    layers = dense_layers(seen.point.workload)
    num_bytes = 4.0 * (layers.bottom_parameters + layers.top_parameters)
    replicated = [x.access for x in seen.own if x.replicated]
    num_bytes += sum(4.0 * a.num_rows * a.num_cols for a in replicated)
    return np.array([float(bool(replicated)), num_bytes])


def _sigmas(
    seen: Sequence[_Seen], constants: tuple[LookupConstants, LookupConstants], caches: Caches
) -> tuple[tuple[str, float], ...]:
    """Root mean square of ln(predicted / measured) of each kind of time, with steps left out.

    The stages of one kind are added up before they are compared, because errors of single stages
    partly cancel out in a step.

    Args:
        seen: all ranks of all steps.
        constants: constants of fused and of replicated tables that are looked up alone.
        caches: sizes of the caches of a core.
    """

    def calls(s: _Seen, stage: str) -> FloatArray:
        """Counts of a lookup stage."""
        return call_counts(s.own, stage.removeprefix("lookup_"), constants, caches)

    def exchange(s: _Seen, stage: str) -> FloatArray:
        """Counts of an exchange stage."""
        return _exchange_counts(s, 0 if stage == "indices" else 1)

    kinds: dict[str, tuple[Callable[[_Seen, str], FloatArray], tuple[str, ...]]] = {
        "lookup": (calls, ("lookup_forward", "lookup_backward")),
        "collective": (exchange, tuple(_EXCHANGES)),
        "dense": (_dense_counts, ("dense_forward", "dense_backward", "update")),
    }
    found = []
    for kind, (counted, stages) in kinds.items():
        used = [s for s in seen if s.own and s.exchanges]
        groups = [s.step for s in used]
        predicted, measured = np.zeros((2, len(used)))
        for stage in stages:
            times = np.array([s.seconds(stage) for s in used])
            counts = np.array([counted(s, stage) for s in used])
            predicted += held_out_seconds(counts, times, groups)
            measured += times
        errors = np.log(predicted / measured)
        found.append((kind, float(np.sqrt(np.mean(np.square(errors))))))
    return (*found, ("host", 0.0))


def _fit_stage(
    seen: Sequence[_Seen], counts: Sequence[FloatArray], stage: str, name: str
) -> tuple[tuple[float, ...], FitError]:
    """Seconds per count of one stage; ``name`` is what reports call the fit."""
    return fit_counts(
        np.array(counts),
        np.array([s.seconds(stage) for s in seen]),
        name,
        groups=[s.step for s in seen],
        describe=lambda i: _describe(seen[i]),
    )


def _describe(seen: _Seen) -> str:
    """A rank of a step in words; a letter for each table says its sharding type."""
    kinds = "".join(p.sharding_type.value[0].upper() for p in seen.point.plan.placements)
    batch = seen.point.workload.batch_size_per_rank
    return f"rank {seen.rank} of {seen.point.workload.name}, batch {batch}, tables {kinds}"


# ------------------------------------------------------------------ all of a machine


CHAIN: Final = "chain"
"""Name of the points that are chains of operators."""
_CHAIN_WEIGHT: Final = 3
"""How often a chain counts in the fit. It counts more than a single operator, because in a chain
data and code are as cold as in a model."""

_ByClass = tuple[tuple[str, tuple[float, ...]], ...]
"""For each class of operators its name and its seconds per count."""


def fit_operators(
    points: Sequence[OperatorPoint],
) -> tuple[OperatorConstants | None, tuple[FitError, ...]]:
    """Fit the forward pass, the backward pass and the update of operators.

    All classes of operators are fitted together, because the time of a chain is that of all its
    operators.

    Args:
        points: measured operators and chains.

    Returns:
        The constants, None if there are no points, and the errors of the three fits.
    """
    if not points:
        return None, ()
    weighted = [p for p in points for _ in range(_CHAIN_WEIGHT if p.name == CHAIN else 1)]
    measured = np.array([(p.forward_s, p.backward_s) for p in weighted])
    forward, first, forward_s = _fit_pass(weighted, forward_counts, measured[:, 0], "forward")
    backward, second, backward_s = _fit_pass(weighted, backward_counts, measured[:, 1], "backward")
    errors = log_errors(forward_s + backward_s, measured.sum(axis=1))
    typical = [p.name == CHAIN for p in weighted]
    errors = errors[typical] if any(typical) else errors
    trained = [p for p in points if p.update_s > 0]
    update, third = fit_counts(
        np.array([optimizer_counts(p.operators) for p in trained]),
        np.array([p.update_s for p in trained]),
        "optimizer step",
        describe=lambda i: trained[i].name,
    )
    constants = OperatorConstants(
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        sigma_ratio=float(np.sqrt(np.mean(np.square(errors)))),
    )
    return constants, (first, second, third)


def _fit_pass(
    points: Sequence[OperatorPoint],
    counted: Callable[[Sequence[Operator], float], Counts],
    times_s: FloatArray,
    phase: str,
) -> tuple[_ByClass, FitError, FloatArray]:
    """Fit one pass.

    Args:
        points: measured operators and chains; a chain is in the list several times.
        counted: counts of some operators by class, given the bytes that a step holds.
        times_s: ``[points]`` measured seconds of this pass.
        phase: name of the pass.

    Returns:
        For each class its seconds per count; the errors; and the seconds that are predicted for
        each point if the point and its copies are left out of the fit.
    """
    found = [counted(p.operators, held_bytes(p.operators)) for p in points]
    names = sorted({name for counts in found for name in counts})
    table: FloatArray = np.zeros((len(points), len(names), OPERATOR_COUNTS))
    for i, counts in enumerate(found):
        for name, values in counts.items():
            table[i, names.index(name)] = values
    flat = table.reshape(len(points), -1)
    used = flat.any(axis=0)
    numbers = {id(p): i for i, p in enumerate(points)}
    groups = [numbers[id(p)] for p in points]
    fitted, error = fit_counts(
        flat[:, used],
        times_s,
        f"operators, {phase}",
        groups=groups,
        describe=lambda i: f"{points[i].name} {points[i].operators[0].shape}",
    )
    coefficients = np.zeros(flat.shape[1])
    coefficients[used] = fitted
    rows = coefficients.reshape(len(names), OPERATOR_COUNTS).tolist()
    by_class = tuple((n, tuple(row)) for n, row in zip(names, rows, strict=True))
    return by_class, error, held_out_seconds(flat[:, used], times_s, groups)


LATER_PACE_SIGMA: Final = 0.06
"""Log-standard deviation of the machine's pace from a calibration to later runs. Eight times fixed
work was timed beside a calibration and again minutes later, on shared virtual machines: the pace
differed by 1 to 22 %, four times by more than 5 %. Without the largest difference the root mean
square is 0.05; the median gives 0.08."""


def fit_machine(
    points: CalibrationPoints, caches: Caches, *, machine: str, world_size: int
) -> tuple[CpuConstants, tuple[FitError, ...]]:
    """Fit every model of a machine whose ranks are CPU cores.

    Args:
        points: what was measured.
        caches: sizes of the caches of a core.
        machine: name of the machine.
        world_size: ranks that were measured.

    Returns:
        The constants, and the error of each fit.
    """
    fused, fused_errors = fit_lookups(points.lookups, caches, CpuKernel.FUSED)
    replicated, replicated_errors = fit_lookups(points.lookups, caches, CpuKernel.DENSE)
    has_sequences = any(p.kernel is CpuKernel.SEQUENCE for p in points.lookups)
    sequence, sequence_errors = (
        fit_lookups(points.lookups, caches, CpuKernel.SEQUENCE) if has_sequences else (None, ())
    )
    steps, step_errors = _fit_steps(points.steps, fused, replicated, caches)
    pace_sigma_ratio = math.hypot(points.pace_sigma_ratio, LATER_PACE_SIGMA)
    steps["sigmas_ratio"] = (*steps["sigmas_ratio"], (MACHINE, pace_sigma_ratio))
    collective, collective_errors = _fit_collectives(points.collectives)
    operators, operator_errors = fit_operators(points.operators)
    constants = CpuConstants(
        machine=machine,
        world_size=world_size,
        l2_bytes=caches.l2_bytes,
        l3_bytes=caches.l3_bytes,
        fused=fused,
        replicated=replicated,
        sequence=sequence,
        collective=collective,
        operators=operators,
        pace_s=points.pace_s,
        **steps,
    )
    errors = (
        *step_errors,
        *fused_errors,
        *replicated_errors,
        *sequence_errors,
        *collective_errors,
        *operator_errors,
    )
    return constants, errors


def _fit_collectives(
    points: Sequence[CollectivePoint],
) -> tuple[CollectiveConstants, tuple[FitError, ...]]:
    """Fit each collective by itself."""
    found, errors = {}, []
    for operation in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce"):
        seen = [p for p in points if p.operation == operation]
        counts = np.array([collective_counts(p) for p in seen])
        times = np.array([p.time_s for p in seen])
        names = [_words(p) for p in seen]
        found[f"{operation}_s"], error = fit_counts(
            counts, times, f"gloo {operation}", describe=names.__getitem__
        )
        errors.append(error)
    return CollectiveConstants(**found), tuple(errors)


def _words(point: CollectivePoint) -> str:
    """A collective in words: what one rank sends and keeps at most, for reports of odd points."""
    sent, kept = max(point.sent_bytes) / 2**10, max(point.kept_bytes) / 2**10
    even = "" if len({*point.sent_bytes}) == 1 else ", uneven"
    return f"{point.world_size} ranks, {sent:.0f} KiB sent, {kept:.0f} KiB kept{even}"


def collective_counts(point: CollectivePoint) -> FloatArray:
    """Counts of a collective, in the order of :class:`costmodels.cpu.exchange.Gloo`.

    For an all-to-all, each count is the largest of all ranks.
    """
    if point.operation == "all_to_all":
        total, world = sum(point.sent_bytes), point.world_size
        rows = []
        for rank in range(world):
            arriving = (total - point.sent_bytes[rank]) / max(world - 1, 1)
            rows.append(all_to_all_counts(point.sent_bytes[rank], arriving, point.kept_bytes[rank]))
        return np.asarray(np.max(rows, axis=0))
    held = point.kept_bytes[0]
    return buffer_counts(held if point.operation == "all_reduce" else held * point.world_size)
