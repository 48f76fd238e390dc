"""Fits all constants of a machine: of the stages of its training steps, operators, collectives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from costmodels.calibration import fitting
from costmodels.calibration import points as designs
from costmodels.cpu import dense, exchange
from costmodels.cpu.lookup import TOGETHER, Accesses, alone_s, together
from costmodels.datatypes import FloatArray
from costmodels.dense.base import dense_layers
from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel, LookupShards
from costmodels.measured import cpu_constants
from costmodels.measured.cpu_constants import Caches, CpuKernel, LookupConstants
from costmodels.shard_work import work as columns
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Topology
from costmodels.uncertainty import MACHINE

KINDS = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)
"""Sharding types with exchanges, in the order of their counts."""
_EXCHANGES = {"indices": "input_s", "vectors": "output_s", "gradients": "gradient_s"}
"""From a stage that is an exchange to its field of ``ExchangeConstants``."""
_FITS: Final = {
    "lookup_forward": ("lookup", "lookup forward, calls in steps"),
    "lookup_backward": ("lookup", "lookup backward, calls in steps"),
    "indices": ("collective", "exchange of indices"),
    "vectors": ("collective", "exchange of vectors"),
    "gradients": ("collective", "exchange of gradients"),
    "dense_forward": ("dense", "dense forward"),
    "dense_backward": ("dense", "dense backward"),
    "update": ("dense", "bottom backward and update"),
}
"""For each stage the kind of its time, and what reports call its fit."""


_KERNELS: Final = (ComputeKernel.FUSED, ComputeKernel.DENSE)
"""The kernels of sharded and of replicated tables, which are both pooled."""
_NUM_COUNTED: Final = 2 + len(TOGETHER)
_TOGETHER: Final = list(range(2, _NUM_COUNTED))
"""How many counts a shard has, and where those of ``TOGETHER`` are among them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Counting(AbstractLookupModel):
    """Counts lookups in the first columns of their work, instead of pricing them.

    They are the seconds, forward and backward, of tables that are looked up alone; and the counts
    of :data:`costmodels.cpu.lookup.TOGETHER`.

    Args:
        fused, replicated: constants of such tables that are looked up alone.
        caches: sizes of the caches of a core.
    """

    fused: LookupConstants
    replicated: LookupConstants
    caches: Caches

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """``[n, NUM_LOOKUP_WORK]`` counts of pooled shards."""
        del topology
        work = np.zeros((len(shards), NUM_LOOKUP_WORK))
        for kernel, constants in zip(_KERNELS, (self.fused, self.replicated), strict=True):
            at = np.flatnonzero(shards.runs(kernel))
            if len(at):
                seen = Accesses(shards.chosen(at))
                alone = alone_s(seen, CpuKernel(kernel.value), constants, self.caches)
                work[at, :_NUM_COUNTED] = np.column_stack([*alone, together(seen)])
        return work

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds of tables that are looked up alone."""
        del topology
        return np.asarray(work[..., 0])

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """The same of the backward pass."""
        del topology
        return np.asarray(work[..., 1])


def _fit_steps(
    points: Sequence[designs.StepPoint], lookup: _Counting, topology: Topology
) -> tuple[dict[str, Any], list[fitting.FitError]]:
    """Fit each stage by itself; in errors on points left out, a step is left out as a whole.

    Args:
        points: measured training steps.
        lookup: counts the lookups of a step.
        topology: has the ranks that ran them.

    Returns:
        The fields of :class:`CpuConstants` that steps tell, and the error of each fit.
    """
    each = [_counts(point, lookup, topology) for point in points]
    counts = {stage: np.concatenate([found[stage] for found in each]) for stage in _FITS}
    measured = np.concatenate([np.array(point.stages_s) for point in points])
    times = {stage: measured[:, exchange.STAGES.index(stage)] for stage in _FITS}
    steps = np.repeat(np.arange(len(points)), topology.world_size)
    # TorchRec makes no exchanges if all tables are replicated.
    used = {
        "lookup": counts["lookup_forward"][:, 0] > 0,
        "collective": counts["vectors"][:, 2 + len(TOGETHER) :].any(axis=1),
        "dense": np.ones(len(steps), dtype=bool),
    }
    costs: dict[str, tuple[float, ...]] = {}
    held_out, errors = {stage: np.zeros(len(steps)) for stage in _FITS}, []
    for stage, (kind, name) in _FITS.items():
        at = np.flatnonzero(used[kind])
        costs[stage], error, held_out[stage][at] = fitting.fit_counts(
            counts[stage][at], times[stage][at], name, steps[at]
        )
        errors.append(error)

    # The deviation of each kind of time: its stages are added up before they are compared, because
    # errors of single stages partly cancel out in a step.
    at = np.flatnonzero(used["lookup"] & used["collective"])
    sigmas = []
    for kind in used:
        stages = [stage for stage, (own, _) in _FITS.items() if own == kind]
        off = np.log(sum(held_out[s][at] for s in stages) / sum(times[s][at] for s in stages))
        sigmas.append((kind, float(np.sqrt(np.mean(np.square(off))))))
    return {**_constants(costs), "sigmas_ratio": (*sigmas, ("host", 0.0))}, errors


def _constants(costs: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    """The fields of :class:`CpuConstants` from the seconds per count of each stage.

    Replicated tables exchange nothing, but their features are separated from the others in the
    stages of exchanges. The seconds that this takes are counted with their lookups.
    """
    first = 2 + len(TOGETHER)
    parts = {
        name: np.split(np.array(costs[s][first:]), len(KINDS)) for s, name in _EXCHANGES.items()
    }
    exchanges = {
        kind.value: cpu_constants.ExchangeConstants(
            **{name: tuple(part[k].tolist()) for name, part in parts.items()}
        )
        for k, kind in enumerate(KINDS)
    }
    handed_on = {stage: np.array(costs[stage][1:first]) for stage in _EXCHANGES}
    forward, backward = costs["lookup_forward"], costs["lookup_backward"]
    passes = {
        "forward_s": (forward[6:], handed_on["indices"] + handed_on["vectors"]),
        "backward_s": (backward[6:], handed_on["gradients"]),
    }
    replicated = {
        name: (alone, *(np.array(others) + extra[1:]).tolist())
        for name, ((alone, *others), extra) in passes.items()
    }
    *update, replicated_s, per_byte_s = costs["update"]
    return {
        **exchanges,
        "exchange_s": tuple(costs[stage][0] for stage in _EXCHANGES),
        "call_s": forward[0] + backward[0],
        "group": cpu_constants.GroupConstants(forward_s=forward[1:6], backward_s=backward[1:6]),
        "replicated_group": cpu_constants.GroupConstants(**replicated),
        "dense": cpu_constants.DenseConstants(
            forward_s=costs["dense_forward"],
            backward_s=costs["dense_backward"],
            update_s=tuple(update),
        ),
        "gradient": cpu_constants.GradientConstants(
            fixed_s=replicated_s + sum(float(extra[0]) for extra in handed_on.values()),
            per_byte_s=per_byte_s,
        ),
    }


def _counts(
    point: designs.StepPoint, lookup: _Counting, topology: Topology
) -> dict[str, FloatArray]:
    """What each stage of a step consists of on each rank, as counts ``[W, counts]``.

    Lookups have the number of fused calls. Then they have five sums over fused tables: seconds of
    the lookups alone, and the counts of :data:`costmodels.cpu.lookup.TOGETHER` (tables, bags,
    elements, indices). Then they have the same five sums over replicated tables.

    Exchanges have 1. Then they have 1 if the rank has replicated tables, and their counts of
    ``TOGETHER``. Then they have the counts of each sharding type of ``KINDS``, which are 0 without
    tables of this type.

    The stage ``dense_forward`` has all layers, ``dense_backward`` those of the top, and ``update``
    those of the bottom, the optimizer and what is reduced: 1 if the rank has replicated tables, and
    the bytes of gradients.

    Args:
        point: the step.
        lookup: counts its lookups.
        topology: has its ranks.
    """
    workload, world = point.workload, topology.world_size
    work = columns.WorkModel(workload, topology, lookup).plan_work(point.plan)
    first = (columns.KERNELS.index(k) * NUM_LOOKUP_WORK for k in _KERNELS)
    fused, replicated = (work[:, columns.LOOKUP + at :][:, :_NUM_COUNTED] for at in first)
    calls = np.count_nonzero(work[:, columns.CALLS : columns.REPLICATED], axis=1)
    forward, backward = (
        np.column_stack([calls, *(part[:, [way, *_TOGETHER]] for part in (fused, replicated))])
        for way in (0, 1)
    )
    holds = (replicated[:, _TOGETHER[0]] > 0).astype(float)
    shared = np.column_stack([np.ones(world), holds, replicated[:, _TOGETHER]])
    indices, vectors = [shared], [shared]
    for kind in KINDS:
        family = columns.EXCHANGING_TYPES.index(kind)
        traffic = exchange.Traffic(
            arriving_bytes=work[:, columns.INPUT + family],
            leaving_bytes=work[:, columns.OUTPUT + family],
            num_shards=work[:, columns.call_column(kind, ComputeKernel.FUSED)],
        )
        present = float(traffic.num_shards.any())
        indices.append(present * traffic.index_counts(workload.batch_size_per_rank))
        vectors.append(present * traffic.vector_counts)
    layers, element = dense_layers(workload), workload.dense.dtype.num_bytes
    top = dense.layer_counts(layers.top, element)
    every = top + dense.layer_counts(layers.bottom, element)
    top[0] = every[0] = 1.0
    num_bytes = 4.0 * sum(layers.num_parameters)
    update = np.tile(dense.update_counts(workload), (world, 1))
    return {
        "lookup_forward": forward,
        "lookup_backward": backward,
        "indices": np.concatenate(indices, axis=1),
        "vectors": np.concatenate(vectors, axis=1),
        "gradients": np.concatenate(vectors, axis=1),
        "dense_forward": np.tile(every, (world, 1)),
        "dense_backward": np.tile(top, (world, 1)),
        "update": np.column_stack([update, holds, num_bytes + work[:, columns.REPLICATED]]),
    }


# ------------------------------------------------------------------ all of a machine


CHAIN: Final = "chain"
"""Name of the points that are chains of operators."""
_CHAIN_WEIGHT: Final = 3
"""How often a chain counts in the fit. It counts more than a single operator, because in a chain
data and code are as cold as in a model."""

_ByClass = tuple[tuple[str, tuple[float, ...]], ...]
"""For each class of operators its name and its seconds per count."""


def fit_operators(
    points: Sequence[designs.OperatorPoint],
) -> tuple[cpu_constants.OperatorConstants | None, tuple[fitting.FitError, ...]]:
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
    forward, first, forward_s = _fit_pass(weighted, measured[:, 0], "forward")
    backward, second, backward_s = _fit_pass(weighted, measured[:, 1], "backward")
    errors = fitting.log_errors(forward_s + backward_s, measured.sum(axis=1))
    typical = [p.name == CHAIN for p in weighted]
    errors = errors[typical] if any(typical) else errors
    trained = [p for p in points if p.update_s > 0]
    update, third, _ = fitting.fit_counts(
        np.array([dense.optimizer_counts(p.operators) for p in trained]),
        np.array([p.update_s for p in trained]),
        "optimizer step",
    )
    constants = cpu_constants.OperatorConstants(
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        sigma_ratio=float(np.sqrt(np.mean(np.square(errors)))),
    )
    return constants, (first, second, third)


def _fit_pass(
    points: Sequence[designs.OperatorPoint], times_s: FloatArray, phase: str
) -> tuple[_ByClass, fitting.FitError, FloatArray]:
    """Fit one pass.

    Args:
        points: measured operators and chains; a chain is in the list several times.
        times_s: ``[points]`` measured seconds of this pass.
        phase: ``forward`` or ``backward``.

    Returns:
        For each class its seconds per count; the errors; and the seconds that are predicted for
        each point if the point and its copies are left out of the fit.
    """
    counted = {"forward": dense.forward_counts, "backward": dense.backward_counts}[phase]
    found = [counted(p.operators, dense.held_bytes(p.operators)) for p in points]
    used = sorted(
        {(name, i) for counts in found for name, of in counts.items() for i in np.flatnonzero(of)}
    )
    table = np.array([[c[name][i] if name in c else 0.0 for name, i in used] for c in found])
    seconds, error, held_out_s = fitting.fit_counts(
        table, times_s, f"operators, {phase}", [id(p) for p in points]
    )
    by_class = {name: [0.0] * cpu_constants.OPERATOR_COUNTS for name, _ in used}
    for (name, i), per_count_s in zip(used, seconds, strict=True):
        by_class[name][i] = per_count_s
    return tuple((n, tuple(row)) for n, row in by_class.items()), error, held_out_s


LATER_PACE_SIGMA: Final = 0.06
"""Log-standard deviation of the machine's pace from a calibration to later runs. Eight times fixed
work was timed beside a calibration and again minutes later, on shared virtual machines: the pace
differed by 1 to 22 %, four times by more than 5 %. Without the largest difference the root mean
square is 0.05; the median gives 0.08."""


def fit_machine(
    points: designs.CalibrationPoints, caches: Caches, topology: Topology, *, machine: str
) -> tuple[cpu_constants.CpuConstants, tuple[fitting.FitError, ...]]:
    """Fit every model of a machine whose ranks are CPU cores.

    Args:
        points: what was measured.
        caches: sizes of the caches of a core.
        topology: a system of CPU cores with the ranks that were measured.
        machine: name of the machine.

    Returns:
        The constants, and the error of each fit.
    """
    lookups = {k: fitting.fit_lookups(points.lookups, caches, k) for k in CpuKernel}
    fused, replicated, sequence = (lookups[k][0] for k in CpuKernel)
    lookup = _Counting(fused=fused, replicated=replicated, caches=caches)
    steps, step_errors = _fit_steps(points.steps, lookup, topology)
    pace_sigma_ratio = math.hypot(points.pace_sigma_ratio, LATER_PACE_SIGMA)
    steps["sigmas_ratio"] = (*steps["sigmas_ratio"], (MACHINE, pace_sigma_ratio))
    collective, collective_errors = _fit_collectives(points.collectives)
    operators, operator_errors = fit_operators(points.operators)
    constants = cpu_constants.CpuConstants(
        machine=machine,
        world_size=topology.world_size,
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
    lookup_errors = (error for _, errors in lookups.values() for error in errors)
    return constants, (*step_errors, *lookup_errors, *collective_errors, *operator_errors)


def _fit_collectives(
    points: Sequence[designs.CollectivePoint],
) -> tuple[cpu_constants.CollectiveConstants, tuple[fitting.FitError, ...]]:
    """Fit each collective by itself."""
    found, errors = {}, []
    for operation in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce"):
        seen = [p for p in points if p.operation == operation]
        counts, times = np.array([collective_counts(p) for p in seen]), [p.time_s for p in seen]
        found[f"{operation}_s"], error, _ = fitting.fit_counts(
            counts, np.array(times), f"gloo {operation}"
        )
        errors.append(error)
    return cpu_constants.CollectiveConstants(**found), tuple(errors)


def collective_counts(point: designs.CollectivePoint) -> FloatArray:
    """Counts of a collective, in the order of :class:`costmodels.cpu.exchange.Gloo`.

    For an all-to-all, each count is the largest of all ranks.
    """
    if point.operation == "all_to_all":
        total, others = sum(point.sent_bytes), max(len(point.sent_bytes) - 1, 1)
        pairs = zip(point.sent_bytes, point.kept_bytes, strict=True)
        counts = [exchange.all_to_all_counts(s, (total - s) / others, kept) for s, kept in pairs]
        return np.asarray(np.max(counts, axis=0))
    parts = 1 if point.operation == "all_reduce" else len(point.sent_bytes)
    return exchange.buffer_counts(point.kept_bytes[0] * parts)
