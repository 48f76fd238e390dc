"""Every stage against the same arithmetic done by hand: plain loops over ranks, pairs and kernels.

The lookup model and the dense model are stand-ins with known answers, so that what is tested is
how :mod:`costmodels.stages` puts times together. Collectives cost latency plus bytes over
bandwidth, which is simple enough to write down again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.dense.base import AbstractDenseModel, DenseTimes
from costmodels.lookup.base import (
    KERNELS,
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    FloatArray,
    LookupShard,
    LookupWork,
)
from costmodels.shard_work.work import (
    EXCHANGING_TYPES,
    INPUT,
    NUM_COLUMNS,
    OUTPUT,
    REPLICATED,
    call_column,
    lookup_columns,
)
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages import CostModels, StageModel
from costmodels.topology import Topology
from costmodels.uncertainty import Scale
from costmodels.workload import Pooling, Workload
from tests.strategies import make_dense, make_device, make_table, make_topology, make_workload

LAUNCH_S, LATENCY_S = 5e-6, 2e-6
FORWARD = np.array([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0]) * 1e-9
BACKWARD = np.array([29.0, 31.0, 37.0, 41.0, 43.0, 47.0, 53.0, 59.0, 61.0]) * 1e-9
DENSE = DenseTimes(
    bottom_forward_s=1e-4,
    top_forward_s=2e-4,
    top_backward_s=3e-4,
    bottom_backward_s=4e-4,
    optimizer_s=5e-4,
)
TWO_STEPS = (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)
SHAPES = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (4, 2, 2), (3, 4, 1))
"""(hosts, ranks per host, hosts per scale-up domain)."""


@final
@dataclass(frozen=True, slots=True)
class Weighted(AbstractLookupModel):
    """Each column of work has a price of its own."""

    sources: ClassVar[tuple[str, ...]] = ("test",)

    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """Never asked: work is drawn here."""
        raise NotImplementedError

    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """The sum of the prices."""
        return np.asarray(work @ FORWARD)

    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Other prices."""
        return np.asarray(work @ BACKWARD)


@final
@dataclass(frozen=True, slots=True)
class Given(AbstractDenseModel):
    """Known times."""

    sources: ClassVar[tuple[str, ...]] = ("test",)

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """The same for every workload."""
        return DENSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A stage model and work ``[W, columns]`` for it."""

    model: StageModel
    work: FloatArray

    @property
    def ranks(self) -> range:
        return range(self.model.topology.world_size)

    def calls(self, rank: int) -> int:
        """Fused calls: pairs of type and kernel with a shard, and the replicated tables."""
        pairs = [(f, k) for f in EXCHANGING_TYPES for k in KERNELS]
        columns = [call_column(f, k) for f, k in pairs]
        columns.append(call_column(ShardingType.DATA_PARALLEL, ComputeKernel.DENSE))
        return sum(1 for column in columns if self.work[rank, column] > 0)


def system(shape: tuple[int, int, int], speeds: tuple[float, ...] = ()) -> Topology:
    hosts, local, domain_hosts = shape
    device = make_device(launch_latency_s=LAUNCH_S, kernel_latency_s=LATENCY_S)
    return make_topology(
        hosts, local, domain_hosts=domain_hosts, device=device, speed_by_rank_ratio=speeds
    )


def stage_model(topology: Topology, **changes: object) -> StageModel:
    workload = make_workload(make_table("t0"), make_table("t1"), **changes)
    return StageModel(
        workload, topology, CostModels(lookup=Weighted(), collective=AlphaBeta(), dense=Given())
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any shape and speeds; most columns of the work are zero, as in real plans."""
    shape = draw(st.sampled_from(SHAPES))
    world = shape[0] * shape[1]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    speeds = tuple(rng.uniform(0.5, 2.0, world)) if draw(st.booleans()) else ()
    work = rng.uniform(0.0, 1e6, (world, NUM_COLUMNS)) * (rng.random((world, NUM_COLUMNS)) < 0.4)
    work[:, call_column(EXCHANGING_TYPES[0], KERNELS[0]) : REPLICATED] = rng.integers(
        0, 3, (world, REPLICATED - call_column(EXCHANGING_TYPES[0], KERNELS[0]))
    ) * (rng.random((world, 1)) < 0.6)
    pooling = draw(st.sampled_from([Pooling.SUM, Pooling.NONE]))
    tables = (make_table("t0", pooling=pooling), make_table("t1", pooling=pooling))
    workload = make_workload(*tables)
    models = CostModels(lookup=Weighted(), collective=AlphaBeta(), dense=Given())
    return Case(model=StageModel(workload, system(shape, speeds), models), work=work)


