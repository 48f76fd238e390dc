"""Many shards priced as columns cost what each of them costs alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from costmodels.calibration.points import zipf_table
from costmodels.cpu.lookup import Accesses, CpuLookup
from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.laws import Laws
from costmodels.errors import InvalidValueError
from costmodels.lookup.base import (
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    LookupShards,
    TableColumns,
)
from costmodels.lookup.roofline import Roofline
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.cells import OptionWork, WorkPool
from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingOption, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import Optimizer, Table, Workload
from tests.costmodels.cpu.machines import MACHINE
from tests.costmodels.shard_work import one_by_one
from tests.lookups import singles, work_of_one
from tests.strategies import (
    laws,
    make_placement,
    make_table,
    make_topology,
    make_workload,
    options,
    plans,
    tables,
)
from tests.strategies import topologies as any_topologies
from tests.strategies import workloads as plain_workloads

SAME = 1e-12
"""Relative difference of the same formula for one shard and for many."""
ROUNDED = 1e-10
"""Of other orders of summation, where a cache holds almost all rows and rounding is magnified."""

# ------------------------------------------------------------------ laws


@st.composite
def measured_laws(draw: DrawFn, rows: int) -> AbstractIndexDistribution:
    """Three bins as a profile leaves them, in id ranges or not, with repeats or without."""
    sizes = np.array([0.02, 0.28, 0.7]) * rows
    ranges = None
    if draw(st.booleans()):
        shares = draw(st.lists(st.integers(0, 9), min_size=12, max_size=12))
        parts = np.array(shares, dtype=float).reshape(4, 3) + 0.1
        ranges = parts / parts.sum(axis=0) * sizes
    curve = draw(st.sampled_from([(), ((100.0, 60.0), (5000.0, 700.0))]))
    return Empirical.from_bins(
        sizes,
        np.array([30.0, 3.0, 0.1]),
        rows,
        range_rows=ranges,
        num_ids_in_ranges=rows if ranges is not None else 0,
        num_unique_curve=curve,
    )


def any_law(rows: int) -> st.SearchStrategy[AbstractIndexDistribution]:
    return st.one_of(laws(rows), laws(rows), measured_laws(rows))


@st.composite
def queries(draw: DrawFn) -> tuple[list[AbstractIndexDistribution], list[tuple[int, ...]]]:
    """Laws of many sizes, and questions to them in any order."""
    sizes = draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=5))
    found = [draw(any_law(size)) for size in sizes]
    asked = []
    for _ in range(draw(st.integers(1, 12))):
        at = draw(st.integers(0, len(found) - 1))
        begin, end = sorted(draw(st.tuples(*[st.integers(0, sizes[at])] * 2)))
        asked.append((at, begin, end - begin))
    return found, asked


@given(queries(), st.data())
def test_laws_side_by_side_answer_as_each_alone(
    case: tuple[list[AbstractIndexDistribution], list[tuple[int, ...]]], data: st.DataObject
) -> None:
    found, asked = case
    law, offset, rows = np.array(asked).T
    many = len(asked)
    amounts = st.sampled_from([0.0, 0.4, 1.0, 37.0, 4096.0, 1e6, 3e8])
    shares = st.sampled_from([0.0, 1e-6, 0.003, 0.2, 0.999, 1.0, 1.3])
    indices = np.array(data.draw(st.lists(amounts, min_size=many, max_size=many)))
    held = np.array(data.draw(st.lists(shares, min_size=many, max_size=many)))
    cached = held * np.array([float(x.num_embeddings) for x in found])[law]
    together = Laws(found)
    for _ in range(2):  # the second time from what is remembered
        answers = (
            together.unique_rows(law, indices),
            together.unique_rows_in_range(law, indices, offset, rows),
            together.range_share(law, offset, rows),
            together.filled(law, cached)[0],
            together.hit_ratio(law, cached),
            together.expected_misses(law, indices, cached),
            together.expected_unique_misses(law, indices, cached),
        )
        alone = [
            (
                one_by_one.unique_rows(x, n),
                one_by_one.unique_in_range(x, n, a, r),
                one_by_one.range_share(x, a, r),
                *one_by_one.cache(x, c),
                one_by_one.misses(x, n, c),
                one_by_one.unique_misses(x, n, c),
            )
            for x, n, a, r, c in zip(
                (found[i] for i in law),
                indices,
                offset.tolist(),
                rows.tolist(),
                cached,
                strict=True,
            )
        ]
        for got, expected in zip(answers, np.array(alone).T, strict=True):
            np.testing.assert_allclose(got, expected, rtol=ROUNDED, atol=1e-13)


def test_a_law_may_say_where_its_rows_are() -> None:
    @final
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd(AbstractIndexDistribution):
        """Only the first half of the ids is ever drawn."""

        num_embeddings: int = 100
        scattered: bool = False

        def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
            return np.array([50.0, 50.0]), np.array([0.02, 0.0])

        def range_rows(self, row_offset: IntArray | int, num_rows: IntArray | int) -> FloatArray:
            first, last = np.asarray(row_offset), np.asarray(row_offset) + num_rows
            hot = np.minimum(last, 50) - np.minimum(first, 50)
            return np.stack([hot, last - first - hot], axis=-1).astype(float)

    found = Laws([Odd()]).range_share(
        np.zeros(3, int), np.array([0, 40, 50]), np.array([25, 20, 9])
    )
    np.testing.assert_allclose(found, [0.5, 0.2, 0.0])


# ------------------------------------------------------------------ options together


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([(1,), (5,), (2, 3)])), max_size=8),
    st.integers(1, 7),
    st.integers(0, 2**32),
)
def test_a_pool_holds_the_rows_of_all_options(
    shapes: list[tuple[int, tuple[int, ...]]], at_once: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    works = []
    for distinct, shape in shapes:
        work = OptionWork.of(rng.integers(0, 2, (distinct, 3)).astype(float))
        works.append(replace(work, index=rng.integers(0, len(work.rows), shape)))
    pool = WorkPool.of(works, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("costmodels.shard_work.cells._AT_ONCE", at_once)
        summed = pool.summed()
    assert pool.rows.shape == (sum(len(w.rows) for w in works), 3)
    assert summed.shape == (len(works), 3)
    for i, work in enumerate(works):
        np.testing.assert_array_equal(pool.rows[pool.index[i]], work.full)
        assert pool.first[i] <= pool.index[i].min()
        np.testing.assert_allclose(summed[i], work.full.reshape(-1, 3).sum(axis=0))
    np.testing.assert_allclose(pool.counts.sum(), sum(w.index.size for w in works))


# ------------------------------------------------------------------ lookups and work


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OneByOne(AbstractLookupModel):
    """A model as people write it: it only prices one shard at a time."""

    inner: AbstractLookupModel
    plain_roofline: bool = False

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        each = [
            one_by_one.roofline_work(shard, topology)
            if self.plain_roofline
            else work_of_one(self.inner, shard, topology)
            for shard in singles(shards)
        ]
        return np.array(each).reshape(len(shards), NUM_LOOKUP_WORK)

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        return self.inner.forward_time(work, topology)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        return self.inner.backward_time(work, topology)


MODELS = {
    "roofline": (Roofline(), OneByOne(inner=Roofline(), plain_roofline=True)),
    "cpu": (CpuLookup(constants=MACHINE), OneByOne(inner=CpuLookup(constants=MACHINE))),
}


@st.composite
def workloads(draw: DrawFn) -> Workload:
    """Any small workload, also with measured laws."""
    workload = draw(plain_workloads(max_tables=3))
    made: list[Table] = []
    for table in workload.tables:
        larger = draw(tables(table.name, max_rows=2_000_000))
        law = draw(any_law(larger.num_embeddings))
        made.append(replace(larger, distribution=law))
    return replace(workload, tables=tuple(made))


def _on_cpu(table: Table) -> Table:
    """Without what FBGEMM has for GPUs alone."""
    return replace(table, row_update=RowUpdate.DEDUPLICATED, deduplicates_indices=False)


@pytest.mark.parametrize("name", MODELS)
@given(workload=workloads(), topology=any_topologies(), data=st.data())
def test_plans_and_options_cost_what_their_shards_cost(
    name: str, workload: Workload, topology: Topology, data: st.DataObject
) -> None:
    columns, alone = MODELS[name]
    if name == "cpu":
        workload = replace(workload, tables=tuple(map(_on_cpu, workload.tables)))
    pipeline = CostPipeline(workload, topology, CostModels(lookup=columns))
    plain = CostPipeline(workload, topology, CostModels(lookup=alone))
    plan = data.draw(plans(workload, topology))
    found = pipeline.plan_work(plan)
    expected = one_by_one.plan_work(plan, workload, topology, alone)
    np.testing.assert_allclose(found, expected, rtol=ROUNDED)
    np.testing.assert_allclose(plain.plan_work(plan), expected, rtol=ROUNDED)
    each = [pipeline.plan_work(Plan(placements=(p,))) for p in plan.placements]
    np.testing.assert_allclose(pipeline.placements_work(plan).full, each, rtol=SAME)
    some = [data.draw(options(t)) for t in workload.tables for _ in range(3)]
    together = pipeline.options_work(some)
    for option, work in zip(some, together, strict=True):
        np.testing.assert_allclose(work.full, pipeline.options_work((option,))[0].full, rtol=SAME)
        np.testing.assert_allclose(work.full, plain.options_work((option,))[0].full, rtol=ROUNDED)
        firsts = [int(np.flatnonzero(work.index == i)[0]) for i in range(len(work.rows))]
        assert firsts == sorted(firsts), "rows come in the order in which they are first used"


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1.4), st.floats(1, 1e7)), min_size=1))
def test_misses_of_cpu_caches_are_those_of_a_bisection(
    cases: list[tuple[int, float, float]],
) -> None:
    """A third of each table, which gets a third of its indices."""
    thirds = [
        zipf_table(i, 3 * rows, 16, 1.0, s, scattered=True) for i, (rows, s, _) in enumerate(cases)
    ]
    draws = np.array([number for *_, number in cases])
    whole = LookupShards.whole(TableColumns(thirds), draws, draws, optimizer=Optimizer.SGD)
    seen = Accesses(replace(whole, num_rows=whole.num_rows // 3, num_indices=draws / 3.0))
    for cache_bytes in (4096.0, 1e6):
        alone = []
        for table, number in zip(thirds, draws.tolist(), strict=True):
            rows, probability = table.distribution.frequency_bins()
            capacity = cache_bytes / 64.0
            alone.append(
                one_by_one.cpu_misses(rows / 3.0, probability, number, number / 3.0, capacity)
            )
        np.testing.assert_allclose(seen.misses(cache_bytes), alone, rtol=ROUNDED)


def test_rows_over_some_ranks_exchange_like_whole_tables() -> None:
    """TorchRec cannot run them, HugeCTR does."""
    topology = make_topology(2, 2)
    table = make_table(num_embeddings=999)
    workload = make_workload(table)
    for kind, ranks in (
        (ShardingType.ROW_WISE, (0, 1, 3)),
        (ShardingType.ROW_WISE, (3, 2, 1, 0)),
        (ShardingType.TABLE_ROW_WISE, (1, 2)),
        (ShardingType.TABLE_ROW_WISE, (1, 0)),
        (ShardingType.TABLE_ROW_WISE, (0, 1, 2)),
    ):
        starts = np.linspace(0, table.num_embeddings, len(ranks) + 1).astype(int)
        shards = tuple(
            Shard(rank=r, row_offset=a, num_rows=b - a, col_offset=0, num_cols=table.embedding_dim)
            for r, (a, b) in zip(ranks, itertools.pairwise(starts.tolist()), strict=True)
        )
        placed = make_placement(table, ShardingType.TABLE_WISE, topology)
        plan = Plan(placements=(replace(placed, sharding_type=kind, shards=shards),))
        found = CostPipeline(workload, topology, CostModels(lookup=Roofline())).plan_work(plan)
        np.testing.assert_allclose(
            found, one_by_one.plan_work(plan, workload, topology, Roofline()), rtol=ROUNDED
        )


def test_a_shard_on_a_rank_that_does_not_exist_is_refused() -> None:
    topology, table = make_topology(), make_table()
    workload = make_workload(table)
    placed = make_placement(table, ShardingType.TABLE_WISE, topology, where=(4,))
    with pytest.raises(InvalidValueError, match=r"ranks \[4\] are outside 0\.\.3"):
        CostPipeline(workload, topology).plan_work(Plan(placements=(placed,)))


def test_pipelines_that_count_options_in_another_way_are_asked() -> None:
    class ManyOptions(CostPipeline):
        def options_work(self, options: object) -> list[OptionWork]:
            works = super().options_work(options)  # type: ignore[arg-type]
            return [replace(work, rows=2.0 * work.rows) for work in works]

    workload, topology = make_workload(), make_topology()
    option = ShardingOption(
        table="t0",
        sharding_type=ShardingType.COLUMN_WISE,
        kernel=ComputeKernel.FUSED,
        column_widths=(32, 16, 16),
    )
    plain = CostPipeline(workload, topology).options_work((option,))[0].full
    pipeline = ManyOptions(workload, topology)
    np.testing.assert_allclose(pipeline.options_work((option,))[0].full, 2.0 * plain)
    np.testing.assert_allclose(pipeline.options_work((option,))[0].full, 2.0 * plain)
