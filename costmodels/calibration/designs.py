"""Which points to measure: random designs that cover small and large models alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from costmodels.calibration.points import CollectivePoint, LookupPoint, StepPoint
from costmodels.cpu.features import CpuKernel
from costmodels.datatypes import FloatArray
from costmodels.distribution.zipf import Zipf
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    TablePlacement,
    place,
)
from costmodels.workload import DenseArch, Feature, Interaction, Pipeline, Table, Workload

_DIMS = (4, 8, 16, 32, 64, 128)
_MAX_TABLE_BYTES = 2e8
_MAX_DENSE_BYTES = 3e7
_MAX_STEP_BYTES = 2.5e8
_MAX_STEP_INDICES = 5e5
_MAX_REPLICATED_BYTES = 8e6
_MAX_POOLING = 50.0
_BAGS, _FEW_BAGS = (1024, 2048, 4096, 8192), (256, 512, 1024, 2048, 4096)
_MAX_UNPOOLED = 1e5
_MAX_EXPONENT = 1.4
_UNIFORM_SHARE = 0.15
_ELEMENT_BYTES = 4
_LEAST_SHARE = 0.25
_MOST_WHOLE_BYTES = 32 * 2**20
"""Of the parts of all ranks in one collective together."""
_SMALLEST = 10
"""The smallest part of a rank, 1 KiB, as a power of two."""
_KINDS = (
    ShardingType.TABLE_WISE,
    ShardingType.ROW_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.DATA_PARALLEL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much each of two ranks measures; steps they measure together.

    Lookups are measured ``num_passes`` times, each time among other tables and elsewhere in memory,
    ``repeats`` times in a row: two such places differ by 12 to 25 %. Steps run once, in
    ``num_blocks`` blocks of ``iterations``, of which ``warm_up`` are dropped. ``num_operators``
    single operators and ``num_chains`` chains of them are measured once on each rank.
    """

    num_lookups: int
    num_dense_lookups: int
    num_sequence_lookups: int
    num_steps: int
    num_passes: int
    repeats: int
    num_operators: int
    num_chains: int
    num_blocks: int = 3
    iterations: int = 7
    warm_up: int = 3

    def shared_by(self, world_size: int) -> Effort:
        """About as many points in all, from other than two ranks: each measures fewer.

        Each measures at least a quarter, so that every kind of point is still among its own.
        """
        share = min(1.0, max(2.0 / world_size, _LEAST_SHARE))
        counts = ("lookups", "dense_lookups", "sequence_lookups", "steps", "operators", "chains")
        fewer = {f"num_{c}": math.ceil(share * getattr(self, f"num_{c}")) for c in counts}
        return replace(self, **fewer)


FULL = Effort(
    num_lookups=140,
    num_dense_lookups=90,
    num_sequence_lookups=50,
    num_steps=140,
    num_passes=8,
    repeats=3,
    num_operators=320,
    num_chains=160,
)
QUICK = Effort(
    num_lookups=36,
    num_dense_lookups=12,
    num_sequence_lookups=16,
    num_steps=36,
    num_passes=3,
    repeats=3,
    num_operators=120,
    num_chains=60,
    num_blocks=2,
)


def lookup_points(count: int, kernel: CpuKernel, rng: np.random.Generator) -> list[LookupPoint]:
    """Tables of 100 to 2 million rows; replicated ones up to 30 MB, unpooled ones of less work."""
    limit = _MAX_DENSE_BYTES if kernel is CpuKernel.DENSE else _MAX_TABLE_BYTES
    few = kernel is CpuKernel.SEQUENCE
    points: list[LookupPoint] = []
    while len(points) < count:
        rows = int(10 ** rng.uniform(2.0, 6.3))
        dim = int(rng.choice(_DIMS))
        uniform = rng.random() < _UNIFORM_SHARE
        point = LookupPoint(
            kernel=kernel,
            num_embeddings=rows,
            embedding_dim=dim,
            num_bags=int(rng.choice(_FEW_BAGS if few else _BAGS)),
            pooling_factor=_pooling(rng),
            exponent=0.0 if uniform else float(rng.uniform(0.0, _MAX_EXPONENT)),
        )
        too_many = few and point.num_bags * point.pooling_factor > _MAX_UNPOOLED
        if rows * dim * _ELEMENT_BYTES <= limit and not too_many:
            points.append(point)
    return points


