"""Random small tables, workloads, topologies, options and plans, for hypothesis."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.estimates import Provenance, Source
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    ShardingOption,
    ShardingType,
    Spread,
    TablePlacement,
    place,
)
from costmodels.topology import Device, Host, Link, Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.units import GB, GIB, MIB, US
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseParallelism,
    Feature,
    HostProfile,
    Interaction,
    Optimizer,
    Pipeline,
    Pooling,
    Table,
    Workload,
)

FUSED_KERNELS = (
    ComputeKernel.FUSED,
    ComputeKernel.FUSED_UVM,
    ComputeKernel.FUSED_UVM_CACHING,
)

# ------------------------------------------------------------------ fixed examples


def make_device(**changes: object) -> Device:
    """A device about the size of an A100."""
    values: dict[str, object] = {
        "name": "device",
        "hbm_capacity_bytes": 40.0 * GIB,
        "hbm_bandwidth_bytes_per_s": 1300.0 * GB,
        "l2_capacity_bytes": 40.0 * MIB,
        "l2_bandwidth_bytes_per_s": 4000.0 * GB,
        "flops_per_s": ((DataType.FP32, 19.5e12), (DataType.FP16, 312e12)),
        "flops_efficiency_ratio": 0.7,
        "kernel_latency_s": 2 * US,
        "row_half_bytes": 32.0,
        "update_efficiency_ratio": 0.6,
        "sort_rate_per_s": 5e9,
    }
    return Device(**{**values, **changes})  # type: ignore[arg-type]


def make_host(**changes: float) -> Host:
    """A host with PCIe 4."""
    values = {
        "ddr_capacity_bytes": 1000.0 * GIB,
        "ddr_bandwidth_bytes_per_s": 200.0 * GB,
        "device_link_bandwidth_bytes_per_s": 20.0 * GB,
    }
    return Host(**{**values, **changes})


def make_topology(
    num_hosts: int = 1, local_world_size: int = 4, *, domain_hosts: int = 1, **changes: object
) -> Topology:
    """Hosts of A100-like devices: NVLink inside, a slower network outside."""
    values: dict[str, object] = {
        "name": "test",
        "device": make_device(),
        "host": make_host(),
        "num_hosts": num_hosts,
        "local_world_size": local_world_size,
        "domain_size": domain_hosts * local_world_size,
        "host_link": Link(latency_s=10 * US, bandwidth_bytes_per_s=200.0 * GB),
        "domain_link": Link(latency_s=12 * US, bandwidth_bytes_per_s=150.0 * GB),
        "network_link": Link(latency_s=25 * US, bandwidth_bytes_per_s=12.0 * GB),
    }
    return Topology(**{**values, **changes})  # type: ignore[arg-type]


def make_table(name: str = "t0", **changes: object) -> Table:
    """A table of 10 000 x 64 with one feature of pooling factor 8 and a Zipf law."""
    rows = int(changes.get("num_embeddings", 10_000))  # type: ignore[call-overload]
    values: dict[str, object] = {
        "name": name,
        "num_embeddings": rows,
        "embedding_dim": 64,
        "features": (Feature(name=f"{name}_f", pooling_factor=8.0),),
        "distribution": Zipf(num_embeddings=rows, exponent=1.05),
    }
    return Table(**{**values, **changes})  # type: ignore[arg-type]


def make_dense(**changes: object) -> DenseArch:
    """A small DLRM."""
    values: dict[str, object] = {
        "num_dense_features": 13,
        "bottom_mlp": (64, 64),
        "top_mlp": (128, 1),
        "interaction": Interaction.DOT,
    }
    return DenseArch(**{**values, **changes})  # type: ignore[arg-type]


def make_workload(*tables: Table, **changes: object) -> Workload:
    """A workload of the given tables (two by default) with a small DLRM around them."""
    values: dict[str, object] = {
        "name": "test",
        "tables": tables or (make_table("t0"), make_table("t1", num_embeddings=500)),
        "batch_size_per_rank": 512,
        "dense": make_dense(),
    }
    return Workload(**{**values, **changes})  # type: ignore[arg-type]


def make_placement(
    table: Table,
    sharding_type: ShardingType,
    topology: Topology,
    *,
    kernel: ComputeKernel | None = None,
    where: tuple[int, ...] = (0,),
    column_widths: tuple[int, ...] | None = None,
    cache_load_factor_ratio: float | None = None,
) -> TablePlacement:
    """One table placed; fused (or dense) unless told otherwise."""
    replicated = sharding_type is ShardingType.DATA_PARALLEL
    option = ShardingOption(
        table=table.name,
        sharding_type=sharding_type,
        kernel=kernel or (ComputeKernel.DENSE if replicated else ComputeKernel.FUSED),
        column_widths=column_widths or (table.embedding_dim,),
        cache_load_factor_ratio=cache_load_factor_ratio,
    )
    return place(
        option,
        table.num_embeddings,
        where if option.num_pieces else (),
        world_size=topology.world_size,
        local_world_size=topology.local_world_size,
    )


# ------------------------------------------------------------------ distributions and tables


@st.composite
def laws(draw: DrawFn, num_embeddings: int | None = None) -> AbstractIndexDistribution:
    """Uniform or Zipf laws, hashed or in order of frequency."""
    rows = num_embeddings or draw(st.integers(1, 50_000))
    scattered = draw(st.booleans())
    if draw(st.booleans()):
        return Uniform(num_embeddings=rows, scattered=scattered)
    return Zipf(
        num_embeddings=rows,
        exponent=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.05, 1.3, 2.0])),
        shift=draw(st.sampled_from([0.0, 2.7, 100.0])),
        scattered=scattered,
    )


@st.composite
def tables(draw: DrawFn, name: str = "t0", *, max_rows: int = 50_000) -> Table:
    """Any small table."""
    rows = draw(st.one_of(st.integers(1, 40), st.integers(1, max_rows)))
    poolings = draw(
        st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0, 20.0, 100.0]), min_size=1, max_size=3)
    )
    pooling = draw(st.sampled_from([Pooling.SUM, Pooling.SUM, Pooling.MEAN, Pooling.NONE]))
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=draw(st.sampled_from([4, 8, 16, 32, 64, 128, 256])),
        features=tuple(
            Feature(name=f"{name}_f{i}", pooling_factor=p) for i, p in enumerate(poolings)
        ),
        distribution=draw(laws(rows)),
        dtype=draw(st.sampled_from([DataType.FP32, DataType.FP16, DataType.INT8])),
        pooling=pooling,
        is_weighted=draw(st.booleans()),
        row_update=draw(st.sampled_from([RowUpdate.DEDUPLICATED, *RowUpdate])),
        optimizer=draw(st.sampled_from([None, None, *Optimizer])),
        deduplicates_indices=pooling is Pooling.NONE and draw(st.booleans()),
    )


# ------------------------------------------------------------------ workloads


@st.composite
def dense_archs(draw: DrawFn) -> DenseArch:
    """No dense part, or a small DLRM with any interaction."""
    if draw(st.integers(0, 3)) == 0:
        return DenseArch()
    sizes = st.lists(st.sampled_from([1, 16, 64, 257]), min_size=0, max_size=3)
    top = tuple(draw(sizes))
    interaction = draw(st.sampled_from(list(Interaction))) if top else Interaction.DOT
    return DenseArch(
        num_dense_features=draw(st.sampled_from([0, 13])),
        bottom_mlp=tuple(draw(sizes)),
        top_mlp=top,
        interaction=interaction,
        dcn_num_layers=2 if interaction is Interaction.DCN else 0,
        dcn_low_rank_dim=8 if interaction is Interaction.DCN else 0,
        dtype=draw(st.sampled_from([DataType.FP32, DataType.FP16, DataType.FP8])),
    )


_PIPELINES = tuple(p for p in Pipeline if p is not Pipeline.LOOKAHEAD)
"""Those that need no further key."""


@st.composite
def workloads(
    draw: DrawFn, *, max_tables: int = 4, pipelines: tuple[Pipeline, ...] = _PIPELINES
) -> Workload:
    """Any small workload."""
    count = draw(st.integers(1, max_tables))
    profile = draw(st.sampled_from(list(HostProfile)))
    pipeline = draw(st.sampled_from(pipelines))
    whole = pipeline is Pipeline.HUGECTR
    return Workload(
        name="random",
        tables=tuple(draw(tables(f"t{i}")) for i in range(count)),
        batch_size_per_rank=draw(st.sampled_from([1, 16, 512, 8192])),
        dense=draw(dense_archs()),
        optimizer=draw(st.sampled_from(list(Optimizer))),
        output_dtype=draw(st.sampled_from([DataType.FP32, DataType.FP16])),
        gradient_dtype=draw(st.sampled_from([DataType.FP32, DataType.FP16])),
        index_bytes=draw(st.sampled_from([4, 8])),
        pipeline=pipeline,
        dense_parallelism=DenseParallelism.DDP
        if whole
        else draw(st.sampled_from(list(DenseParallelism))),
        cuda_graph=profile is not HostProfile.EAGER_2021 and draw(st.booleans()),
        host_profile=profile,
        between_steps_s=draw(st.sampled_from([None, None, 1e-3])),
        input_samples_per_s=draw(st.sampled_from([None, None, 1e5])),
    )


# ------------------------------------------------------------------ topologies


@st.composite
def links(draw: DrawFn) -> Link:
    """A link between Ethernet and NVLink."""
    return Link(
        latency_s=draw(st.sampled_from([0.0, 5 * US, 30 * US])),
        bandwidth_bytes_per_s=draw(st.sampled_from([1.0, 12.5, 200.0, 450.0])) * GB,
    )


@st.composite
def topologies(draw: DrawFn, *, max_hosts: int = 3, uneven: bool = True) -> Topology:
    """Up to three hosts of up to four ranks; domains may be larger than the system."""
    hosts, local = draw(st.integers(1, max_hosts)), draw(st.integers(1, 4))
    world = hosts * local
    device = make_device(
        l2_capacity_bytes=draw(st.sampled_from([0.0, 64.0 * 1024, 40.0 * MIB])),
        row_half_bytes=draw(st.sampled_from([0.0, 32.0, 200.0])),
        overlap_slowdown_ratio=draw(st.sampled_from([0.0, 0.0, 0.15, 0.4])),
        num_multiprocessors=draw(st.sampled_from([0, 108])),
    )
    speeds: tuple[float, ...] = ()
    capacities: tuple[float, ...] = ()
    if uneven and draw(st.booleans()):
        speeds = tuple(draw(st.sampled_from([0.3, 0.7, 1.0, 1.5])) for _ in range(world))
        capacities = tuple(draw(st.sampled_from([16.0, 40.0])) * GIB for _ in range(world))
    return Topology(
        name="random",
        device=device,
        host=make_host(),
        num_hosts=hosts,
        local_world_size=local,
        domain_size=draw(st.integers(1, 4)) * local,
        host_link=draw(links()),
        domain_link=draw(links()),
        network_link=draw(links()),
        speed_by_rank_ratio=speeds,
        hbm_capacity_by_rank_bytes=capacities,
        provenance=draw(provenances()),
    )


def provenances() -> SearchStrategy[tuple[Provenance, ...]]:
    """Sources of some numbers of a system."""
    names = (
        "device.hbm_bandwidth",
        "device.flops_efficiency_ratio",
        "host.eager_call",
        "links.network.bandwidth",
    )
    one = st.builds(
        Provenance,
        name=st.sampled_from(names),
        value=st.just("1"),
        source=st.sampled_from(list(Source)),
    )
    return st.lists(one, max_size=4).map(tuple)


# ------------------------------------------------------------------ options and plans


def splits(draw: DrawFn, width: int, max_pieces: int = 4) -> tuple[int, ...]:
    """Any widths that sum to ``width``."""
    cuts = draw(
        st.lists(st.integers(1, max(1, width - 1)), max_size=max_pieces - 1, unique=True).map(
            sorted
        )
    )
    edges = [0, *(c for c in cuts if c < width), width]
    return tuple(b - a for a, b in itertools.pairwise(edges))


@st.composite
def options(draw: DrawFn, table: Table) -> ShardingOption:
    """Any way to cut a table."""
    kind = draw(st.sampled_from(list(ShardingType)))
    kernel = ComputeKernel.DENSE
    if kind is not ShardingType.DATA_PARALLEL:
        kernel = draw(st.sampled_from(FUSED_KERNELS))
    split_types = (
        ShardingType.COLUMN_WISE,
        ShardingType.TABLE_COLUMN_WISE,
        ShardingType.GRID_SHARD,
    )
    widths: tuple[int, ...] = (table.embedding_dim,)
    if kind in split_types:
        widths = splits(draw, table.embedding_dim)
    caching = kernel is ComputeKernel.FUSED_UVM_CACHING
    return ShardingOption(
        table=table.name,
        sharding_type=kind,
        kernel=kernel,
        column_widths=widths,
        cache_load_factor_ratio=draw(st.sampled_from([0.01, 0.2, 0.9])) if caching else None,
    )


@st.composite
def placements(draw: DrawFn, table: Table, topology: Topology) -> TablePlacement:
    """Any placement that TorchRec's types can express."""
    option = draw(options(table))
    limit = topology.num_hosts if option.spread is Spread.HOSTS else topology.world_size
    where = tuple(draw(st.integers(0, limit - 1)) for _ in range(option.num_pieces))
    return place(
        option,
        table.num_embeddings,
        where,
        world_size=topology.world_size,
        local_world_size=topology.local_world_size,
    )


@st.composite
def plans(draw: DrawFn, workload: Workload, topology: Topology) -> Plan:
    """Any plan of a workload."""
    return Plan(placements=tuple(draw(placements(t, topology)) for t in workload.tables))


@st.composite
def planned_workloads(
    draw: DrawFn, *, max_tables: int = 4, max_hosts: int = 3, uneven: bool = True
) -> tuple[Workload, Topology, Plan]:
    """A workload, a topology, and a plan of the one on the other."""
    workload = draw(workloads(max_tables=max_tables))
    topology = draw(topologies(max_hosts=max_hosts, uneven=uneven))
    return workload, topology, draw(plans(workload, topology))
