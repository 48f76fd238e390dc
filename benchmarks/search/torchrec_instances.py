"""Instances on which TorchRec's planner and ours are compared: ``tables@ranks[/variant+variant]``.

Tables:

- ``criteo26``: those of MLPerf's DLRM-DCNv2 (rows and multi-hot sizes of its reference).
- ``synthetic100`` and the like: log-normal rows (1e3 to 1e8, median 3e5), widths of 4 to 256
  columns in fours, log-normal pooling factors (1 to 200, median 5).
- ``skewed100``: the same with long tails (rows 1e2 to 2e8, median 3e4, sigma 3; pooling factors 1
  to 500, median 2, sigma 2), so that few tables have most of the bytes and few most of the lookups.
- ``mixed100``: as ``synthetic``, but each table has one to four features, and fp32 or fp16 weights.

Systems have 8 ranks of 80 GiB per host and TorchRec's default bandwidths. Variants:

- ``a100``: data-sheet bandwidths of an A100 80 GB with 200 Gb/s per rank.
- ``tight``: devices of which all tables, each whole on one rank, take 95 %.
- ``cached``: devices of which they would take 150 %, so that some must lie in host memory, and
  caches of 10 % of a table, as a constraint for all planners.
- ``codecs``: outputs travel as fp16, gradients as bf16.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Final

from costmodels import torchrec_estimates as constants
from costmodels.distribution.uniform import Uniform
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Device, Host, Link, Topology
from costmodels.torchrec_estimates import TorchrecMachine, TorchrecShard, TorchrecTable
from costmodels.training.communication import Communication, Precision
from costmodels.units import GB, GIB, US
from costmodels.workload import DataType, Feature, Table, Workload

LOCAL: Final = 8
FILLED_RATIO: Final = {"tight": 0.95, "cached": 1.5}
"""Share of all device memory that the tables take, each whole on one rank."""
CACHE_LOAD_FACTOR: Final = 0.1
NAMES: Final = (
    *("criteo26@8", "criteo26@16", "synthetic100@8", "synthetic100@16", "synthetic100@64"),
    *("synthetic300@64", "synthetic300@128", "synthetic856@8", "synthetic856@16"),
    *("synthetic856@64", "skewed100@8", "skewed100@16", "skewed300@16", "skewed60@16/tight"),
    *("synthetic100@8/tight", "mixed100@8", "mixed60@32", "criteo26@16/codecs"),
    *("synthetic100@16/cached", "mixed60@16/codecs+cached"),
)
"""The twenty that the benchmark runs."""

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
    """One comparison; caches have ``cache_load_factor_ratio`` of a table where it is not None."""

    name: str
    workload: Workload
    topology: Topology
    cache_load_factor_ratio: float | None = None


def instance(name: str) -> Instance:
    """The instance of that name."""
    size, _, named = name.partition("/")
    variants = named.split("+") if named else []
    tables, _, ranks = size.partition("@")
    family = tables.rstrip("0123456789")
    workload = criteo() if tables == "criteo26" else _DRAWN[family](int(tables[len(family) :]))
    if "codecs" in variants:
        codecs = Communication.of(Precision.FP16, Precision.BF16)
        coded = tuple(replace(t, communication=codecs) for t in workload.tables)
        workload = replace(workload, tables=coded)
    topology = system(int(ranks), a100="a100" in variants)
    for variant in variants:
        if variant in FILLED_RATIO:
            topology = _filled(workload, topology, FILLED_RATIO[variant])
    cached = CACHE_LOAD_FACTOR if "cached" in variants else None
    return Instance(name=name, workload=workload, topology=topology, cache_load_factor_ratio=cached)


def criteo() -> Workload:
    """26 tables of 128 columns, 8192 samples per rank."""
    shapes = [(r, 128, float(p)) for r, p in zip(CRITEO_ROWS, CRITEO_POOLING, strict=True)]
    return _workload("criteo26", shapes, 8192)


def synthetic(tables: int, seed: int = 0) -> Workload:
    """Tables of many sizes, widths and pooling factors, 4096 samples per rank."""
    draw = random.Random(20240 + tables + 1_000_003 * seed)
    shapes = []
    for _ in range(tables):
        rows = _long_tailed(draw, 3e5, 2.0, 1e3, 1e8)
        dim = 4 * draw.randint(1, 64)
        shapes.append((int(rows), dim, round(_long_tailed(draw, 5.0, 1.2, 1.0, 200.0), 2)))
    return _workload(f"synthetic{tables}", shapes, 4096)


def skewed(tables: int) -> Workload:
    """Few tables with most of the bytes, and few with most of the lookups."""
    draw = random.Random(51_000 + tables)
    shapes = []
    for _ in range(tables):
        rows = _long_tailed(draw, 3e4, 3.0, 1e2, 2e8)
        dim = 4 * draw.randint(1, 64)
        shapes.append((int(rows), dim, round(_long_tailed(draw, 2.0, 2.0, 1.0, 500.0), 2)))
    return _workload(f"skewed{tables}", shapes, 4096)


def mixed(tables: int) -> Workload:
    """Tables of one to four features, with fp32 or fp16 weights."""
    draw = random.Random(62_000 + tables)
    found = []
    for table in synthetic(tables, seed=1).tables:
        lengths = [
            round(_long_tailed(draw, 3.0, 1.2, 1.0, 100.0), 2) for _ in range(draw.randint(1, 4))
        ]
        features = tuple(
            Feature(name=f"{table.name}_{i}", pooling_factor=x) for i, x in enumerate(lengths)
        )
        dtype = draw.choice((DataType.FP32, DataType.FP16))
        found.append(replace(table, features=features, dtype=dtype))
    return Workload(name=f"mixed{tables}", tables=tuple(found), batch_size_per_rank=4096)


def _long_tailed(
    draw: random.Random, median: float, sigma: float, least: float, most: float
) -> float:
    """A log-normal number within limits."""
    return min(most, max(least, draw.lognormvariate(math.log(median), sigma)))


_DRAWN: Final = {"synthetic": synthetic, "skewed": skewed, "mixed": mixed}


_MACHINE: Final = TorchrecMachine(world_size=LOCAL, local_world_size=LOCAL, group_size=LOCAL)
"""Has TorchRec's default bandwidths."""


