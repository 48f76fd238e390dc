"""The share of vectors that wait for the batch before, against batches that are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.dense.base import live_bytes, looked_up_bytes
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DenseArch, Feature, Pipeline, Pooling, Workload
from tests.strategies import make_placement, make_table, make_topology, make_workload

ROWS = 3_000
BY_ROWS = ShardingType.ROW_WISE


def workload_of(seed: int, *, once: bool = False, **fields: float) -> Workload:
    """An unpooled table under the pipeline, with a law drawn from the seed."""
    rng = np.random.default_rng(seed)
    law = Zipf(num_embeddings=ROWS, exponent=float(rng.uniform(0.0, 1.6)))
    table = make_table(
        num_embeddings=ROWS,
        features=(Feature(name="f", pooling_factor=float(rng.integers(1, 9))),),
        distribution=law,
        pooling=Pooling.NONE,
        deduplicates_indices=once,
        **fields,
    )
    return make_workload(table, batch_size_per_rank=64, pipeline=Pipeline.PRIORITIZED)


def ratio_of(workload: Workload, ranks: int = 4) -> float:
    """What is priced to wait."""
    pipeline = CostPipeline(workload, make_topology(local_world_size=ranks))
    return pipeline.stage_times(np.zeros((ranks, pipeline.num_features))).next_batch_ratio


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_share_is_that_of_drawn_batches(seed: int, *, once: bool) -> None:
    workload, ranks, rng = workload_of(seed, once=once), 4, np.random.default_rng(100 + seed)
    (table,) = workload.tables
    bins, probability = table.distribution.frequency_bins()
    rows = np.repeat(probability, np.round(bins).astype(int))
    size = int(64 * table.pooling_factor)
    shared = total = 0
    for _ in range(400):
        before, own = (rng.choice(len(rows), n, p=rows / rows.sum()) for n in (size * ranks, size))
        sent = np.unique(own) if once else own
        shared += int(np.isin(sent, before).sum())
        total += len(sent)
    assert ratio_of(workload, ranks) == pytest.approx(shared / total, rel=0.02, abs=0.004)


def test_a_given_share_counts_and_pooled_tables_wait() -> None:
    given = workload_of(1, next_batch_ratio=0.125)
    assert ratio_of(given) == 0.125
    (table,) = given.tables
    pooled = replace(table, name="pooled", pooling=Pooling.SUM, next_batch_ratio=None)
    weights = table.pooling_factor * 0.125 + len(pooled.features), table.pooling_factor + 1.0
    both = replace(given, tables=(table, pooled))
    assert ratio_of(both) == pytest.approx(weights[0] / weights[1])
    assert ratio_of(replace(given, pipeline=Pipeline.SPARSE_DIST)) == 1.0
    with pytest.raises(InvalidValueError, match="next_batch_ratio needs pooling none, got sum"):
        replace(pooled, next_batch_ratio=0.5)


def test_the_less_waits_the_faster_and_only_rows_gain() -> None:
    """With batches so large that the host is never late with the further collectives."""
    topology, times = make_topology(local_world_size=4), {}
    for kind in (ShardingType.ROW_WISE, ShardingType.COLUMN_WISE):
        for share in (1.0, 0.5, 0.0):
            workload = replace(workload_of(2, next_batch_ratio=share), batch_size_per_rank=2.0**18)
            plan = Plan(placements=(make_placement(workload.tables[0], kind, topology),))
            pipeline = CostPipeline(workload, topology)
            times[kind, share] = float(pipeline.iteration_times(pipeline.plan_work(plan)))
    by_rows = [times[ShardingType.ROW_WISE, share] for share in (1.0, 0.5, 0.0)]
    assert by_rows == sorted(by_rows, reverse=True)
    assert len(set(by_rows)) == 3
    assert len({times[ShardingType.COLUMN_WISE, share] for share in (1.0, 0.5, 0.0)}) == 1


@pytest.mark.parametrize("batch", [64, 2**16])
def test_where_all_wait_it_is_sparse_dist_to_the_last_digit(batch: int) -> None:
    """The host's work and the memory for looked-up vectors too."""
    topology, found = make_topology(local_world_size=4), []
    for kind in (Pipeline.PRIORITIZED, Pipeline.SPARSE_DIST):
        workload = replace(workload_of(3, next_batch_ratio=1.0), pipeline=kind)
        workload = replace(workload, batch_size_per_rank=batch)
        plan = Plan(placements=(make_placement(workload.tables[0], BY_ROWS, topology),))
        pipeline = CostPipeline(workload, topology)
        time_s = pipeline.iteration_times(pipeline.plan_work(plan))
        found.append((float(time_s), float(pipeline.device_limits.min())))
    assert found[0] == found[1]


def test_early_vectors_are_in_memory_beside_those_in_use() -> None:
    def live(**fields: float) -> float:
        return live_bytes(workload_of(3, **fields)).peak_bytes

    early = looked_up_bytes(workload_of(3))
    assert live(next_batch_ratio=0.75) == pytest.approx(live(next_batch_ratio=1.0) + early / 4)
    assert live() == live(next_batch_ratio=0.0) == pytest.approx(live(next_batch_ratio=1.0) + early)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_what_travels_beside_compute_is_in_no_sum_that_every_plan_takes(ratio: float) -> None:
    """With dense layers that take as long as the exchanges."""
    table = replace(workload_of(2).tables[0], embedding_dim=128, next_batch_ratio=ratio)
    feature = replace(table.features[0], pooling_factor=30.0)
    table = replace(table, features=(feature,), num_embeddings=ROWS)
    dense = DenseArch(num_dense_features=13, top_mlp=(8192, 8192, 1))
    workload = replace(workload_of(2), tables=(table,), dense=dense, batch_size_per_rank=8192)
    topology = make_topology(local_world_size=4)
    plan = Plan(placements=(make_placement(table, BY_ROWS, topology),))
    pipeline = CostPipeline(workload, topology)
    work, phases = pipeline.plan_work(plan), pipeline.phases
    always_s = phases.base_s + phases.times(work).max(axis=-2) @ phases.proven_weights
    assert always_s <= float(pipeline.iteration_times(work))
