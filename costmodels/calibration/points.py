"""What is measured: one frozen dataclass per kind of microbenchmark, with its result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPoint:
    """One table looked up and updated, alone in a call.

    ``num_bags`` bags with ``pooling_factor`` indices each on average, drawn from a Zipf law.
    ``kernel`` is fused (row-wise Adagrad in the backward pass) or dense (gradient of the table).
    """

    kernel: str
    num_embeddings: int
    embedding_dim: int
    num_bags: int
    pooling_factor: float
    exponent: float
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPoint:
    """``num_tables`` tiny tables in one call, for the cost of the call itself."""

    num_tables: int
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPoint:
    """Several tables in one fused call, as a rank of a plan has them."""

    tables: tuple[LookupPoint, ...]
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
class FamilyPoint:
    """Features of one sharding type: ``widths[r]`` are the columns of those that rank r owns.

    All ranks own a part of each row-wise feature, so rank 0 alone lists them.
    """

    sharding_type: str
    widths: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePoint:
    """The exchanges of one to three sharding types in one iteration, copies included.

    ``input_s``: indices and lengths; ``output_s``: pooled vectors; ``gradient_s``: their gradients.
    Processor seconds per rank.
    """

    local_batch_size: int
    pooling_factor: float
    families: tuple[FamilyPoint, ...]
    input_s: float = 0.0
    output_s: float = 0.0
    gradient_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePoint:
    """The dense part of a model on one rank: forward, backward, optimizer step."""

    local_batch_size: int
    num_dense_features: int
    bottom_mlp: tuple[int, ...]
    embedding_dims: tuple[int, ...]
    top_mlp: tuple[int, ...]
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPoint:
    """All-reduce of ``num_bytes`` of gradients with the copies and the step around it."""

    num_bytes: float
    world_size: int
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPoints:
    """Everything measured on one machine; exchanges hold one point per rank."""

    lookups: tuple[LookupPoint, ...]
    calls: tuple[CallPoint, ...]
    groups: tuple[GroupPoint, ...]
    exchanges: tuple[tuple[ExchangePoint, ...], ...]
    dense: tuple[DensePoint, ...]
    collectives: tuple[CollectivePoint, ...]
    gradients: tuple[GradientPoint, ...]
