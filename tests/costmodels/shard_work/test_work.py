"""A plan's work is the sum of its shards' work, and every byte in it can be counted by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.datatypes import FloatArray
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.lookup.base import LookupWork
from costmodels.lookup.roofline import Roofline
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import (
    CALLS,
    EXCHANGING_TYPES,
    INPUT,
    KERNELS,
    MEMORY,
    NUM_COLUMNS,
    OUTPUT,
    REPLICATED,
    Memory,
    call_column,
)
from costmodels.sharding import ComputeKernel, Plan, ShardingType, Spread, place
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.workload import DataType, Feature, Pooling, Table, Workload
from tests.lookups import lookup_columns
from tests.strategies import (
    make_placement,
    make_table,
    make_topology,
    make_workload,
    options,
    planned_workloads,
    topologies,
    workloads,
)

EVEN = Uniform(num_embeddings=10_000)


@given(workloads(), topologies(), st.data())
def test_a_placed_option_adds_its_rows_to_the_chosen_ranks(
    workload: Workload, topology: Topology, data: st.DataObject
) -> None:
    pipeline = CostPipeline(workload, topology)
    world, local = topology.world_size, topology.local_world_size
    table = data.draw(st.sampled_from(workload.tables))
    option = data.draw(options(table))
    limit = topology.num_hosts if option.spread is Spread.HOSTS else world
    where = tuple(data.draw(st.integers(0, limit - 1)) for _ in range(option.num_pieces))
    rows = pipeline.options_work((option,))[0].full
    expected = np.zeros((world, NUM_COLUMNS))
    if option.spread is Spread.UNIFORM:
        assert rows.shape == (world, NUM_COLUMNS)
        expected += rows
    elif option.spread is Spread.RANKS:
        assert rows.shape == (option.num_pieces, NUM_COLUMNS)
        np.add.at(expected, np.array(where), rows)
    else:
        assert rows.shape == (option.num_pieces, local, NUM_COLUMNS)
        for host, block in zip(where, rows, strict=True):
            expected[host * local : (host + 1) * local] += block
    placed = place(option, table.num_embeddings, where, world_size=world, local_world_size=local)
    found = pipeline.plan_work(Plan(placements=(placed,)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(planned_workloads())
def test_work_adds_up_over_tables_and_is_repeatable(
    case: tuple[Workload, Topology, Plan],
) -> None:
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    whole = pipeline.plan_work(plan)
    assert np.all(np.isfinite(whole))
    assert np.all(whole >= 0)
    parts = sum(pipeline.plan_work(Plan(placements=(p,))) for p in plan.placements)
    np.testing.assert_allclose(whole, parts, rtol=1e-12)
    np.testing.assert_array_equal(whole, CostPipeline(workload, topology).plan_work(plan))


# ------------------------------------------------------------------ bytes by hand

BATCH = 512


def row(table: Table, kind: ShardingType, topology: Topology, **changes: object) -> FloatArray:
    """Work ``[W, columns]`` of one table with output in fp16."""
    placed = make_placement(table, kind, topology, **changes)  # type: ignore[arg-type]
    workload = make_workload(table, batch_size_per_rank=BATCH, output_dtype=DataType.FP16)
    models = CostModels(lookup=Roofline())
    return CostPipeline(workload, topology, models).plan_work(Plan(placements=(placed,)))


def family(kind: ShardingType) -> int:
    return EXCHANGING_TYPES.index(kind)


def test_table_wise_bytes_by_hand() -> None:
    """512 samples from each of 4 ranks; pooling 8, one feature, 64 columns."""
    work = row(make_table(), ShardingType.TABLE_WISE, make_topology(), where=(2,))
    assert not work[[0, 1, 3]].any()
    kind = family(ShardingType.TABLE_WISE)
    assert work[2, INPUT + kind] == BATCH * 8 * 8 + BATCH * 4
    assert work[2, OUTPUT + kind] == BATCH * 64 * 2
    lookup = work[2, lookup_columns(ComputeKernel.FUSED)]
    assert lookup[LookupWork.INDICES] == 4 * BATCH * 8
    assert lookup[LookupWork.STREAM_DRAM] == 4 * BATCH * (8 * 8 + 8 + 64 * 2)
    assert work[2, call_column(ShardingType.TABLE_WISE, ComputeKernel.FUSED)] == 1
    assert work[2, CALLS:REPLICATED].sum() == 1
    assert work[2, REPLICATED] == 0


def test_weighted_tables_also_send_weights() -> None:
    topology = make_topology()
    plain = row(make_table(), ShardingType.TABLE_WISE, topology)
    weighted = row(make_table(is_weighted=True), ShardingType.TABLE_WISE, topology)
    column = INPUT + family(ShardingType.TABLE_WISE)
    assert weighted[0, column] - plain[0, column] == BATCH * 8 * 4


def test_row_wise_ranks_share_the_indices_and_all_send_whole_outputs() -> None:
    """Partial sums are as large as the output, on every rank."""
    work = row(make_table(distribution=EVEN), ShardingType.ROW_WISE, make_topology())
    kind = family(ShardingType.ROW_WISE)
    np.testing.assert_allclose(work[:, INPUT + kind], BATCH * 8 * 8 / 4 + BATCH * 4)
    np.testing.assert_allclose(work[:, OUTPUT + kind], BATCH * 64 * 2)
    indices = work[:, lookup_columns(ComputeKernel.FUSED)][:, LookupWork.INDICES]
    np.testing.assert_allclose(indices, 4 * BATCH * 8 / 4)


def test_the_rank_with_the_hottest_row_gets_more_indices() -> None:
    table = make_table()
    work = row(table, ShardingType.ROW_WISE, make_topology())
    indices = work[:, lookup_columns(ComputeKernel.FUSED)][:, LookupWork.INDICES]
    hottest = table.distribution.hottest_share(4)
    np.testing.assert_allclose(indices.max(), 4 * BATCH * 8 * hottest)
    np.testing.assert_allclose(np.sort(indices)[:3], 4 * BATCH * 8 * (1 - hottest) / 3)
    assert work[:, MEMORY + Memory.BUFFERS].argmax() == indices.argmax()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", [ShardingType.ROW_WISE, ShardingType.COLUMN_WISE])
def test_index_bytes_of_the_hottest_rank_are_those_of_given_ids(
    ranks: int, kind: ShardingType
) -> None:
    """A law with the rows of each id range, against a direct count of what each rank sends."""
    rng = np.random.default_rng(ranks)
    rows, each = 1024, BATCH * 8
    ids = np.minimum(rng.integers(0, 90, (ranks, each)) ** 2 // 8, rows - 1)
    ids[rng.random(ids.shape) < 0.6] = 700
    counts = np.bincount(ids.reshape(-1), minlength=rows)
    seen = np.unique(counts)[::-1]
    in_range = (counts.reshape(4, -1)[:, :, None] == seen).sum(axis=1).astype(float)
    law = Empirical.from_bins(
        in_range.sum(axis=0),
        seen.astype(float),
        rows,
        range_rows=in_range,
        num_ids_in_ranges=rows,
    )
    table = make_table(num_embeddings=rows, distribution=law)
    topology = make_topology(local_world_size=ranks)
    columns = {"where": tuple(range(ranks)), "column_widths": (64 // ranks,) * ranks}
    how = columns if kind is ShardingType.COLUMN_WISE else {}
    sent = np.array([np.bincount(own * ranks // rows, minlength=ranks) for own in ids])
    if kind is ShardingType.COLUMN_WISE:
        sent = np.full_like(sent, each)
    work = row(table, kind, topology, **how)
    priced = work[:, INPUT + family(kind)] * ranks
    np.testing.assert_allclose(priced, sent.sum(axis=0) * 8 + ranks * BATCH * 4, rtol=1e-9)
    placement = make_placement(table, kind, topology, **how)  # type: ignore[arg-type]
    model = CostPipeline(make_workload(table), topology)
    told = " ".join(model.estimate(Plan(placements=(placement,))).warnings)
    hottest = int(sent.sum(axis=0).argmax())
    uneven = kind is ShardingType.ROW_WISE
    assert (f"rank {hottest} receives" in told) == uneven
    assert (f"hottest rows of table {table.name!r}" in told) == uneven


def test_the_hottest_row_of_hashed_ids_is_named_unless_distinct_rows_travel() -> None:
    table = make_table(distribution=Zipf(num_embeddings=10_000, exponent=1.4), pooling=Pooling.NONE)
    topology = make_topology()
    plan = Plan(placements=(make_placement(table, ShardingType.ROW_WISE, topology),))
    told = CostPipeline(make_workload(table), topology).estimate(plan).warnings
    assert any("is taken to hold the hottest row of table" in line for line in told)
    once = dataclasses.replace(table, deduplicates_indices=True)
    told = CostPipeline(make_workload(once), topology).estimate(plan).warnings
    assert not any("hottest row" in line for line in told)


def test_column_shards_repeat_the_indices_and_split_the_outputs() -> None:
    work = row(
        make_table(),
        ShardingType.COLUMN_WISE,
        make_topology(),
        where=(0, 0, 3),
        column_widths=(16, 16, 32),
    )
    kind = family(ShardingType.COLUMN_WISE)
    one = BATCH * 8 * 8 + BATCH * 4
    np.testing.assert_allclose(work[:, INPUT + kind], [2 * one, 0, 0, one])
    np.testing.assert_allclose(work[:, OUTPUT + kind], [BATCH * 64, 0, 0, BATCH * 64])
    calls = work[:, call_column(ShardingType.COLUMN_WISE, ComputeKernel.FUSED)]
    np.testing.assert_array_equal(calls, [2, 0, 0, 1])


def test_a_sequence_sends_a_vector_per_index() -> None:
    table = make_table(pooling=Pooling.NONE, distribution=EVEN)
    work = row(table, ShardingType.TABLE_WISE, make_topology())
    assert work[0, OUTPUT + family(ShardingType.TABLE_WISE)] == BATCH * 8 * 64 * 2
    split = row(table, ShardingType.ROW_WISE, make_topology())
    sent = split[:, OUTPUT + family(ShardingType.ROW_WISE)]
    np.testing.assert_allclose(sent, BATCH * 8 * 64 * 2 / 4)


def test_replicas_look_up_their_own_samples_and_reduce_the_whole_table() -> None:
    table = make_table(num_embeddings=500)
    work = row(table, ShardingType.DATA_PARALLEL, make_topology())
    np.testing.assert_array_equal(work, np.repeat(work[:1], 4, axis=0))
    assert work[0, REPLICATED] == 500 * 64 * 4
    lookup = work[0, lookup_columns(ComputeKernel.DENSE)]
    assert lookup[LookupWork.INDICES] == BATCH * 8
    assert work[0, INPUT : OUTPUT + len(EXCHANGING_TYPES)].sum() == 0
    column = call_column(ShardingType.DATA_PARALLEL, ComputeKernel.DENSE)
    assert column == REPLICATED - 1
    assert work[0, column] == 1


def test_features_of_a_table_add_up() -> None:
    features = (Feature(name="a", pooling_factor=3.0), Feature(name="b", pooling_factor=5.0))
    one = row(make_table(), ShardingType.TABLE_WISE, make_topology())
    two = row(make_table(features=features), ShardingType.TABLE_WISE, make_topology())
    kind = family(ShardingType.TABLE_WISE)
    assert two[0, OUTPUT + kind] == 2 * one[0, OUTPUT + kind]
    assert two[0, INPUT + kind] == one[0, INPUT + kind] + BATCH * 4
    indices = lookup_columns(ComputeKernel.FUSED).start + LookupWork.INDICES
    assert two[0, indices] == one[0, indices]


def test_ordered_ids_heat_the_first_row_shard() -> None:
    hashed = make_table(distribution=EVEN)
    zipf = make_table()
    ordered = dataclasses.replace(
        zipf,
        distribution=dataclasses.replace(zipf.distribution, scattered=False),  # type: ignore[type-var]
    )
    indices = lookup_columns(ComputeKernel.FUSED).start + LookupWork.INDICES
    even, skewed = (
        row(t, ShardingType.ROW_WISE, make_topology())[:, indices] for t in (hashed, ordered)
    )
    assert np.ptp(even) < 1e-6
    assert list(skewed) == sorted(skewed, reverse=True)
    assert skewed[0] > 5 * skewed[-1]
    assert skewed.sum() == pytest.approx(even.sum(), rel=1e-9)


# ------------------------------------------------------------------ layouts that TorchRec lacks


@pytest.mark.parametrize(
    ("kind", "ranks", "priced_as"),
    [
        (ShardingType.ROW_WISE, (0, 1, 2, 3), ShardingType.ROW_WISE),
        (ShardingType.ROW_WISE, (0, 1), ShardingType.TABLE_WISE),
        (ShardingType.ROW_WISE, (1, 0, 2, 3), ShardingType.TABLE_WISE),
        (ShardingType.TABLE_ROW_WISE, (2, 3), ShardingType.TABLE_ROW_WISE),
        (ShardingType.TABLE_ROW_WISE, (1, 2), ShardingType.TABLE_WISE),
        (ShardingType.TABLE_ROW_WISE, (0, 2), ShardingType.TABLE_WISE),
        (ShardingType.TABLE_ROW_WISE, (0,), ShardingType.TABLE_WISE),
    ],
)
def test_row_splits_over_some_ranks_send_partial_sums_like_table_wise(
    kind: ShardingType, ranks: tuple[int, ...], priced_as: ShardingType
) -> None:
    """Four ranks on two hosts; any row split is a plan, TorchRec's layouts have their own types."""
    topology, table = make_topology(2, 2), make_table()
    whole = make_placement(table, ShardingType.TABLE_WISE, topology).shards[0]
    size = table.num_embeddings // len(ranks)
    shards = tuple(
        dataclasses.replace(whole, rank=r, row_offset=i * size, num_rows=size)
        for i, r in enumerate(ranks)
    )
    placed = dataclasses.replace(
        make_placement(table, ShardingType.TABLE_WISE, topology), sharding_type=kind, shards=shards
    )
    pipeline = CostPipeline(make_workload(table), topology)
    work = pipeline.plan_work(Plan(placements=(placed,)))
    used = [f for i, f in enumerate(EXCHANGING_TYPES) if work[:, OUTPUT + i].any()]
    assert used == [priced_as]


def test_columns_are_disjoint_and_complete() -> None:
    kernels = [lookup_columns(k) for k in KERNELS]
    spans = [range(s.start, s.stop) for s in kernels]
    spans += [range(INPUT, OUTPUT), range(OUTPUT, CALLS), range(CALLS, REPLICATED)]
    spans += [range(REPLICATED, MEMORY), range(MEMORY, NUM_COLUMNS)]
    assert [i for span in spans for i in span] == list(range(NUM_COLUMNS))
    calls = {call_column(f, k) for f in EXCHANGING_TYPES for k in KERNELS}
    assert calls == set(range(CALLS, REPLICATED - 1))
