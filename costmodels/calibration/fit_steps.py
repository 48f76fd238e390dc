"""Fits the constants of the stages of training steps: lookups, exchanges, dense layers, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.calibration.fit_lookup import Caches
from costmodels.calibration.fitting import FitError, fit_counts, held_out_seconds
from costmodels.calibration.points import StepPoint
from costmodels.cpu.dense import layer_counts, update_counts
from costmodels.cpu.exchange import ShardLoad, exchange_counts, shard_loads
from costmodels.cpu.lookup import TOGETHER, factor, features, together
from costmodels.cpu.run_stages import STAGES
from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_layers
from costmodels.measured.cpu_constants import (
    DenseConstants,
    ExchangeConstants,
    GradientConstants,
    GroupConstants,
    LookupConstants,
)
from costmodels.sharding import ShardingType

KINDS = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)
"""Sharding types with exchanges, in the order of their counts."""
_EXCHANGES = {"indices": "input_s", "vectors": "output_s", "gradients": "gradient_s"}
"""From a stage that is an exchange to its field of ``ExchangeConstants``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """All constants that are fitted to training steps.

    Attributes:
        call_s: seconds of a fused call without work, forward and backward together.
        fused: how lookups in a step differ from lookups of single tables, for fused tables.
        replicated: the same for replicated tables.
        exchange_s: seconds that the exchanges of indices, vectors and gradients take once in a
            step, whatever the number of sharding types.
        exchanges: constants of each sharding type.
        dense: constants of the dense part.
        gradient: constants of the reduction of gradients that every rank holds.
        errors: the error of each fit.
        sigmas_ratio: standard deviation of ln(predicted / measured) of each kind of time.
    """

    call_s: float
    fused: GroupConstants
    replicated: GroupConstants
    exchange_s: tuple[float, ...]
    exchanges: dict[ShardingType, ExchangeConstants]
    dense: DenseConstants
    gradient: GradientConstants
    errors: tuple[FitError, ...]
    sigmas_ratio: tuple[tuple[str, float], ...]


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


def fit_steps(
    points: Sequence[StepPoint],
    fused: LookupConstants,
    replicated: LookupConstants,
    caches: Caches,
) -> StepFit:
    """Fit each stage by itself; in errors on points left out, a step is left out as a whole.

    Args:
        points: measured training steps.
        fused: constants of fused tables that are looked up alone.
        replicated: constants of replicated tables that are looked up alone.
        caches: sizes of the caches of a core.
    """
    seen = [
        _Seen(step=i, rank=r, point=p, loads=shard_loads(p.workload, p.plan, len(p.stages_s)))
        for i, p in enumerate(points)
        for r in range(len(p.stages_s))
    ]
    calls = [_fit_calls(seen, phase, (fused, replicated), caches) for phase in _PHASES]
    exchanges = _fit_exchanges(seen)
    dense, (replicated_s, per_byte_s), dense_errors = _fit_dense(seen)
    (forward, forward_error), (backward, backward_error) = calls
    handed_on = exchanges.replicated_s
    return StepFit(
        call_s=forward[0] + backward[0],
        fused=GroupConstants(forward_s=forward[1:6], backward_s=backward[1:6]),
        replicated=GroupConstants(
            forward_s=_handed_on(forward[6:], handed_on["indices"], handed_on["vectors"]),
            backward_s=_handed_on(backward[6:], handed_on["gradients"]),
        ),
        exchange_s=exchanges.once_s,
        exchanges=exchanges.kinds,
        dense=dense,
        gradient=GradientConstants(
            fixed_s=replicated_s + sum(costs[0] for costs in handed_on.values()),
            per_byte_s=per_byte_s,
        ),
        errors=(forward_error, backward_error, *exchanges.errors, *dense_errors),
        sigmas_ratio=_sigmas(seen, (fused, replicated), caches),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchanges:
    """The fitted constants of exchanges.

    Attributes:
        kinds: constants of each sharding type.
        once_s: seconds that each exchange takes once in a step.
        replicated_s: for each exchange, what replicated tables cost there: once if there are any,
            and for each of the counts of ``TOGETHER``.
        errors: the error of each fit.
    """

    kinds: dict[ShardingType, ExchangeConstants]
    once_s: tuple[float, ...]
    replicated_s: dict[str, tuple[float, ...]]
    errors: tuple[FitError, ...]


def _fit_exchanges(seen: Sequence[_Seen]) -> _Exchanges:
    """Fit the exchanges of indices, vectors and gradients."""
    seen = [s for s in seen if s.exchanges]
    found: dict[str, tuple[float, ...]] = {}
    errors = []
    for stage in _EXCHANGES:
        counts = [_exchange_counts(s, 0 if stage == "indices" else 1) for s in seen]
        found[stage], error = _fit_stage(seen, counts, stage, f"exchange of {stage}")
        errors.append(error)
    kinds = {}
    for k, kind in enumerate(KINDS):
        own = {}
        for stage, name in _EXCHANGES.items():
            first = 2 + len(TOGETHER)
            size = (len(found[stage]) - first) // len(KINDS)
            own[name] = found[stage][first + k * size : first + (k + 1) * size]
        kinds[kind] = ExchangeConstants(**own)
    return _Exchanges(
        kinds=kinds,
        once_s=tuple(found[stage][0] for stage in _EXCHANGES),
        replicated_s={stage: found[stage][1 : 2 + len(TOGETHER)] for stage in _EXCHANGES},
        errors=tuple(errors),
    )


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