CHECK = settings(max_examples=60, deadline=None)

# ------------------------------------------------------------------ compute


@CHECK
@given(cases())
def test_lookups_add_up_kernels_and_launches(case: Case) -> None:
    """Forward and backward at the rank's speed; 1 and 3 kernels a call, 25 for a cached one."""
    times = case.model.times(case.work, Scale())
    speeds = case.model.topology.speeds()
    cached_columns = [call_column(f, ComputeKernel.FUSED_UVM_CACHING) for f in EXCHANGING_TYPES]
    fetched = (LookupWork.FORWARD_HOST_LINK, LookupWork.CACHE_INDICES)
    for rank in case.ranks:
        forward = backward = fetch = 0.0
        for kernel in KERNELS:
            of_kernel = case.work[rank, lookup_columns(kernel)]
            for column in LookupWork:
                seconds = of_kernel[column] * FORWARD[column]
                if kernel is ComputeKernel.FUSED_UVM_CACHING and column in fetched:
                    fetch += seconds
                else:
                    forward += seconds
                backward += of_kernel[column] * BACKWARD[column]
        calls = case.calls(rank)
        cached = sum(1 for column in cached_columns if case.work[rank, column] > 0)
        assert times.lookup_forward_s[rank] == pytest.approx(
            forward / speeds[rank] + calls * LATENCY_S, rel=1e-12
        )
        assert times.lookup_backward_s[rank] == pytest.approx(
            backward / speeds[rank] + 3 * calls * LATENCY_S, rel=1e-12
        )
        assert times.cache_fetch_s[rank] == pytest.approx(
            fetch + 25 * cached * LATENCY_S, rel=1e-12
        )


@CHECK
@given(cases())
def test_dense_stages_take_their_times_at_the_speed_of_the_rank(case: Case) -> None:
    times = case.model.times(case.work, Scale())
    speeds = case.model.topology.speeds()
    for name in DENSE.__slots__:
        alone = getattr(DENSE, name)
        assert list(getattr(times, name)) == pytest.approx([alone / s for s in speeds], rel=1e-12)


def test_each_kernel_of_each_type_is_one_call() -> None:
    """Shards of one call are launched once, however many they are."""
    model = stage_model(system((1, 2, 1)))
    work = np.zeros((2, NUM_COLUMNS))
    work[0, call_column(ShardingType.TABLE_WISE, ComputeKernel.FUSED)] = 5.0
    work[0, call_column(ShardingType.ROW_WISE, ComputeKernel.FUSED)] = 1.0
    work[0, call_column(ShardingType.ROW_WISE, ComputeKernel.FUSED_UVM_CACHING)] = 2.0
    work[1, call_column(ShardingType.DATA_PARALLEL, ComputeKernel.DENSE)] = 3.0
    times = model.times(work, Scale())
    assert list(times.lookup_forward_s) == pytest.approx([6e-6, 2e-6])
    assert list(times.lookup_backward_s) == pytest.approx([18e-6, 6e-6])
    assert list(times.cache_fetch_s) == pytest.approx([50e-6, 0.0])
    assert list(times.lookup_host_s) == pytest.approx([3 * 75e-6, 75e-6])


# ------------------------------------------------------------------ host


@CHECK
@given(cases())
def test_host_seconds_of_lookups_count_an_operator_and_three_launches_a_call(case: Case) -> None:
    """60 us for the operator where a launch takes 5 us, and three launches of 5 us."""
    times = case.model.times(case.work, Scale())
    expected = [75e-6 * case.calls(rank) for rank in case.ranks]
    assert list(times.lookup_host_s) == pytest.approx(expected, rel=1e-12)


def test_host_seconds_of_the_dense_part_by_hand() -> None:
    """13 -> 64 -> 64 below; concatenation, dot product, 128 and 1 above; two operators a layer."""
    times = stage_model(system((1, 2, 1))).times(np.zeros((2, NUM_COLUMNS)), Scale())
    operator_s = 4 * LAUNCH_S
    assert float(times.bottom_host_s.squeeze()) == pytest.approx(2 * 2 * operator_s + 4 * LAUNCH_S)
    assert float(times.top_host_s.squeeze()) == pytest.approx(
        2 * 4 * operator_s + (1 + 3 + 4) * LAUNCH_S
    )
    assert float(times.collective_host_s.squeeze()) == pytest.approx(8 * LAUNCH_S)