def step_points(count: int, world_size: int, rng: np.random.Generator) -> list[StepPoint]:
    """Small random models: 1 to 14 tables, any mix of sharding types, even to one-sided."""
    return [_step(f"step-{i}", world_size, rng) for i in range(count)]


def _step(name: str, world_size: int, rng: np.random.Generator) -> StepPoint:
    batch = int(rng.choice([512, 1024, 2048, 4096]))
    leaning = rng.dirichlet(np.full(world_size, rng.choice([0.3, 2.0, 20.0])))
    mix = rng.dirichlet(np.full(len(_KINDS), rng.choice([0.1, 0.5, 3.0])))
    room_bytes, room_indices = _MAX_STEP_BYTES, _MAX_STEP_INDICES / batch
    tables: list[Table] = []
    placements: list[TablePlacement] = []
    for i in range(int(rng.integers(1, 15))):
        table = _table(f"t{i}", rng)
        room_bytes -= table.weight_bytes
        room_indices -= table.pooling_factor
        if tables and min(room_bytes, room_indices) < 0:
            break
        kind = _KINDS[int(rng.choice(len(_KINDS), p=mix))]
        tables.append(table)
        placements.append(_placed(table, kind, leaning, rng))
    dense = DenseArch(
        num_dense_features=13,
        bottom_mlp=_widths(rng),
        top_mlp=(*_widths(rng), 1),
        interaction=Interaction.CAT,
    )
    workload = Workload(
        name=name,
        tables=tuple(tables),
        local_batch_size=batch,
        dense=dense,
        pipeline=Pipeline.NONE,
    )
    return StepPoint(workload=workload, plan=Plan(placements=tuple(placements)))


def _table(name: str, rng: np.random.Generator) -> Table:
    while True:
        rows, dim = int(10 ** rng.uniform(2.0, 6.3)), int(rng.choice(_DIMS))
        if rows * dim * _ELEMENT_BYTES <= _MAX_STEP_BYTES / 2:
            break
    uniform = rng.random() < _UNIFORM_SHARE
    law = Zipf(
        num_embeddings=rows,
        exponent=0.0 if uniform else float(rng.uniform(0.0, _MAX_EXPONENT)),
        scattered=bool(rng.random() < 0.5),
    )
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name=f"of_{name}", pooling_factor=_pooling(rng)),),
        distribution=law,
    )


def _placed(
    table: Table, kind: ShardingType, leaning: FloatArray, rng: np.random.Generator
) -> TablePlacement:
    """The sharding type where the table allows it, else table-wise."""
    replicated = kind is ShardingType.DATA_PARALLEL
    halves = kind is ShardingType.COLUMN_WISE
    too_large = replicated and table.weight_bytes > _MAX_REPLICATED_BYTES
    too_narrow = halves and table.embedding_dim < 2 * min(_DIMS)
    if too_large or too_narrow:
        return _placed(table, ShardingType.TABLE_WISE, leaning, rng)
    option = ShardingOption(
        table=table.name,
        sharding_type=kind,
        kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
        column_widths=(table.embedding_dim // 2,) * 2 if halves else (table.embedding_dim,),
    )
    world = len(leaning)
    where = rng.choice(world, option.num_pieces, p=leaning)
    if halves:
        where = rng.permutation(world)[:2]
    return place(
        option,
        table.num_embeddings,
        tuple(int(r) for r in where),
        world_size=world,
        local_world_size=world,
    )


def collective_points(world_size: int) -> list[CollectivePoint]:
    """Raw collectives of 1 KiB per rank to 32 MiB over all ranks, even and imbalanced."""
    points = []
    largest = max(_MOST_WHOLE_BYTES // world_size, 2**_SMALLEST)
    for exponent in range(_SMALLEST, largest.bit_length()):
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


def _pooling(rng: np.random.Generator) -> float:
    return float(np.round(np.exp(rng.uniform(0.0, math.log(_MAX_POOLING))), 1))


def _widths(rng: np.random.Generator) -> tuple[int, ...]:
    layers = int(rng.integers(1, 4))
    return tuple(int(w) for w in rng.choice([8, 16, 32, 64, 128], layers))
