"""Workload, topology, estimates: what they say, what they refuse, and that they are values."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import costmodels
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.errors import InvalidValueError
from costmodels.estimates import (
    RELATIVE_SIGMA,
    Estimate,
    HostMemory,
    MemoryLedger,
    Provenance,
    RankMemory,
    Source,
)
from costmodels.topology import Link
from costmodels.workload import DataType, DenseArch, Feature, Interaction, Optimizer, Pooling
from tests.strategies import (
    make_dense,
    make_device,
    make_host,
    make_table,
    make_topology,
    make_workload,
)


def dataclasses_of_the_package() -> list[type]:
    found = []
    for info in pkgutil.walk_packages(costmodels.__path__, "costmodels."):
        module = importlib.import_module(info.name)
        found += [
            value
            for value in vars(module).values()
            if inspect.isclass(value)
            and value.__module__ == module.__name__
            and dataclasses.is_dataclass(value)
        ]
    return found


def test_every_dataclass_is_frozen() -> None:
    kinds = dataclasses_of_the_package()
    assert len(kinds) > 25
    for kind in kinds:
        name = f"{kind.__module__}.{kind.__qualname__}"
        assert kind.__dataclass_params__.frozen, f"{name} is not frozen"  # type: ignore[attr-defined]


def test_workloads_and_topologies_are_values() -> None:
    assert make_workload() == make_workload()
    assert hash(make_workload()) == hash(make_workload())
    assert hash(make_topology()) == hash(make_topology())
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_workload().name = "other"  # type: ignore[misc]


# ------------------------------------------------------------------ workload


def test_a_table_knows_its_sizes() -> None:
    features = (Feature(name="a", pooling_factor=2.5), Feature(name="b", pooling_factor=1.0))
    table = make_table(num_embeddings=1000, dtype=DataType.FP16, features=features)
    assert table.row_bytes == 128
    assert table.weight_bytes == 128_000
    assert table.pooling_factor == 3.5
    assert table.outputs_per_sample == 2
    sequence = dataclasses.replace(table, pooling=Pooling.NONE)
    assert sequence.outputs_per_sample == 3.5
    workload = make_workload(table)
    assert workload.weight_bytes == 128_000
    assert workload.table("t0") is table
    with pytest.raises(InvalidValueError, match="workload 'test' has no table 't1'"):
        workload.table("t1")


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("fp32", 4), ("tf32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 1), ("int8", 1)],
)
def test_element_sizes(dtype: str, size: int) -> None:
    assert DataType(dtype).num_bytes == size


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        (Optimizer.SGD, 0),
        (Optimizer.NONE, 0),
        (Optimizer.ROWWISE_ADAGRAD, 4),
        (Optimizer.ADAGRAD, 256),
        (Optimizer.ADAM, 512),
        (Optimizer.ROWWISE_ADAM, 260),
    ],
)
def test_optimizer_state_of_a_row_of_64(optimizer: Optimizer, state: int) -> None:
    assert optimizer.state_bytes_per_row(64) == state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "a table needs a name"),
        ({"num_embeddings": 2**49}, "num_embeddings must be 1..2"),
        ({"embedding_dim": 0}, "embedding_dim must be 1..16384"),
        ({"embedding_dim": 20000}, "embedding_dim must be 1..16384"),
        ({"features": ()}, "needs at least one feature"),
        ({"distribution": Uniform(num_embeddings=7)}, "its index distribution 7"),
    ],
)
def test_broken_tables_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_table(**changes)


@pytest.mark.parametrize("pooling_factor", [-1.0, math.nan, math.inf, 2e6])
def test_broken_pooling_factors_are_refused(pooling_factor: float) -> None:
    with pytest.raises(InvalidValueError, match="pooling_factor must be 0"):
        Feature(name="f", pooling_factor=pooling_factor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size_per_rank": 0}, "batch_size_per_rank must be 1..1e8"),
        ({"tables": (), "dense": DenseArch()}, "at least one table or a dense part"),
        ({"tables": (make_table("x"), make_table("x"))}, "'x' appears twice"),
        ({"index_bytes": 2}, "index_bytes must be 4 or 8"),
        ({"reserved_bytes": -1.0}, "reserved_bytes must be at least 0 and finite, got"),
        ({"input_samples_per_s": 0.0}, "input_samples_per_s must be above 0"),
    ],
)
def test_broken_workloads_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_workload(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_mlp": (0,)}, r"top_mlp\[0\] must be 1..1e6"),
        ({"bottom_mlp": (10**7,)}, r"bottom_mlp\[0\] must be 1..1e6"),
        ({"num_dense_features": -1}, "num_dense_features must be"),
        ({"interaction": Interaction.DCN}, "needs dcn_num_layers and dcn_low_rank_dim"),
    ],
)
def test_broken_dense_parts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_dense(**changes)
    assert DenseArch().top_mlp == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_embeddings": 0}, "num_embeddings must be 1..2"),
        ({"exponent": -0.1}, "exponent must be 0..10"),
        ({"exponent": math.nan}, "exponent must be 0..10"),
        ({"exponent": 11.0}, "exponent must be 0..10"),
        ({"shift": -1.0}, "shift must be"),
        ({"shift": 1e13}, "shift must be"),
    ],
)
def test_broken_laws_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Zipf(**{"num_embeddings": 10, "exponent": 1.0, **changes})


def test_an_empty_uniform_law_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"num_embeddings must be 1..2.62, got 0"):
        Uniform(num_embeddings=0)


# ------------------------------------------------------------------ topology


def test_ranks_count_through_the_hosts() -> None:
    topology = make_topology(2, 4)
    assert topology.world_size == 8
    np.testing.assert_array_equal(topology.speeds(), np.ones(8))
    np.testing.assert_array_equal(topology.hbm_capacities(), np.full(8, 40 * 2.0**30))


def test_ranks_may_differ() -> None:
    topology = make_topology(
        1, 2, speed_by_rank_ratio=(1.0, 0.5), hbm_capacity_by_rank_bytes=(1e9, 2e9)
    )
    np.testing.assert_array_equal(topology.speeds(), [1.0, 0.5])
    np.testing.assert_array_equal(topology.hbm_capacities(), [1e9, 2e9])


def test_resizing_keeps_the_domain_where_it_fits() -> None:
    rack = make_topology(18, 4, domain_hosts=18)
    assert rack.resized(4, 4).domain_size == 72
    assert rack.resized(2, 5).domain_size == 70
    single = make_topology(1, 8, speed_by_rank_ratio=(1.0,) * 8)
    assert single.resized(2, 16).domain_size == 16
    assert single.resized(2, 16).speed_by_rank_ratio == ()


def test_unlisted_element_types_run_at_the_best_rate_of_a_wider_type() -> None:
    """A type is wider if it holds every value: bf16 does not hold those of fp16."""
    device = make_device()
    assert device.matrix_rate(DataType.FP16) == 312e12
    for dtype in (DataType.INT8, DataType.FP8, DataType.FP4):
        assert device.matrix_rate(dtype) == 312e12
    volta = replace(device, flops_per_s=((DataType.FP32, 15e12), (DataType.FP16, 125e12)))
    assert volta.rated_type(DataType.BF16) is DataType.FP32
    assert volta.rated_type(DataType.FP4) is DataType.FP16
    half = replace(device, flops_per_s=((DataType.BF16, 9e12), (DataType.FP8, 8e12)))
    assert half.rated_type(DataType.FP32) is DataType.FP8  # none is wider: the slowest


def test_the_weakest_source_counts() -> None:
    assert make_topology().weakest_source() is Source.USER
    known = tuple(
        Provenance(name="n", value="1", source=s) for s in (Source.MEASURED, Source.DATASHEET)
    )
    assert make_topology(provenance=known).weakest_source() is Source.DATASHEET
    assert [RELATIVE_SIGMA[s] for s in Source] == sorted(RELATIVE_SIGMA.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hosts": 0}, "num_hosts must be 1..2"),
        ({"local_world_size": 0}, "local_world_size must be 1..2"),
        ({"domain_size": 6}, "must be a multiple of gpus_per_host 4"),
        ({"domain_size": 0}, "domain_size must be 1..2"),
        ({"speed_by_rank_ratio": (1.0,)}, "need 4 entries, got 1"),
        ({"speed_by_rank_ratio": (1.0, 1.0, 0.0, 1.0)}, "must be above 0"),
        ({"hbm_capacity_by_rank_bytes": (1.0, 1.0, math.nan, 1.0)}, "must be above 0"),
    ],
)
def test_broken_topologies_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_topology(**changes)


def test_broken_parts_of_a_system_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="bandwidth_bytes_per_s must be above 0"):
        Link(latency_s=0.0, bandwidth_bytes_per_s=0.0)
    with pytest.raises(InvalidValueError, match="latency_s must be at least 0"):
        Link(latency_s=-1e-6, bandwidth_bytes_per_s=1.0)
    with pytest.raises(InvalidValueError, match="hbm_bandwidth_bytes_per_s must be above 0"):
        make_device(hbm_bandwidth_bytes_per_s=0.0)
    with pytest.raises(InvalidValueError, match=r"flops_per_s.* must be above 0"):
        make_device(flops_per_s=((DataType.FP32, 0.0),))
    with pytest.raises(InvalidValueError, match="at least"):
        make_device(flops_per_s=())
    with pytest.raises(InvalidValueError, match="kernel_latency_s must be at least 0"):
        make_device(kernel_latency_s=-1.0)
    with pytest.raises(InvalidValueError, match="ddr_capacity_bytes must be at least 0"):
        make_host(ddr_capacity_bytes=-1.0)
    with pytest.raises(
        InvalidValueError, match="device_link_bandwidth_bytes_per_s must be above 0"
    ):
        make_host(device_link_bandwidth_bytes_per_s=0.0)


# ------------------------------------------------------------------ estimates


@pytest.mark.parametrize(
    ("low", "time", "high"),
    [(2.0, 1.0, 3.0), (0.5, 1.0, 0.9), (-1.0, -1.0, -1.0), (0.0, math.nan, 1.0)],
)
def test_disordered_estimates_are_refused(low: float, time: float, high: float) -> None:
    with pytest.raises(InvalidValueError, match="needs 0 <= low <= time <= high"):
        Estimate(time_s=time, low_s=low, high_s=high, source=Source.USER)


def rank_memory(rank: int, capacity: float) -> RankMemory:
    return RankMemory(
        rank=rank,
        weights_bytes=1.0,
        optimizer_bytes=2.0,
        gradients_bytes=3.0,
        cache_bytes=4.0,
        buffers_bytes=5.0,
        dense_bytes=6.0,
        reserved_bytes=7.0,
        capacity_bytes=capacity,
        host_bytes=100.0,
    )


def test_a_ledger_adds_up_and_knows_its_fullest_rank() -> None:
    ranks = (rank_memory(0, 40.0), rank_memory(1, 28.0))
    host = HostMemory(host=0, used_bytes=200.0, capacity_bytes=200.0)
    ledger = MemoryLedger(ranks=ranks, hosts=(host,))
    assert ranks[0].used_bytes == 28
    assert [r.headroom_bytes for r in ranks] == [12, 0]
    assert ledger.fullest is ranks[1]
    assert ledger.fits
    too_full = dataclasses.replace(host, used_bytes=200.1)
    assert not dataclasses.replace(ledger, hosts=(too_full,)).fits
    assert not dataclasses.replace(ledger, ranks=(rank_memory(0, 27.9),)).fits
