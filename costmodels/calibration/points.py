"""What is measured: one frozen dataclass per kind of microbenchmark, with its result."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from costmodels.cpu.features import CpuKernel
from costmodels.operators import Operator
from costmodels.sharding import Plan
from costmodels.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPoint:
    """One table looked up and updated, alone in a call.

    ``num_bags`` bags with ``pooling_factor`` indices each on average, drawn from a Zipf law.
    ``kernel`` is fused (row-wise Adagrad in the backward pass), dense (gradient of the table), or
    sequence (as fused, but that indices are not pooled).
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
    """One raw collective; per-rank bytes that leave for other ranks, and stay.

    ``sent_bytes[r]`` leaves rank r for its peers together (in equal parts), ``kept_bytes[r]`` is
    its message to itself. ``time_s`` is the processor time of the slowest rank.
    """

    operation: str
    world_size: int
    sent_bytes: tuple[float, ...]
    kept_bytes: tuple[float, ...]
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A training step of a small random model, in processor seconds.

    ``stages_s[rank]`` are in the order of :data:`costmodels.cpu.run_stages.STAGES`.
    Measured as a step because code and data are then as cold as in training; only its stages are
    used, one by one, never their sum.
    """

    workload: Workload
    plan: Plan
    stages_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """One operator, or a few in a row, forward, backward, and a step of the optimizer.

    ``operators`` is what tracing the same module lists. ``update_s`` is 0 without parameters.
    """

    name: str
    operators: tuple[Operator, ...]
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0


Point = TypeVar("Point", LookupPoint, CollectivePoint, StepPoint, OperatorPoint)


def scaled(point: Point, factor: float) -> Point:
    """The same point with all its measured seconds, the fields named ``_s``, times ``factor``."""
    seconds = {f.name: getattr(point, f.name) for f in fields(point) if f.name.endswith("_s")}
    return replace(point, **{name: _times(value, factor) for name, value in seconds.items()})


def _times(seconds: Any, factor: float) -> Any:
    if isinstance(seconds, tuple):
        return tuple(_times(s, factor) for s in seconds)
    return seconds * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPoints:
    """Everything measured on one machine.

    ``pace_s`` is what fixed work typically took meanwhile, in processor seconds (geometric mean
    over ranks); the seconds of all points are those of this pace. ``pace_sigma_ratio`` is the
    log-standard deviation of the pace from one half minute to another.
    """

    lookups: tuple[LookupPoint, ...]
    steps: tuple[StepPoint, ...]
    collectives: tuple[CollectivePoint, ...]
    operators: tuple[OperatorPoint, ...] = ()
    pace_s: float | None = None
    pace_sigma_ratio: float = 0.0
