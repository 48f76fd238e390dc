"""Which points to measure: random designs that cover small and large models alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from costmodels.calibration.points import (
    CollectivePoint,
    DensePoint,
    ExchangePoint,
    FamilyPoint,
    GradientPoint,
    GroupPoint,
    LookupPoint,
)

_DIMS = (4, 8, 16, 32, 64, 128)
_MAX_TABLE_BYTES = 2e8
_MAX_DENSE_BYTES = 3e7
_MAX_GROUP_BYTES = 4e8
_MAX_POOLING = 50.0
_MAX_EXPONENT = 1.4
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to measure; per rank for lookups and dense parts, in all for the others."""

    num_lookups: int
    num_dense_lookups: int
    num_groups: int
    num_exchanges: int
    num_dense: int
    num_passes: int
    repeats: int


FULL = Effort(
    num_lookups=150,
    num_dense_lookups=36,
    num_groups=30,
    num_exchanges=180,
    num_dense=36,
    num_passes=3,
    repeats=7,
)
QUICK = Effort(
    num_lookups=36,
    num_dense_lookups=12,
    num_groups=12,
    num_exchanges=36,
    num_dense=12,
    num_passes=1,
    repeats=5,
)


def lookup_points(count: int, kernel: str, rng: np.random.Generator) -> list[LookupPoint]:
    """Tables of 100 to 2 million rows; replicated ones up to 30 MB."""
    limit = _MAX_TABLE_BYTES if kernel == "fused" else _MAX_DENSE_BYTES
    points: list[LookupPoint] = []
    while len(points) < count:
        rows = int(10 ** rng.uniform(2.0, 6.3))
        dim = int(rng.choice(_DIMS))
        uniform = rng.random() < 0.15
        point = LookupPoint(
            kernel=kernel,
            num_embeddings=rows,
            embedding_dim=dim,
            num_bags=int(rng.choice([1024, 2048, 4096, 8192])),
            pooling_factor=_pooling(rng),
            exponent=0.0 if uniform else float(rng.uniform(0.0, _MAX_EXPONENT)),
        )
        if rows * dim * _ELEMENT_BYTES <= limit:
            points.append(point)
    return points


def group_points(count: int, rng: np.random.Generator) -> list[GroupPoint]:
    """Fused calls of 2 to 12 tables that share their bags."""
    points = []
    for _ in range(count):
        tables: list[LookupPoint] = []
        bags = int(rng.choice([2048, 4096, 8192]))
        room = _MAX_GROUP_BYTES
        for point in lookup_points(int(rng.integers(2, 13)), "fused", rng):
            room -= point.num_embeddings * point.embedding_dim * _ELEMENT_BYTES
            if room > 0 or not tables:
                tables.append(replace(point, num_bags=bags))
        points.append(GroupPoint(tables=tuple(tables)))
    return points


def exchange_points(count: int, world_size: int, rng: np.random.Generator) -> list[ExchangePoint]:
    """One to three sharding types at once, from even to entirely one-sided."""
    kinds = ("table_wise", "row_wise", "column_wise")
    points = []
    for i in range(count):
        first = kinds[i % len(kinds)]
        others = [k for k in kinds if k != first]
        more = [str(k) for k in rng.permutation(others)[: int(rng.choice(3, p=(0.5, 0.3, 0.2)))]]
        points.append(
            ExchangePoint(
                local_batch_size=int(rng.choice([512, 1024, 2048, 4096])),
                pooling_factor=_pooling(rng),
                families=tuple(_family(k, world_size, 1 + len(more), rng) for k in (first, *more)),
            )
        )
    return points


def _family(kind: str, world_size: int, num_families: int, rng: np.random.Generator) -> FamilyPoint:
    widths: list[list[int]] = [[] for _ in range(world_size)]
    leaning = rng.dirichlet(np.full(world_size, rng.choice([0.3, 2.0, 20.0])))
    for _ in range(int(rng.integers(1, 2 + 12 // num_families))):
        widths[int(rng.choice(world_size, p=leaning))].append(int(rng.choice(_DIMS)))
    return FamilyPoint(sharding_type=kind, widths=tuple(tuple(w) for w in widths))


def dense_points(count: int, rng: np.random.Generator) -> list[DensePoint]:
    """Small MLPs around a concatenation of embeddings."""
    return [
        DensePoint(
            local_batch_size=int(rng.choice([512, 1024, 2048, 4096])),
            num_dense_features=13,
            bottom_mlp=_widths(rng),
            embedding_dims=tuple(int(d) for d in rng.choice(_DIMS[1:], int(rng.integers(2, 15)))),
            top_mlp=(*_widths(rng), 1),
        )
        for _ in range(count)
    ]


def collective_points(world_size: int) -> list[CollectivePoint]:
    """Raw collectives from 1 KiB to 16 MiB, even and imbalanced."""
    points = []
    for exponent in range(10, 25):
        size = float(2**exponent)
        for operation in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce"):
            even = (size,) * world_size
            points.append(
                CollectivePoint(
                    operation=operation, world_size=world_size, sent_bytes=even, kept_bytes=even
                )
            )
        for share in (0.0, 0.2, 0.5):
            sent = (size, *(share * size for _ in range(world_size - 1)))
            kept = (0.0,) * world_size
            points.append(
                CollectivePoint(
                    operation="all_to_all", world_size=world_size, sent_bytes=sent, kept_bytes=kept
                )
            )
    return points


def gradient_points(world_size: int) -> list[GradientPoint]:
    """Gradients of 4 KiB to 16 MiB."""
    return [
        GradientPoint(num_bytes=float(2**exponent), world_size=world_size)
        for exponent in (12, 14, 16, 18, 19, 20, 21, 22, 23, 24)
    ]


def _pooling(rng: np.random.Generator) -> float:
    return float(np.round(np.exp(rng.uniform(0.0, math.log(_MAX_POOLING))), 1))


def _widths(rng: np.random.Generator) -> tuple[int, ...]:
    layers = int(rng.integers(1, 4))
    return tuple(int(w) for w in rng.choice([8, 16, 32, 64, 128], layers))
