"""Every stage against the same arithmetic done by hand: plain loops over ranks, pairs and kernels.

The lookup model and the dense model are stand-ins with known answers, so that what is tested is
how :mod:`costmodels.stages` puts times together. Collectives cost latency plus bytes over
bandwidth, which is simple enough to write down again.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.dense.base import dense_layers
from costmodels.lookup.base import (
    KERNELS,
    NUM_LOOKUP_WORK,
    LookupWork,
)
from costmodels.shard_work.work import (
    EXCHANGING_TYPES,
    NUM_COLUMNS,
    REPLICATED,
    call_column,
)
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.stages.host import HostCosts
from costmodels.uncertainty import Scale
from costmodels.workload import DenseArch, HostProfile
from tests.costmodels.stages.stand_ins import (
    BACKWARD,
    CALL_S,
    CHECK,
    DENSE,
    FORWARD,
    LATENCY_S,
    Case,
    cases,
    ring_s,
    stage_model,
    system,
)
from tests.lookups import lookup_columns
from tests.strategies import make_dense, make_host, make_table, make_workload

# ------------------------------------------------------------------ compute

LOOKUP_S = 95.0 * make_host().dispatch_s + 10.0 * make_host().launch_s
"""Host seconds of a fused lookup."""


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
    assert list(times.lookup_host_s) == pytest.approx([3 * LOOKUP_S, LOOKUP_S])


# ------------------------------------------------------------------ host


@CHECK
@given(cases())
def test_host_seconds_of_lookups_count_calls(case: Case) -> None:
    """95 dispatches and 10 launches for each."""
    times = case.model.times(case.work, Scale())
    expected = [LOOKUP_S * case.calls(rank) for rank in case.ranks]
    assert list(times.lookup_host_s) == pytest.approx(expected, rel=1e-12)


def test_host_seconds_of_the_dense_part_by_hand() -> None:
    """13 -> 64 -> 64 below; concatenation, dot product, 128 and 1 above; two operators a layer."""
    model = stage_model(system((1, 2, 1)))
    times, host = model.times(np.zeros((2, NUM_COLUMNS)), Scale()), model.topology.host
    bottom_s = 2 * (3.2 + 2.2) * host.dispatch_s + 2 * (1.0 + 1.2) * host.launch_s
    assert float(times.bottom_host_s.squeeze()) == pytest.approx(bottom_s)
    assert float(times.top_host_s.squeeze()) > bottom_s
    assert float(times.collective_host_s.squeeze()) == pytest.approx(8 * CALL_S)


def test_a_captured_graph_costs_the_host_nothing() -> None:
    work = np.ones((2, NUM_COLUMNS))
    times = stage_model(system((1, 2, 1)), cuda_graph=True).times(work, Scale())
    hosts = (times.bottom_host_s, times.top_host_s, times.collective_host_s, times.lookup_host_s)
    assert not any(np.any(seconds) for seconds in hosts)
    assert np.all(times.lookup_forward_s > 0)


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
        "host_ratio": (
            *("bottom_host_s", "top_host_s", "top_backward_host_s", "bottom_backward_host_s"),
            *("lookup_host_s", "lookup_backward_host_s", "collective_host_s", "optimizer_host_s"),
            *("input_copy_s", "copy_host_s"),
        ),
    }
    factor = float(np.random.default_rng(seed).uniform(1.1, 3.0))
    plain = case.model.times(case.work, Scale())
    for kind in kinds:
        scaled = case.model.times(case.work, Scale(**{kind: np.array([factor])}))
        for other, names in kinds.items():
            by = factor if other == kind else 1.0
            for name in names:
                expected = by * np.asarray(getattr(plain, name))
                assert np.allclose(getattr(scaled, name), expected, rtol=1e-12, atol=0), (
                    kind,
                    name,
                )
        by = factor if kind == "collective_ratio" else 1.0
        for one, two in zip(plain.families, scaled.families, strict=True):
            assert np.allclose(two.input_s, by * one.input_s, rtol=1e-12, atol=0)
            for (_, a), (_, b) in zip(one.outputs_s, two.outputs_s, strict=True):
                assert np.allclose(b, by * a, rtol=1e-12, atol=0)


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
    assert list(times.lookup_host_s) == pytest.approx([0.0, 3 * LOOKUP_S])
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


def test_without_a_dense_part_the_host_computes_no_loss() -> None:
    """Forward 0.4 and backward 0.6 of the loss stand with the top, where there is one."""
    with_top, without = (
        stage_model(system((1, 2, 1)), dense=dense).times(np.zeros((2, NUM_COLUMNS)), Scale())
        for dense in (make_dense(), DenseArch())
    )
    assert float(with_top.top_host_s.squeeze()) > 0
    assert float(without.top_host_s.squeeze()) == 0
    layers = dense_layers(make_workload(make_table(), dense=make_dense()))
    issued_by = make_workload(make_table()).issued_by
    costs = HostCosts(host=system((1, 2, 1)).host, issued_by=issued_by, reduces=True)
    operators_s = costs.forward_s(layers.top), costs.backward_s(layers.top)
    found_s = with_top.top_host_s, with_top.top_backward_host_s
    loss_s = [float(a.squeeze() - b) for a, b in zip(found_s, operators_s, strict=True)]
    assert loss_s == pytest.approx([0.4 * costs.call_s("loss"), 0.6 * costs.call_s("loss")])
    assert float(without.top_backward_host_s.squeeze()) == 0


@pytest.mark.parametrize("profile", [HostProfile.EAGER, HostProfile.EAGER_2021])
def test_the_host_waits_for_copies_of_memory_that_is_not_pinned(profile: HostProfile) -> None:
    model = stage_model(system((1, 2, 1)), host_profile=profile)
    times = model.times(np.zeros((2, NUM_COLUMNS)), Scale())
    assert times.copy_blocks_host == (profile is HostProfile.EAGER_2021)