def test_a_captured_graph_costs_the_host_nothing() -> None:
    work = np.ones((2, NUM_COLUMNS))
    times = stage_model(system((1, 2, 1)), cuda_graph=True).times(work, Scale())
    hosts = (times.bottom_host_s, times.top_host_s, times.collective_host_s, times.lookup_host_s)
    assert not any(np.any(seconds) for seconds in hosts)
    assert np.all(times.lookup_forward_s > 0)


# ------------------------------------------------------------------ exchanges


def latency_s(topology: Topology, members: int, *, across_hosts: bool) -> float:
    """Of the outermost link that a collective crosses; nothing for one member."""
    if members == 1:
        return 0.0
    if not across_hosts:
        return topology.host_link.latency_s
    inside = topology.world_size <= topology.domain_size
    return topology.domain_link.latency_s if inside else topology.network_link.latency_s


def pair_by_pair_s(
    topology: Topology, members: list[int], sends: Callable[[int, int], float]
) -> float:
    """An all-to-all: the busier direction of each member, link by link; the slowest member."""
    local, domain = topology.local_world_size, topology.domain_size
    slowest = 0.0
    for one in members:
        out, back = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for other in members:
            if one == other:
                continue
            level = (
                0
                if one // local == other // local
                else 1
                if one // domain == other // domain
                else 2
            )
            out[level] += sends(one, other)
            back[level] += sends(other, one)
        busier = [max(a, b) for a, b in zip(out, back, strict=True)]
        fabric_s = busier[0] / topology.host_link.bandwidth_bytes_per_s
        fabric_s += busier[1] / topology.domain_link.bandwidth_bytes_per_s
        network_s = busier[2] / topology.network_link.bandwidth_bytes_per_s
        slowest = max(slowest, fabric_s, network_s)
    across = topology.num_hosts > 1
    return slowest + latency_s(topology, len(members), across_hosts=across)


