"""The points of a calibration: one dataclass per kind of microbenchmark, with what it measured.

A point is made without times by :mod:`costmodels.calibration.designs`, and with times once it is
measured. All seconds are processor seconds of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from costmodels.measured.cpu_constants import CpuKernel
from costmodels.operators import Operator
from costmodels.sharding import Plan
from costmodels.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPoint:
    """One table that is looked up and updated by a call of its own.

    Attributes:
        kernel: fused (row-wise Adagrad in the backward pass), dense (a gradient of the whole
            table), or sequence (as fused, but indices are not pooled).
        num_embeddings: rows of the table.
        embedding_dim: columns of the table.
        num_bags: bags in the call.
        pooling_factor: mean indices of a bag.
        exponent: of the Zipf law that indices are drawn from; 0 is uniform.
        forward_s: measured seconds of the lookup.
        backward_s: measured seconds of its backward pass, with the update.
    """

    kernel: CpuKernel
    num_embeddings: int
    embedding_dim: int
    num_bags: int
    pooling_factor: float
    exponent: float
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePoint:
    """One collective without the copies that TorchRec makes around it.

    Attributes:
        operation: ``all_to_all``, ``reduce_scatter``, ``all_gather`` or ``all_reduce``.
        world_size: ranks that take part.
        sent_bytes: ``[world_size]`` bytes that each rank sends to all other ranks together, in
            equal parts.
        kept_bytes: ``[world_size]`` bytes of each rank's message to itself.
        time_s: measured seconds of the slowest rank.
    """

    operation: str
    world_size: int
    sent_bytes: tuple[float, ...]
    kept_bytes: tuple[float, ...]
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A training step of a small random model.

    Its stages are measured inside a step, because code and data are then as cold as in training. A
    fit uses the stages one by one and never their sum.

    Attributes:
        workload: the model.
        plan: where its tables are.
        stages_s: ``[world_size][stages]`` measured seconds of each rank, in the order of
            :data:`costmodels.cpu.run_stages.STAGES`.
    """

    workload: Workload
    plan: Plan
    stages_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """One operator, or a chain of a few: forward, backward, and a step of the optimizer.

    Attributes:
        name: kind of the operator, or ``CHAIN`` of :mod:`costmodels.calibration.fit_machine`.
        operators: the operators that a trace of the measured module lists.
        forward_s: measured seconds of the forward pass.
        backward_s: measured seconds of the backward pass.
        update_s: measured seconds of a step of the optimizer; 0 without parameters.
    """

    name: str
    operators: tuple[Operator, ...]
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0


def exchanges(
    world_size: int, *, sent_bytes: float, kept_bytes: float, reduced_bytes: float
) -> list[CollectivePoint]:
    """Balanced collectives of a size, and all-to-alls in which ranks send unequal amounts.

    In the latter the first rank sends ``sent_bytes``, every other rank a share of 0, 0.2 or 0.5 of
    that, and nobody keeps anything.

    Args:
        world_size: ranks.
        sent_bytes: what each rank sends.
        kept_bytes: each rank's message to itself.
        reduced_bytes: the buffer of each rank in an all-reduce.
    """
    kept = {
        "all_to_all": kept_bytes,
        "reduce_scatter": kept_bytes,
        "all_gather": kept_bytes,
        "all_reduce": reduced_bytes,
    }
    shares = [(name, 1.0, size) for name, size in kept.items()]
    shares += [("all_to_all", share, 0.0) for share in (0.0, 0.2, 0.5)]
    return [
        CollectivePoint(
            operation=operation,
            world_size=world_size,
            sent_bytes=(sent_bytes, *(share * sent_bytes for _ in range(world_size - 1))),
            kept_bytes=(size,) * world_size,
        )
        for operation, share, size in shares
    ]


Point = TypeVar("Point", LookupPoint, CollectivePoint, StepPoint, OperatorPoint)


def scaled(point: Point, factor: float) -> Point:
    """The point with all its measured seconds (the fields that end in ``_s``) times ``factor``."""
    seconds = {f.name: getattr(point, f.name) for f in fields(point) if f.name.endswith("_s")}
    return replace(point, **{name: _times(value, factor) for name, value in seconds.items()})


def _times(seconds: Any, factor: float) -> Any:
    """Seconds, or nested tuples of seconds, times ``factor``."""
    if isinstance(seconds, tuple):
        return tuple(_times(s, factor) for s in seconds)
    return seconds * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPoints:
    """Everything that was measured on one machine.

    The same fixed work is timed beside the points, and tells how slow the machine is at that
    moment: its *pace*. The seconds of all points are converted to the pace that is typical.

    Attributes:
        lookups: lookups of single tables.
        steps: training steps.
        collectives: collectives.
        operators: operators of dense parts, and chains of them.
        pace_s: seconds of the fixed work at the pace of the points: what it typically took beside
            training steps, as the geometric mean over ranks. None in calibrations that are older
            than its measurement.
        pace_sigma_ratio: standard deviation of ln(pace) from one half minute to another.
    """

    lookups: tuple[LookupPoint, ...]
    steps: tuple[StepPoint, ...]
    collectives: tuple[CollectivePoint, ...]
    operators: tuple[OperatorPoint, ...] = ()
    pace_s: float | None = None
    pace_sigma_ratio: float = 0.0
