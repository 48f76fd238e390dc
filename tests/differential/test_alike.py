"""Sharding types said to cost the same for the same shards do so, whatever else is planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from tests.differential.case import Case
from tests.differential.drawing.problems import draw, draw_larger

_BY_ROWS = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)


def _shards(case: Case, kind: ShardingType, rng: np.random.Generator, table: int) -> list[Shard]:
    """Rows over every rank where that is what the type does here, else column pieces anywhere."""
    of = case.workload.tables[table]
    world = case.topology.world_size
    if kind in _BY_ROWS and case.topology.num_hosts == 1:
        block = -(-of.num_embeddings // world)
        starts = [min(rank * block, of.num_embeddings) for rank in range(world)]
        sizes = np.diff([*starts, of.num_embeddings])
        return [
            Shard(rank=r, row_offset=s, num_rows=int(n), col_offset=0, num_cols=of.embedding_dim)
            for r, (s, n) in enumerate(zip(starts, sizes, strict=True))
        ]
    rank = int(rng.integers(world))
    rows, columns = of.num_embeddings, of.embedding_dim
    return [Shard(rank=rank, row_offset=0, num_rows=rows, col_offset=0, num_cols=columns)]


@pytest.mark.parametrize("larger", [False, True])
def test_alike_types_cost_the_same(*, larger: bool) -> None:
    """A stage that one of them has and the other has not would move what overlaps with what."""
    compared = 0
    for seed in range(12):
        case = (draw_larger if larger else draw)(seed)
        rng = np.random.default_rng(seed)
        slow = float(rng.choice([0.0, 0.1, 0.5]))
        device = replace(case.topology.device, overlap_slowdown_ratio=slow)
        pipeline = CostPipeline(case.workload, replace(case.topology, device=device))
        for group in pipeline.alike_types:
            shards = [_shards(case, group[0], rng, t) for t in range(len(case.workload.tables))]
            seconds = []
            for kind in group:
                placements = [
                    TablePlacement(
                        table=table.name,
                        sharding_type=kind,
                        kernel=ComputeKernel.FUSED,
                        shards=tuple(own),
                    )
                    for table, own in zip(case.workload.tables, shards, strict=True)
                ]
                work = pipeline.plan_work(Plan(placements=tuple(placements)))
                seconds.append(float(pipeline.iteration_times(work[None])[0]))
            assert seconds == pytest.approx([seconds[0]] * len(group), rel=1e-12), (seed, group)
            compared += len(group) - 1
    assert compared > 20