def ring_s(topology: Topology, num_bytes: float, *, within_host: bool) -> float:
    """A reduce-scatter of so many bytes on each member."""
    members = topology.local_world_size if within_host else topology.world_size
    links = [topology.host_link.bandwidth_bytes_per_s]
    if not within_host and topology.num_hosts > 1:
        if topology.domain_size > topology.local_world_size:
            links.append(topology.domain_link.bandwidth_bytes_per_s)
        if topology.world_size > topology.domain_size:
            links.append(topology.domain_size * topology.network_link.bandwidth_bytes_per_s)
    across = not within_host and topology.num_hosts > 1
    moved = num_bytes * (members - 1) / members
    once_s = latency_s(topology, members, across_hosts=across)
    if across and topology.world_size > topology.domain_size:
        # Every domain is reached in as many rounds as it doubles from one domain to all.
        once_s *= math.ceil(math.log2(topology.world_size // topology.domain_size))
    return moved / min(links) + once_s


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

    sources: ClassVar[tuple[str, ...]] = ("test",)

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
    first, second, indices = model.family_growth(work, family)
    assert indices.tolist() == [30.0, 0.0, 0.0, 0.0]
    assert first.tolist() == [0.0, 1000.0, 1000.0, 1000.0]
    assert not second.any()


def test_without_gradients_there_is_no_all_reduce() -> None:
    """Not even its latency: no dense part and no replicated table."""
    bare = make_dense(num_dense_features=0, bottom_mlp=(), top_mlp=())
    model = stage_model(system((1, 2, 1)), dense=bare)
    work = np.zeros((2, NUM_COLUMNS))
    assert float(model.times(work, Scale()).tail_bucket_s.squeeze()) == 0.0
    work[1, REPLICATED] = 4.0
    assert float(model.times(work, Scale()).tail_bucket_s.squeeze()) > 2 * 10e-6


# ------------------------------------------------------------------ gradients of replicated layers


@CHECK
@given(cases())
def test_the_last_all_reduce_has_dense_and_replicated_gradients(case: Case) -> None:
    """A ring there and back over the bytes of the rank with most of them."""
    topology = case.model.topology
    bottom = (13 * 64 + 64) + (64 * 64 + 64)
    interaction = 3 + 64
    # pairs of three vectors (two features and the bottom's), and the 64 elements of the bottom
    top = (interaction * 128 + 128) + (128 * 1 + 1)
    replicated = float(case.work[:, REPLICATED].max())
    times = case.model.times(case.work, Scale())
    assert times.bucket_s == ()
    num_bytes = (bottom + top) * 4 + replicated
    expected = 2 * ring_s(topology, num_bytes, within_host=False)
    assert float(times.tail_bucket_s.squeeze()) == pytest.approx(expected, rel=1e-9)


def test_a_large_top_is_reduced_in_equal_buckets_of_at_most_25_mib() -> None:
    """64 MiB and a little: three buckets; the last one carries the bottom as well."""
    topology = system((1, 2, 1))
    dense = make_dense(top_mlp=(4096, 4096, 1))
    model = stage_model(topology, dense=dense)
    times = model.times(np.zeros((2, NUM_COLUMNS)), Scale())
    top = 4 * sum(i * o + o for i, o in ((67, 4096), (4096, 4096), (4096, 1)))
    bottom = 4 * ((13 * 64 + 64) + (64 * 64 + 64))
    count = math.ceil(top / (25 * 2**20))
    assert count == 3
    bucket_s = 2 * ring_s(topology, top / count, within_host=False)
    assert [float(b.squeeze()) for b in times.bucket_s] == pytest.approx([bucket_s] * (count - 1))
    tail_s = 2 * ring_s(topology, top / count + bottom, within_host=False)
    assert float(times.tail_bucket_s.squeeze()) == pytest.approx(tail_s)


def test_buckets_are_at_most_eight() -> None:
    model = stage_model(system((1, 2, 1)), dense=make_dense(top_mlp=(16384, 16384, 1)))
    assert len(model.times(np.zeros((2, NUM_COLUMNS)), Scale()).bucket_s) == 7


# ------------------------------------------------------------------ all together


@CHECK
@given(cases(), st.integers(0, 2**32))
def test_each_kind_of_time_has_a_factor_of_its_own(case: Case, seed: int) -> None:
    """A factor multiplies every stage of its kind, and no other one."""
    kinds = {
        "lookup_ratio": ("lookup_forward_s", "lookup_backward_s", "cache_fetch_s"),
        "collective_ratio": ("input_splits_s", "tail_bucket_s"),
        "dense_ratio": tuple(DENSE.__slots__),
        "host_ratio": ("bottom_host_s", "top_host_s", "lookup_host_s", "collective_host_s"),
    }
    factor = float(np.random.default_rng(seed).uniform(1.1, 3.0))
    plain = case.model.times(case.work, Scale())
    for kind in kinds:
        scaled = case.model.times(case.work, replace(Scale(), **{kind: np.array([factor])}))
        for other, names in kinds.items():
            by = factor if other == kind else 1.0
            for name in names:
                expected = by * np.asarray(getattr(plain, name))
                assert np.allclose(getattr(scaled, name), expected, rtol=1e-12), (kind, name)
        by = factor if kind == "collective_ratio" else 1.0
        for one, two in zip(plain.families, scaled.families, strict=True):
            assert np.allclose(two.input_s, by * one.input_s, rtol=1e-12)
            for (_, a), (_, b) in zip(one.outputs_s, two.outputs_s, strict=True):
                assert np.allclose(b, by * a, rtol=1e-12)


@CHECK
@given(cases())
def test_many_plans_at_once_are_each_priced_as_alone(case: Case) -> None:
    both = np.stack([case.work, 0.5 * case.work])
    together = case.model.times(both, Scale())
    for index, work in enumerate(both):
        alone = case.model.times(work, Scale())
        for name in ("lookup_forward_s", "lookup_backward_s", "cache_fetch_s", "lookup_host_s"):
            assert np.array_equal(getattr(together, name)[index], getattr(alone, name))
        assert np.array_equal(together.tail_bucket_s[index], alone.tail_bucket_s)


def test_least_times_are_those_of_empty_ranks_with_so_many_calls() -> None:
    """On the fastest device, with nothing to look up or to exchange."""
    model = stage_model(system((1, 2, 1), (0.5, 2.0)))
    times = model.least_times(np.array([0.0, 3.0]))
    assert list(times.lookup_forward_s) == pytest.approx([0.0, 3 * LATENCY_S])
    assert list(times.lookup_backward_s) == pytest.approx([0.0, 9 * LATENCY_S])
    assert list(times.lookup_host_s) == pytest.approx([0.0, 225e-6])
    assert float(times.top_forward_s.squeeze()) == pytest.approx(DENSE.top_forward_s / 2.0)
    assert times.families == ()
    assert times.overlap_slowdown_ratio == 0.0


def test_an_input_rate_sets_a_floor() -> None:
    model = stage_model(system((1, 2, 1)), input_samples_per_s=1e6)
    times = model.times(np.zeros((2, NUM_COLUMNS)), Scale())
    assert times.floor_s == pytest.approx(2 * 512 / 1e6)
    assert stage_model(system((1, 2, 1))).times(np.zeros((2, NUM_COLUMNS)), Scale()).floor_s == 0.0


def test_the_columns_of_the_stand_in_are_those_of_a_lookup() -> None:
    assert len(FORWARD) == len(BACKWARD) == NUM_LOOKUP_WORK
