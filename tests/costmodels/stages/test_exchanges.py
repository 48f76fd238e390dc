"""Exchanges of every sharding type against the same arithmetic by hand, pair by pair of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
from hypothesis import given

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.datatypes import FloatArray
from costmodels.lookup.base import KERNELS
from costmodels.shard_work.work import (
    EXCHANGING_TYPES,
    INPUT,
    NUM_COLUMNS,
    OUTPUT,
    REPLICATED,
    call_column,
)
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.models import CostModels
from costmodels.stages.stage_model import StageModel
from costmodels.topology import Topology
from costmodels.uncertainty import Scale
from costmodels.workload import Pooling
from tests.costmodels.stages.stand_ins import (
    CHECK,
    TWO_STEPS,
    Case,
    Given,
    Weighted,
    cases,
    latency_s,
    level_of,
    ring_s,
    stage_model,
    system,
)
from tests.costmodels.stages.test_kinds_of_time import Known
from tests.strategies import make_dense, make_table, make_workload


def pair_by_pair_s(
    topology: Topology, members: list[int], sends: Callable[[int, int], float]
) -> float:
    """An all-to-all: the busier direction of each member, link by link; the slowest member."""
    slowest = 0.0
    for one in members:
        out, back = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for other in members:
            if one == other:
                continue
            level = level_of(topology, one, other)
            out[level] += sends(one, other)
            back[level] += sends(other, one)
        busier = [max(a, b) for a, b in zip(out, back, strict=True)]
        fabric_s = busier[0] / topology.host_link.bandwidth_bytes_per_s
        fabric_s += busier[1] / topology.domain_link.bandwidth_bytes_per_s
        network_s = busier[2] / topology.network_link.bandwidth_bytes_per_s
        slowest = max(slowest, fabric_s, network_s)
    across = topology.num_hosts > 1
    return slowest + latency_s(topology, len(members), across_hosts=across)


@CHECK
@given(cases())
def test_exchanges_of_every_type(case: Case) -> None:
    """Indices, then pooled vectors: all-to-all, reduce-scatter, or one inside and one across."""
    topology, work = case.model.topology, case.work
    times = case.model.times(work, Scale())
    everyone = list(case.ranks)
    once_s = latency_s(topology, len(everyone), across_hosts=topology.num_hosts > 1)
    found = {family.name: family for family in times.families}
    for index, kind in enumerate(EXCHANGING_TYPES):
        used = [any(work[r, call_column(kind, k)] > 0 for k in KERNELS) for r in everyone]
        assert (kind.value in found) is any(used)
        if not any(used):
            continue
        arriving, leaving = work[:, INPUT + index], work[:, OUTPUT + index]
        family = found[kind.value]
        indices_s = pair_by_pair_s(topology, everyone, lambda a, b, x=arriving: x[b])
        assert float(family.input_s.squeeze()) == pytest.approx(indices_s + once_s, rel=1e-9)
        told = [(label, float(seconds.squeeze())) for label, seconds in family.outputs_s]
        expected = outputs_by_hand(case, kind, leaving)
        assert [label for label, _ in told] == [label for label, _ in expected]
        for (_, mine), (_, by_hand) in zip(told, expected, strict=True):
            assert mine == pytest.approx(by_hand, rel=1e-9)


def outputs_by_hand(case: Case, kind: ShardingType, leaving: FloatArray) -> list[tuple[str, float]]:
    """Label and seconds of each collective that carries pooled vectors; none among one rank."""
    topology = case.model.topology
    everyone, local = list(case.ranks), topology.local_world_size
    world_bytes = float(leaving.max()) * len(everyone)
    pooled = case.model.workload.tables[0].pooling is not Pooling.NONE
    if kind is ShardingType.ROW_WISE and pooled:
        return [("reduce-scatter", ring_s(topology, world_bytes, within_host=False))]
    if kind not in TWO_STEPS:
        return [("all-to-all", pair_by_pair_s(topology, everyone, lambda a, b: leaving[a]))]
    inside = ("reduce-scatter", ring_s(topology, world_bytes, within_host=True))
    if topology.num_hosts == 1:
        return [inside]
    lanes = [everyone[lane::local] for lane in range(local)]
    across = max(pair_by_pair_s(topology, lane, lambda a, b: leaving[a]) for lane in lanes)
    return [*([inside] if local > 1 else []), ("all-to-all", across)]


@CHECK
@given(cases())
def test_split_sizes_cost_one_empty_exchange(case: Case) -> None:
    topology = case.model.topology
    world = topology.world_size
    times = case.model.times(case.work, Scale())
    expected = latency_s(topology, world, across_hosts=topology.num_hosts > 1)
    assert float(times.input_splits_s.squeeze()) == pytest.approx(expected)


def test_a_type_that_only_some_plans_use_takes_no_time_in_the_others() -> None:
    model = stage_model(system((1, 2, 1)))
    work = np.zeros((2, 2, NUM_COLUMNS))
    work[:, :, OUTPUT : OUTPUT + len(EXCHANGING_TYPES)] = 1e6
    work[0, :, call_column(ShardingType.TABLE_WISE, ComputeKernel.FUSED)] = 1.0
    (family,) = model.times(work, Scale()).families
    assert family.name == "table_wise"
    assert family.present.squeeze().tolist() == [True, False]
    ((_, seconds),) = family.outputs_s
    assert seconds[0] > 0
    assert seconds[1] == 0
    assert family.input_s[1] == 0


@final
@dataclass(frozen=True, slots=True)
class Receiving(AbstractCollectiveModel):
    """Only what arrives takes time: a second for each byte."""

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Nothing."""
        return 0.0

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """All levels alike."""
        return np.asarray(receive.sum(axis=-1))

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Not asked."""
        raise NotImplementedError


def test_indices_arrive_where_the_table_is_and_vectors_leave_from_there() -> None:
    """One rank holds a table: it receives all indices, and the others receive its vectors."""
    models = CostModels(lookup=Weighted(), collective=Receiving(), dense=Given())
    workload = make_workload(dense=make_dense(num_dense_features=0, bottom_mlp=(), top_mlp=()))
    model = StageModel(workload, system((1, 4, 1)), models)
    work = np.zeros((4, NUM_COLUMNS))
    work[0, call_column(ShardingType.TABLE_WISE, ComputeKernel.FUSED)] = 1.0
    work[0, INPUT], work[0, OUTPUT] = 10.0, 1000.0
    family = EXCHANGING_TYPES.index(ShardingType.TABLE_WISE)
    first, second, indices = model.exchanges.growth(work, family)
    assert indices.tolist() == [30.0, 0.0, 0.0, 0.0]
    assert first.tolist() == [0.0, 1000.0, 1000.0, 1000.0]
    assert not second.any()


@final
@dataclass(frozen=True, slots=True)
class OneWay(AbstractCollectiveModel):
    """A rank sends or receives, but not both at the same time."""

    @property
    def full_duplex(self) -> bool:
        """No."""
        return False

    def fixed_s(self, topology: Topology, *, ranks: int, across_hosts: bool) -> float:
        """Nothing."""
        return 0.0

    def all_to_all(self, send: FloatArray, receive: FloatArray, topology: Topology) -> FloatArray:
        """Not asked."""
        raise NotImplementedError

    def reduce_scatter(
        self, num_bytes: FloatArray, topology: Topology, *, within_host: bool
    ) -> FloatArray:
        """Not asked."""
        raise NotImplementedError


def test_ranks_pay_for_others_where_both_directions_add_up_or_copies_are_priced() -> None:
    for collective, exchange, pays in (
        (AlphaBeta(), None, False),
        (OneWay(), None, True),
        (AlphaBeta(), Known(), True),
    ):
        models = CostModels(
            lookup=Weighted(), collective=collective, dense=Given(), exchange=exchange
        )
        model = StageModel(make_workload(), system((1, 2, 1)), models)
        assert model.exchanges.pays_for_others is pays


def test_without_gradients_there_is_no_all_reduce() -> None:
    """Not even its latency: no dense part and no replicated table."""
    bare = make_dense(num_dense_features=0, bottom_mlp=(), top_mlp=())
    model = stage_model(system((1, 2, 1)), dense=bare)
    work = np.zeros((2, NUM_COLUMNS))
    assert float(model.times(work, Scale()).tail_bucket_s.squeeze()) == 0.0
    work[1, REPLICATED] = 4.0
    assert float(model.times(work, Scale()).tail_bucket_s.squeeze()) > 2 * 10e-6


def test_rows_are_summed_where_any_table_pools() -> None:
    """TorchRec shards pooled and unpooled tables by modules of their own; one set is priced."""
    tables = (make_table("t0"), make_table("t1", pooling=Pooling.NONE))
    models = CostModels(lookup=Weighted(), collective=AlphaBeta(), dense=Given())
    model = StageModel(make_workload(*tables), system((1, 2, 1)), models)
    work = np.zeros((2, NUM_COLUMNS))
    work[:, call_column(ShardingType.ROW_WISE, ComputeKernel.FUSED)] = 1.0
    (family,) = model.times(work, Scale()).families
    assert [label for label, _ in family.outputs_s] == ["reduce-scatter"]
