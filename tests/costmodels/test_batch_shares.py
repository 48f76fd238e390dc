"""Unequal batches: every stage of a rank follows its own samples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.lookup.base import AbstractLookupModel
from costmodels.lookup.fbgemm import Fbgemm
from costmodels.lookup.roofline import Roofline
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import EXCHANGING_TYPES, INPUT, OUTPUT
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType
from costmodels.stages.models import CostModels
from costmodels.topology import Link, Topology, batch_ratios, with_batch
from costmodels.workload import DenseArch, Feature, Pipeline, Workload
from tests.networks import matrix_by_level
from tests.strategies import (
    make_host,
    make_placement,
    make_table,
    make_topology,
    make_workload,
    planned_workloads,
)

SHARES = (3.0, 1.0, 2.0, 2.0)
SAMPLES = (6144, 2048, 4096, 4096)


LAWS = pytest.mark.parametrize("law", [Fbgemm(), Roofline()], ids=["fbgemm", "roofline"])


def costs(
    workload: Workload, topology: Topology, law: AbstractLookupModel | None = None
) -> CostPipeline:
    return CostPipeline(workload, topology, CostModels(lookup=law or Roofline()))


def one_whole(topology: Topology, **changes: object) -> tuple[Workload, Plan]:
    """A table of 64 columns on rank 0; every sample has 8 indices of 8 bytes."""
    table = make_table(num_embeddings=10**6)
    values = {"batch_size_per_rank": 4096, "batch_share_ratio": SHARES, **changes}
    placement = make_placement(table, ShardingType.TABLE_WISE, topology)
    return make_workload(table, **values), Plan(placements=(placement,))


def test_a_hand_worked_iteration() -> None:
    """Copies, indices, lookup, vectors, their gradients, update; one after another."""
    topology = make_topology(local_world_size=4)
    device = dataclasses.replace(topology.device, kernel_latency_s=0.0)
    link = Link(latency_s=0.0, bandwidth_bytes_per_s=10e9)
    topology = dataclasses.replace(
        topology, device=device, host_link=link, host=make_host(eager_call_s=0.0)
    )
    workload, plan = one_whole(topology, dense=DenseArch(), pipeline=Pipeline.NONE)
    sent_by_others = sum(SAMPLES[1:])
    copy_s = max(SAMPLES) * (8 * 8 + 8 + 4) / topology.host.device_link_bandwidth_bytes_per_s
    indices_s = sent_by_others * (8 * 8 + 4) / 10e9
    vectors_s = sent_by_others * 64 * 4 / 10e9
    even = costs(dataclasses.replace(workload, batch_share_ratio=()), topology)
    lookups_s = sum(float(s.max()) for s in even.lookup_times(even.plan_work(plan)))
    pipeline = costs(workload, topology)
    found = float(pipeline.iteration_times(pipeline.plan_work(plan)))
    assert found == pytest.approx(copy_s + indices_s + lookups_s + 2 * vectors_s, rel=1e-9)
    equal = float(even.iteration_times(even.plan_work(plan)))
    assert equal == pytest.approx(
        copy_s * 4096 / 6144 + (indices_s + 2 * vectors_s) * 12288 / sent_by_others + lookups_s,
        rel=1e-9,
    )


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("kind", [ShardingType.TABLE_WISE, ShardingType.TABLE_ROW_WISE])
def test_exchanges_are_those_of_the_whole_matrix(hosts: int, kind: ShardingType) -> None:
    topology = make_topology(hosts, 4 // hosts)
    workload, _ = one_whole(topology)
    plan = Plan(placements=(make_placement(workload.tables[0], kind, topology),))
    pipeline = costs(workload, topology)
    work, family = pipeline.plan_work(plan), EXCHANGING_TYPES.index(kind)
    (times,) = pipeline.stage_times(work).families
    model, ratio = pipeline.models.collective, np.array(SHARES) / 2.0
    indices = matrix_by_level(np.outer(ratio, work[:, INPUT + family]), topology)
    fixed_s = pipeline._stages.exchanges.lengths_s
    expected = model.all_to_all_s(*indices, topology).max() + fixed_s
    assert times.input_s.item() == pytest.approx(expected)
    if kind is ShardingType.TABLE_WISE:
        vectors = matrix_by_level(np.outer(work[:, OUTPUT + family], ratio), topology)
        expected = model.all_to_all_s(*vectors, topology).max()
        assert times.outputs_s[0][1].item() == pytest.approx(expected)


def test_dense_part_replicated_tables_and_memory_are_those_of_the_ranks_batch() -> None:
    topology = make_topology(local_world_size=4, speed_by_rank_ratio=(1.5, 0.5, 1.0, 1.0))
    table = make_table()
    workload = make_workload(table, batch_size_per_rank=4096, batch_share_ratio="proportional")
    plan = Plan(placements=(make_placement(table, ShardingType.DATA_PARALLEL, topology),))
    pipeline = costs(workload, topology)
    work, times = pipeline.plan_work(plan), pipeline.stage_times(pipeline.plan_work(plan))
    ledger = pipeline.memory(plan)
    option = ShardingOption(
        table=table.name,
        sharding_type=ShardingType.DATA_PARALLEL,
        kernel=ComputeKernel.DENSE,
        column_widths=(64,),
    )
    (option_work,) = pipeline.options_work([option])
    np.testing.assert_allclose(option_work.full, work)
    np.testing.assert_allclose(pipeline.placements_work(plan).full[0], work)
    for rank, samples in enumerate(SAMPLES):
        own = dataclasses.replace(with_batch(workload, samples / 4096), batch_share_ratio=())
        alone = costs(own, topology)
        assert own.batch_size_per_rank == samples
        np.testing.assert_allclose(work[rank], alone.plan_work(plan)[rank])
        for stage in ("bottom_forward_s", "top_backward_s", "lookup_forward_s", "input_copy_s"):
            expected = getattr(alone.stage_times(alone.plan_work(plan)), stage)
            expected = np.broadcast_to(expected, (4,))[rank]
            assert getattr(times, stage)[rank] == pytest.approx(expected)
        assert ledger.ranks[rank].dense_bytes == alone.memory(plan).ranks[rank].dense_bytes


@LAWS
@given(planned_workloads(), st.data())
def test_bounds_hold(
    law: AbstractLookupModel, case: tuple[Workload, Topology, Plan], data: st.DataObject
) -> None:
    workload, topology, plan = case
    share = st.sampled_from([0.3, 1.0, 1.0, 4.0])
    shares = data.draw(st.tuples(*[share] * topology.world_size))
    pipeline = Pipeline.NONE if workload.pipeline is Pipeline.HUGECTR else workload.pipeline
    tables = tuple(
        dataclasses.replace(t, communication=None, deduplicates_indices=False)
        for t in workload.tables
    )
    workload = dataclasses.replace(
        workload,
        batch_share_ratio=shares,
        pipeline=pipeline,
        tables=tables,
        batch_size_per_rank=max(workload.batch_size_per_rank, 64),  # no rank has less than a sample
    )
    costed = costs(workload, topology, law)
    work = costed.plan_work(plan)
    slowest = costed.phases.times(work).max(axis=-2)
    time_s = float(costed.iteration_times(work))
    assert costed.phases.base_s + float(slowest @ costed.phases.proven_weights) <= time_s * (
        1 + 1e-9
    )


def test_lookups_that_are_slowest_on_two_ranks_do_not_add_up_where_tables_are_replicated() -> None:
    """No rank waits for another between its two lookups there, so no iteration holds both maxima.

    The rank with more samples is slowest in the forward lookup. The other one has slower compute,
    and is slowest in the backward lookup, which updates distinct rows.
    """
    law = Zipf(num_embeddings=113_930, exponent=2.0)
    feature = Feature(name="f", pooling_factor=100.0)
    table = make_table(num_embeddings=113_930, distribution=law, features=(feature,))
    topology = make_topology(local_world_size=2, speed_by_rank_ratio=(0.25, 1.0))
    device = dataclasses.replace(topology.device, kernel_latency_s=0.0)
    host = make_host(eager_call_s=0.0)
    topology = dataclasses.replace(topology, device=device, host=host)
    workload = make_workload(
        table, batch_size_per_rank=4096, batch_share_ratio=(0.25, 4.0), dense=DenseArch()
    )
    kind = ShardingType.DATA_PARALLEL
    plan = Plan(placements=(make_placement(table, kind, topology),))
    costed = costs(workload, topology)
    work = costed.plan_work(plan)
    phases = costed.phases.times(work)
    assert phases[:, :2].argmax(axis=0).tolist() == [1, 0]
    time_s = float(costed.iteration_times(work))
    slowest = phases.max(axis=0)
    assert costed.phases.base_s + float(slowest @ costed.phases.weights) > time_s
    assert costed.phases.base_s + float(slowest @ costed.phases.proven_weights) <= time_s
    floor = costed.floor.of(frozenset({kind}), fetches=False)
    assert floor.seconds(floor.leaf_seconds(slowest[None, floor.phases])) <= time_s
    longest = floor.longest_path(floor.lines(slowest[floor.phases]))
    assert longest.constant_s + longest.counts @ slowest[floor.phases] <= time_s


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"batch_share_ratio": (1.0, 2.0)}, "2 shares for 4 ranks; give one for each rank"),
        ({"batch_share_ratio": (1.0, 2.0, 0.0, 1.0)}, "must be above 0"),
        ({"batch_share_ratio": (1.0, 9e4, 9e4, 9e4)}, "rank 0 would have 0.061 samples of a mean"),
        ({"pipeline": Pipeline.HUGECTR}, "contradict pipeline hugectr"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], complaint: str) -> None:
    topology = make_topology(local_world_size=4)
    workload, _ = one_whole(topology, **changes)
    with pytest.raises(InvalidValueError, match=complaint):
        costs(workload, topology)


def test_equal_shares_are_none() -> None:
    topology = make_topology(local_world_size=4)
    workload, plan = one_whole(topology, batch_share_ratio="proportional")
    assert batch_ratios(workload, topology) is None
    told = costs(workload, topology).estimate(plan).warnings
    assert any("shares of all ranks are equal" in w for w in told)
