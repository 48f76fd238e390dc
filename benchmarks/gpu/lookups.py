"""Table-batched lookups: cases drawn at random, measured with FBGEMM or, without it, PyTorch."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.gpu.clock import Clock

try:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )
except (ImportError, OSError):
    SplitTableBatchedEmbeddingBagsCodegen = None

FBGEMM = "FBGEMM SplitTableBatchedEmbeddingBags"
FALLBACK = "torch.nn.functional.embedding_bag, one call per table, no optimizer"
NUM_BATCHES = 4
CACHE_RATIO = 0.1
Batch = tuple[torch.Tensor, torch.Tensor]
Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class TableCase:
    """One table of a call and how it is read."""

    rows: int
    dim: int
    pooling: int
    skew: float


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a call may be."""

    table_bytes: float
    indices: float
    rows: tuple[int, int]
    batches: tuple[int, ...]
    most_tables: int


FULL = Limits(
    table_bytes=30e9,
    indices=3e7,
    rows=(1000, 20_000_000),
    batches=(512, 2048, 8192, 32768, 65536),
    most_tables=100,
)
QUICK = Limits(table_bytes=4e7, indices=3e4, rows=(100, 10_000), batches=(64, 256), most_tables=4)


def drawn_case(rng: random.Random, limits: Limits, *, mixed: bool) -> tuple[int, list[TableCase]]:
    """(batch size, tables); equal tables unless ``mixed``."""
    while True:
        batch = rng.choice(limits.batches)
        count = round(limits.most_tables ** rng.random())
        tables = [_drawn_table(rng, limits) for _ in range(count)]
        if not mixed:
            tables = [tables[0]] * count
        size = sum(4.0 * t.rows * t.dim for t in tables)
        indices = sum(batch * t.pooling for t in tables)
        if size <= limits.table_bytes and indices <= limits.indices:
            return batch, tables


def _drawn_table(rng: random.Random, limits: Limits) -> TableCase:
    low, high = limits.rows
    return TableCase(
        rows=round(low * (high / low) ** rng.random()),
        dim=rng.choice((4, 8, 16, 32, 64, 128, 256, 512)),
        pooling=round(200 ** rng.random()),
        skew=rng.choice((0.0, 0.6, 0.9, 1.05, 1.2, 1.5)),
    )


def drawn_indices(table: TableCase, count: int, device: torch.device) -> torch.Tensor:
    """Ids under a continuous power law cut to whole numbers; hot ids lie anywhere."""
    u = torch.rand(count, device=device, dtype=torch.float64)
    top = float(table.rows + 1)
    power = 1.0 - table.skew
    flat = abs(power) < 1e-9
    rank = top**u if flat else (u * (top**power - 1.0) + 1.0) ** (1.0 / power)
    ids = rank.long().clamp_(1, table.rows) - 1
    return (ids * 1_000_003 + 12_345) % table.rows


def lookup_rows(
    clock: Clock, limits: Limits, rng: random.Random, location: str, *, mixed: bool
) -> Iterator[Row]:
    """Forward and backward of one drawn call, steady and with cold caches."""
    batch, tables = drawn_case(rng, limits, mixed=mixed)
    inputs = [_batch(tables, batch, clock.device) for _ in range(NUM_BATCHES)]
    forward = _module(tables, location, clock.device)
    gradient = torch.randn_like(forward(*inputs[0]))
    shape = _description(batch, tables, inputs[0][0], location)
    for cold in (False, True):
        ahead = clock.median_us(lambda i: forward(*inputs[i % NUM_BATCHES]), cold=cold)
        both = clock.median_us(
            lambda i: forward(*inputs[i % NUM_BATCHES]).backward(gradient), cold=cold
        )
        caches = "cold" if cold else "steady"
        yield {**shape, "phase": "forward", "caches": caches, "time_us": ahead}
        backward = {**shape, "phase": "backward+optimizer", "caches": caches}
        yield {**backward, "time_us": both - ahead}


def _batch(tables: Sequence[TableCase], batch: int, device: torch.device) -> Batch:
    ids = [drawn_indices(t, batch * t.pooling, device) for t in tables]
    lengths = [torch.full((batch,), t.pooling, device=device) for t in tables]
    ends = torch.cumsum(torch.cat(lengths), 0)
    return torch.cat(ids), torch.cat([torch.zeros(1, device=device, dtype=torch.int64), ends])


def _module(
    tables: Sequence[TableCase], location: str, device: torch.device
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    if SplitTableBatchedEmbeddingBagsCodegen is None:
        return _fallback(tables, device)
    on_gpu = device.type == "cuda"
    places = {"hbm": EmbeddingLocation.DEVICE, "uvm_caching": EmbeddingLocation.MANAGED_CACHING}
    place = places[location] if on_gpu else EmbeddingLocation.HOST
    compute = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
    module: Any = SplitTableBatchedEmbeddingBagsCodegen(
        [(t.rows, t.dim, place, compute) for t in tables],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        cache_load_factor=CACHE_RATIO,
        device=device,
    )
    module.init_embedding_weights_uniform(-0.1, 0.1)
    return lambda indices, offsets: module(indices, offsets)


def _fallback(
    tables: Sequence[TableCase], device: torch.device
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    weights = [torch.randn(t.rows, t.dim, device=device).requires_grad_() for t in tables]

    def forward(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        batch = (offsets.numel() - 1) // len(weights)
        parts = []
        for i, weight in enumerate(weights):
            weight.grad = None
            own = offsets[i * batch : (i + 1) * batch + 1]
            ids = indices[own[0] : own[-1]]
            parts.append(
                torch.nn.functional.embedding_bag(
                    ids, weight, own[:-1] - own[0], mode="sum", sparse=True
                )
            )
        return torch.cat(parts, dim=1)

    return forward


def _description(
    batch: int, tables: Sequence[TableCase], indices: torch.Tensor, location: str
) -> Row:
    """What a call is; columns as ``shardplan predict lookup`` reads them where tables are equal."""
    counts = [batch * t.pooling for t in tables]
    unique = [int(part.unique().numel()) for part in indices.split(counts)]
    first, equal = tables[0], len(set(tables)) == 1
    real = SplitTableBatchedEmbeddingBagsCodegen is not None
    row: Row = {
        "kernel": FBGEMM if real else FALLBACK,
        "location": location,
        "num_tables": len(tables),
        "batch_per_table": batch,
        "pooling": "sum",
        "weight_dtype": "fp32",
        "optimizer": "rowwise_adagrad" if real else "none",
        "lookups_total": sum(counts),
        "lookups_unique": sum(unique),
        "cache_load_factor": CACHE_RATIO if location == "uvm_caching" else "",
        "tables": "" if equal else json.dumps([asdict(t) for t in tables]),
    }
    law = f"power law alpha {first.skew}" if first.skew else "uniform"
    shape = {
        "rows_per_table": first.rows,
        "dim": first.dim,
        "pooling_factor": first.pooling,
        "index_distribution": law,
    }
    return {**row, **(shape if equal else dict.fromkeys(shape, ""))}