def system(ranks: int, *, a100: bool = False) -> Topology:
    """Hosts of eight ranks; TorchRec reads bandwidths and memories only."""
    device = Device(
        name="80 GiB",
        hbm_capacity_bytes=80.0 * GIB,
        hbm_bandwidth_bytes_per_s=2039.0 * GB if a100 else _MACHINE.hbm_bandwidth_bytes_per_s,
        l2_capacity_bytes=40e6,
        l2_bandwidth_bytes_per_s=4000.0 * GB,
        flops_per_s=((DataType.FP32, 19.5e12),),
        flops_efficiency_ratio=0.7,
        kernel_latency_s=2 * US,
        row_half_bytes=32.0,
        update_efficiency_ratio=0.6,
        sort_rate_per_s=5e9,
    )
    inside = 300.0 * GB if a100 else _MACHINE.intra_host_bandwidth_bytes_per_s
    across = 25.0 * GB if a100 else _MACHINE.inter_host_bandwidth_bytes_per_s
    return Topology(
        name="a100" if a100 else "torchrec defaults",
        device=device,
        host=Host(
            ddr_capacity_bytes=LOCAL * constants.DDR_CAPACITY_BYTES,
            ddr_bandwidth_bytes_per_s=51.0 * GIB,
            device_link_bandwidth_bytes_per_s=_MACHINE.device_link_bandwidth_bytes_per_s,
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
    return Workload(name=name, tables=tables, batch_size_per_rank=batch)


def _filled(workload: Workload, topology: Topology, ratio: float) -> Topology:
    """Device memory of which all tables, each whole on one rank, take ``ratio``."""
    machine = TorchrecMachine.of(topology)
    needed = sum(
        TorchrecShard(
            TorchrecTable.of(t, workload),
            machine,
            ShardingType.TABLE_WISE,
            ComputeKernel.FUSED,
            num_cols=t.embedding_dim,
        ).storage(t.num_embeddings)[0]
        for t in workload.tables
    )
    kept = 1 - constants.RESERVED_RATIO
    capacity = topology.device.hbm_capacity_bytes
    inputs = kept * capacity - machine.device_limits_bytes(workload)[0]
    size = (needed / ratio / topology.world_size + inputs) / kept
    return replace(topology, device=replace(topology.device, hbm_capacity_bytes=size))
