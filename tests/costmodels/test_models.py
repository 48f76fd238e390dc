"""The default lookup and collective models against numbers worked by hand."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import NUM_LEVELS, LinkLevel
from costmodels.distribution.uniform import Uniform
from costmodels.lookup.base import NUM_LOOKUP_WORK, LookupWork
from costmodels.lookup.roofline import Roofline
from costmodels.sharding import ComputeKernel
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import Optimizer, Pooling
from tests.lookups import OneShard, work_of_one
from tests.strategies import make_device, make_table, make_topology

ROWS, COLS, INDICES, BAGS = 1_000_000, 64, 1000.0, 100.0


def shard(kernel: ComputeKernel) -> OneShard:
    """A thousand indices on a million rows of 256 bytes: nearly all of them distinct."""
    table = make_table(num_embeddings=ROWS, distribution=Uniform(num_embeddings=ROWS))
    return OneShard(
        table=table,
        kernel=kernel,
        row_offset=0,
        num_rows=ROWS,
        num_cols=COLS,
        num_indices=INDICES,
        num_table_indices=INDICES,
        num_bags=BAGS,
        output_element_bytes=4,
        index_bytes=8,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        cache_load_factor_ratio=0.1 if kernel is ComputeKernel.FUSED_UVM_CACHING else None,
    )


TOPOLOGY = make_topology(device=make_device(l2_capacity_bytes=0.0))
UNIQUE = ROWS * -np.expm1(INDICES * np.log1p(-1 / ROWS))


def work_of(kernel: ComputeKernel) -> dict[str, float]:
    work = work_of_one(Roofline(), shard(kernel), TOPOLOGY)
    return {c.name: float(work[c]) for c in LookupWork if work[c]}


def test_fused_work_by_hand() -> None:
    """Rows of 256 bytes; 32 more for a random read, 4 of Adagrad state, update efficiency 0.6."""
    assert work_of(ComputeKernel.FUSED) == pytest.approx(
        {
            "INDICES": 1000,
            "STREAM_DRAM": 1000 * 8 + 100 * (8 + 256),
            "FORWARD_ROWS_DRAM": 1000 * (256 + 32),
            "FORWARD_ROWS_L2": 1000 * 256,
            "BACKWARD_GRADIENTS_L2": 900 * 256,
            "BACKWARD_ROWS_DRAM": 100 * 256 + 2 * UNIQUE * (256 + 4 + 32) / 0.6,
        },
        rel=1e-9,
    )


def test_an_update_per_index_by_hand() -> None:
    """No sort; rows that miss are updated beside atomic additions in the second-level cache."""
    table = replace(shard(ComputeKernel.FUSED).table, row_update=RowUpdate.PER_INDEX)
    one = replace(shard(ComputeKernel.FUSED), table=table)
    work = work_of_one(Roofline(), one, TOPOLOGY)
    device = TOPOLOGY.device
    moved = 100 * 256 + 2 * 1000 * (256 + 4 + 32) / 0.6
    slower = device.hbm_bandwidth_bytes_per_s / device.l2_bandwidth_bytes_per_s
    added = 10.6 * 1000 * 256 * slower
    assert work[LookupWork.BACKWARD_ROWS_DRAM] == pytest.approx(np.hypot(moved, added))
    assert work[LookupWork.INDICES] == work[LookupWork.BACKWARD_GRADIENTS_L2] == 0
    unsorted = replace(one, table=replace(table, row_update=RowUpdate.DEDUPLICATED_WITHOUT_SORT))
    default = work_of_one(Roofline(), shard(ComputeKernel.FUSED), TOPOLOGY)
    default[LookupWork.INDICES] = 0.0
    np.testing.assert_array_equal(work_of_one(Roofline(), unsorted, TOPOLOGY), default)


def test_host_memory_work_by_hand() -> None:
    """Rows travel over the host link and are read from the second-level cache all the same."""
    assert work_of(ComputeKernel.FUSED_UVM) == pytest.approx(
        {
            "INDICES": 1000,
            "STREAM_DRAM": 1000 * 8 + 100 * (8 + 256),
            "FORWARD_ROWS_L2": 1000 * 256,
            "FORWARD_HOST_LINK": 1000 * (256 + 32),
            "BACKWARD_GRADIENTS_L2": 900 * 256,
            "BACKWARD_ROWS_DRAM": 100 * 256,
            "BACKWARD_HOST_LINK": 2 * UNIQUE * (256 + 4 + 32) / 1.66,
        },
        rel=1e-9,
    )


def test_cached_work_by_hand() -> None:
    """A tenth of a uniform table is cached: nine tenths come in and go out; state stays outside."""
    cached = work_of(ComputeKernel.FUSED_UVM_CACHING)
    moved = 2 * 0.9 * UNIQUE * (256 + 32) / 1.66
    assert cached["FORWARD_HOST_LINK"] == pytest.approx(moved, rel=1e-3)
    updated = 100 * 256 + 2 * UNIQUE * (256 + 32) / 0.6
    assert cached["BACKWARD_ROWS_DRAM"] == pytest.approx(updated, rel=1e-9)
    assert cached["BACKWARD_HOST_LINK"] == pytest.approx(2 * UNIQUE * (4 + 32) / 1.66, rel=1e-9)
    assert cached["CACHE_INDICES"] == 1000


def test_sgd_has_no_state_to_fetch() -> None:
    plain = dataclasses.replace(shard(ComputeKernel.FUSED_UVM_CACHING), optimizer=Optimizer.SGD)
    assert work_of_one(Roofline(), plain, TOPOLOGY)[LookupWork.BACKWARD_HOST_LINK] == 0


def test_unpooled_lookups_write_less_efficiently() -> None:
    pooled = shard(ComputeKernel.FUSED)
    table = dataclasses.replace(pooled.table, pooling=Pooling.NONE)
    both = [
        work_of_one(Roofline(), s, TOPOLOGY)[LookupWork.STREAM_DRAM]
        for s in (pooled, dataclasses.replace(pooled, table=table))
    ]
    assert both[1] - both[0] == pytest.approx(100 * 256 * (1 / 0.644 - 1))


def test_replicated_work_passes_over_the_whole_gradient() -> None:
    work = work_of(ComputeKernel.DENSE)
    passes = 100 * 256 + 6 * ROWS * COLS * 4 + UNIQUE * (256 + 4 + 32) / 0.6
    assert work["BACKWARD_ROWS_DRAM"] == pytest.approx(passes, rel=1e-9)


def test_forward_time_is_a_smooth_maximum() -> None:
    """1 s of DRAM beside 1 s of cache take 2^(1/4) s; beside 0.5 s, little more than 1."""
    device, work = TOPOLOGY.device, np.zeros(NUM_LOOKUP_WORK)
    work[LookupWork.STREAM_DRAM] = 0.25 * device.hbm_bandwidth_bytes_per_s
    work[LookupWork.FORWARD_ROWS_DRAM] = 0.75 * device.hbm_bandwidth_bytes_per_s
    assert float(Roofline().forward_time(work, TOPOLOGY)) == pytest.approx(1)
    work[LookupWork.FORWARD_ROWS_L2] = device.l2_bandwidth_bytes_per_s
    assert float(Roofline().forward_time(work, TOPOLOGY)) == pytest.approx(2**0.25)
    work[LookupWork.FORWARD_ROWS_L2] /= 2
    assert float(Roofline().forward_time(work, TOPOLOGY)) == pytest.approx(1.0625**0.25)
    work[LookupWork.FORWARD_HOST_LINK] = 3 * TOPOLOGY.host.device_link_bandwidth_bytes_per_s
    assert float(Roofline().forward_time(work, TOPOLOGY)) == pytest.approx(3 + 1.0625**0.25)
    work[LookupWork.CACHE_INDICES] = device.sort_rate_per_s
    assert float(Roofline().forward_time(work, TOPOLOGY)) == pytest.approx(11 + 1.0625**0.25)


def test_backward_time_is_a_sum() -> None:
    device, work = TOPOLOGY.device, np.zeros(NUM_LOOKUP_WORK)
    work[LookupWork.INDICES] = device.sort_rate_per_s
    work[LookupWork.BACKWARD_GRADIENTS_L2] = 2 * device.l2_bandwidth_bytes_per_s
    work[LookupWork.BACKWARD_ROWS_DRAM] = 3 * device.hbm_bandwidth_bytes_per_s
    work[LookupWork.BACKWARD_HOST_LINK] = 4 * TOPOLOGY.host.device_link_bandwidth_bytes_per_s
    assert float(Roofline().backward_time(work, TOPOLOGY)) == pytest.approx(10)
    work[LookupWork.CACHE_INDICES] = device.sort_rate_per_s
    assert float(Roofline().backward_time(work, TOPOLOGY)) == pytest.approx(10.7)


# ------------------------------------------------------------------ alpha-beta


def test_all_to_all_by_hand() -> None:
    """Host 200 GB/s, domain 150 GB/s, network 12 GB/s: fabric times add, the network is beside."""
    send, receive = np.zeros((2, 1, NUM_LEVELS))
    send[0, LinkLevel.HOST], receive[0, LinkLevel.DOMAIN] = 200e9, 300e9
    topology = make_topology(4, 4, domain_hosts=2)
    assert AlphaBeta().all_to_all(send, receive, topology)[0] == pytest.approx(1 + 2)
    receive[0, LinkLevel.NETWORK] = 48e9
    assert AlphaBeta().all_to_all(send, receive, topology)[0] == pytest.approx(4)


@pytest.mark.parametrize(
    ("hosts", "domain_hosts", "bandwidth"),
    [
        (1, 1, 200e9),  # inside a host
        (2, 2, 150e9),  # inside a domain
        (2, 1, 4 * 12e9),  # four ranks of a host drive the network
        (4, 2, 8 * 12e9),  # eight ranks of a domain do
        (64, 32, 150e9),  # and are then limited by their fabric
    ],
)
def test_reduce_scatter_by_hand(hosts: int, domain_hosts: int, bandwidth: float) -> None:
    topology = make_topology(hosts, 4, domain_hosts=domain_hosts)
    members = 4 * hosts
    found = AlphaBeta().reduce_scatter(np.array(1e9), topology, within_host=False)
    assert float(found) == pytest.approx(1e9 * (members - 1) / members / bandwidth)
    inside = AlphaBeta().reduce_scatter(np.array(1e9), topology, within_host=True)
    assert float(inside) == pytest.approx(1e9 * 0.75 / 200e9)


def test_fixed_times_are_latencies() -> None:
    one, rack = make_topology(1, 4), make_topology(2, 4, domain_hosts=2)
    many, model = make_topology(3, 4, domain_hosts=2), AlphaBeta()
    assert model.fixed_s(one, ranks=4, across_hosts=False) == pytest.approx(10e-6)
    assert model.fixed_s(rack, ranks=8, across_hosts=True) == pytest.approx(12e-6)
    assert model.fixed_s(many, ranks=12, across_hosts=True) == pytest.approx(25e-6)
    assert model.fixed_s(many, ranks=4, across_hosts=False) == pytest.approx(10e-6)
