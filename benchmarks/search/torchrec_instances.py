"""Instances on which TorchRec's planner and ours are compared: ``tables@ranks[/variant]``.

``criteo26`` are the tables of MLPerf's DLRM-DCNv2 (rows and multi-hot sizes of its reference);
``synthetic100`` and the like draw log-normal rows (1e3 to 1e8, median 3e5), widths of 4 to 256
columns in fours, and log-normal pooling factors (1 to 200, median 5). Systems have 8 ranks of
80 GiB per host and TorchRec's default bandwidths. Variants: ``a100`` (data-sheet bandwidths of an
A100 80 GB with 200 Gb/s per rank), ``tight`` (memory for 95 % of which tables are needed even when
all go where they take least).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Final

from costmodels.distribution.uniform import Uniform
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Device, Host, Link, Topology
from costmodels.torchrec_estimates import TorchrecMachine, TorchrecTable, constants, shard_storage
from costmodels.units import GB, GIB, US
from costmodels.workload import DataType, Feature, Table, Workload

LOCAL: Final = 8
SIZES: Final = (100, 300, 856)
RANKS: Final = (8, 16, 64, 128)
TIGHT_RATIO: Final = 0.95
NAMES: Final = (
    "criteo26@8",
    "criteo26@16",
    "criteo26@8/a100",
    "criteo26@16/a100",
    *(f"synthetic{n}@{w}" for n in SIZES for w in RANKS),
    "synthetic100@8/tight",
    "synthetic300@16/tight",
)

CRITEO_ROWS: Final = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
    *(590_152, 12_973, 108, 36),
)
CRITEO_POOLING: Final = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One comparison."""

    name: str
    workload: Workload
    topology: Topology


def instance(name: str) -> Instance:
    """The instance of that name."""
    size, _, variant = name.partition("/")
    tables, _, ranks = size.partition("@")
    workload = (
        criteo() if tables == "criteo26" else synthetic(int(tables.removeprefix("synthetic")))
    )
    topology = system(int(ranks), a100=variant == "a100")
    if variant == "tight":
        topology = _tightened(workload, topology)
    return Instance(name=name, workload=workload, topology=topology)


def criteo() -> Workload:
    """26 tables of 128 columns, 8192 samples per rank."""
    shapes = [(r, 128, float(p)) for r, p in zip(CRITEO_ROWS, CRITEO_POOLING, strict=True)]
    return _workload("criteo26", shapes, 8192)


def synthetic(tables: int, seed: int = 0) -> Workload:
    """Tables of many sizes, widths and pooling factors, 4096 samples per rank."""
    draw = random.Random(20240 + tables + 1_000_003 * seed)
    shapes = []
    for _ in range(tables):
        rows = int(min(1e8, max(1e3, draw.lognormvariate(math.log(3e5), 2.0))))
        dim = 4 * draw.randint(1, 64)
        pooling = min(200.0, max(1.0, draw.lognormvariate(math.log(5.0), 1.2)))
        shapes.append((rows, dim, round(pooling, 2)))
    return _workload(f"synthetic{tables}", shapes, 4096)


def system(ranks: int, *, a100: bool = False) -> Topology:
    """Hosts of eight ranks; TorchRec reads bandwidths and memories only."""
    device = Device(
        name="80 GiB",
        hbm_capacity_bytes=80.0 * GIB,
        hbm_bandwidth_bytes_per_s=2039.0 * GB if a100 else constants.HBM_BANDWIDTH_BYTES_PER_S,
        l2_capacity_bytes=40e6,
        l2_bandwidth_bytes_per_s=4000.0 * GB,
        flops_per_s=((DataType.FP32, 19.5e12),),
        flops_efficiency_ratio=0.7,
        kernel_latency_s=2 * US,
        launch_latency_s=5 * US,
        row_half_bytes=32.0,
        update_efficiency_ratio=0.6,
        sort_rate_per_s=5e9,
    )
    inside = 300.0 * GB if a100 else constants.INTRA_HOST_BANDWIDTH_BYTES_PER_S
    across = 25.0 * GB if a100 else constants.INTER_HOST_BANDWIDTH_BYTES_PER_S
    return Topology(
        name="a100" if a100 else "torchrec defaults",
        device=device,
        host=Host(
            ddr_capacity_bytes=LOCAL * constants.DDR_CAPACITY_BYTES,
            ddr_bandwidth_bytes_per_s=51.0 * GIB,
            device_link_bandwidth_bytes_per_s=constants.DEVICE_LINK_BANDWIDTH_BYTES_PER_S,
        ),
        num_hosts=ranks // LOCAL,
        local_world_size=LOCAL,
        domain_size=LOCAL,
        host_link=Link(latency_s=10 * US, bandwidth_bytes_per_s=inside),
        domain_link=Link(latency_s=10 * US, bandwidth_bytes_per_s=inside),
        network_link=Link(latency_s=20 * US, bandwidth_bytes_per_s=across),
    )


def _workload(name: str, shapes: list[tuple[int, int, float]], batch: int) -> Workload:
    tables = tuple(
        Table(
            name=f"t{i}",
            num_embeddings=rows,
            embedding_dim=dim,
            features=(Feature(name=f"f{i}", pooling_factor=pooling),),
            distribution=Uniform(num_embeddings=rows),
        )
        for i, (rows, dim, pooling) in enumerate(shapes)
    )
    return Workload(name=name, tables=tables, local_batch_size=batch)


def _tightened(workload: Workload, topology: Topology) -> Topology:
    """Device memory of which all tables, each on one rank, take ``TIGHT_RATIO``."""
    machine = TorchrecMachine.of(topology)
    needed = sum(
        shard_storage(
            TorchrecTable.of(t, workload),
            machine,
            ShardingType.TABLE_WISE,
            ComputeKernel.FUSED,
            num_rows=t.num_embeddings,
            num_cols=t.embedding_dim,
        ).hbm_bytes
        for t in workload.tables
    )
    kept = 1 - constants.RESERVED_RATIO
    capacity = topology.device.hbm_capacity_bytes
    inputs = kept * capacity - machine.device_limits_bytes(workload)[0]
    size = (needed / TIGHT_RATIO / topology.world_size + inputs) / kept
    return replace(topology, device=replace(topology.device, hbm_capacity_bytes=size))
