"""Hand-made results, so that what a report prints can be checked against known numbers."""

from __future__ import annotations

from dataclasses import replace

from costmodels.distribution.uniform import Uniform
from costmodels.estimates import (
    CriticalStep,
    Estimate,
    HostMemory,
    IterationEstimate,
    MemoryLedger,
    Provenance,
    RankEstimate,
    RankMemory,
    Source,
    StageTime,
)
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.topology import Device, Host, Link, Topology
from costmodels.units import GB, GIB
from costmodels.workload import DataType, Feature, Table, Workload
from planner.problem import PlanningProblem
from planner.report.page import Block
from planner.report.sections.base import build_blocks
from planner.result import Candidate, PlanningResult, SolverReport
from planner.support.status import Status

DIM = 64


def make_topology(num_hosts: int = 1, local_world_size: int = 4) -> Topology:
    return Topology(
        name="test_box",
        device=Device(
            name="test_gpu",
            hbm_capacity_bytes=80 * GIB,
            hbm_bandwidth_bytes_per_s=2000 * GB,
            l2_capacity_bytes=40 * 1024**2,
            l2_bandwidth_bytes_per_s=5000 * GB,
            flops_per_s=((DataType.FP32, 2e13), (DataType.FP16, 3e14)),
            flops_efficiency_ratio=0.6,
            kernel_latency_s=5e-6,
            row_half_bytes=128.0,
            update_efficiency_ratio=0.5,
            sort_rate_per_s=1e9,
        ),
        host=Host(
            ddr_capacity_bytes=1024 * GIB,
            ddr_bandwidth_bytes_per_s=200 * GB,
            device_link_bandwidth_bytes_per_s=25 * GB,
            eager_call_s=4e-6,
        ),
        num_hosts=num_hosts,
        local_world_size=local_world_size,
        domain_size=local_world_size,
        host_link=Link(latency_s=5e-6, bandwidth_bytes_per_s=250 * GB),
        domain_link=Link(latency_s=5e-6, bandwidth_bytes_per_s=250 * GB),
        network_link=Link(latency_s=1e-5, bandwidth_bytes_per_s=25 * GB),
        provenance=(
            Provenance(name="hbm_capacity", value="80 GiB", source=Source.DATASHEET, reference="a"),
            Provenance(name="host_link", value="250 GB/s", source=Source.MEASURED),
        ),
    )


def make_workload(num_tables: int = 4, *, prefix: str = "table") -> Workload:
    return Workload(
        name="sample",
        batch_size_per_rank=4096,
        tables=tuple(
            Table(
                name=f"{prefix}_{i}",
                num_embeddings=1000 * (i + 1),
                embedding_dim=DIM,
                features=(Feature(name=f"feature_{i}", pooling_factor=float(i + 1)),),
                distribution=Uniform(num_embeddings=1000 * (i + 1)),
            )
            for i in range(num_tables)
        ),
    )


def make_plan(workload: Workload, topology: Topology, *, shift: int = 0) -> Plan:
    """Table-wise round robin; every fifth table replicated, every seventh row-wise."""
    placements = []
    for i, table in enumerate(workload.tables):
        kind, kernel = ShardingType.TABLE_WISE, ComputeKernel.FUSED
        where: tuple[int, ...] = ((i + shift) % topology.world_size,)
        if i % 5 == 4:
            kind, kernel, where = ShardingType.DATA_PARALLEL, ComputeKernel.DENSE, ()
        elif i % 7 == 6:
            kind, where = ShardingType.ROW_WISE, ()
        option = ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=kernel,
            column_widths=(table.embedding_dim,),
        )
        placements.append(
            place(
                option,
                table.num_embeddings,
                where,
                world_size=topology.world_size,
                local_world_size=topology.local_world_size,
            )
        )
    return Plan(placements=tuple(placements))


def make_estimate(world_size: int, time_s: float = 3.1e-3) -> IterationEstimate:
    lookup = tuple(1e-3 + 1e-5 * rank for rank in range(world_size))
    exchange = (0.8e-3,) * world_size
    return IterationEstimate(
        time=Estimate(
            time_s=time_s, low_s=time_s * 0.9, high_s=time_s * 1.1, source=Source.DATASHEET
        ),
        samples_per_s=world_size * 4096 / time_s,
        stages=(
            StageTime(
                name="output_dist",
                stream="communication",
                start_s=(1.5e-3,) * world_size,
                duration_s=exchange,
            ),
            StageTime(
                name="lookup_forward",
                stream="compute",
                start_s=(0.0,) * world_size,
                duration_s=lookup,
            ),
            StageTime(
                name="never",
                stream="compute",
                start_s=(0.0,) * world_size,
                duration_s=(0.0,) * world_size,
            ),
        ),
        critical_path=(
            CriticalStep(
                rank=world_size - 1, stage="lookup_forward", start_s=0.0, duration_s=lookup[-1]
            ),
            CriticalStep(rank=0, stage="output_dist", start_s=1.5e-3, duration_s=0.8e-3),
        ),
        ranks=tuple(
            RankEstimate(
                rank=rank,
                compute_s=1e-3,
                communication_s=0.8e-3,
                exposed_s=0.5e-3,
                idle_s=0.2e-3,
                slack_s=0.0,
            )
            for rank in range(world_size)
        ),
        slowest_rank=world_size - 1,
        imbalance_ratio=1.06,
        exposed_communication_s=0.5e-3,
        warnings=("the input rate is unknown",),
    )


def make_memory(
    world_size: int, *, step_bytes: float = 0.0, host_bytes: float = 0.0
) -> MemoryLedger:
    return MemoryLedger(
        ranks=tuple(
            RankMemory(
                rank=rank,
                weights_bytes=30.0 * GIB + rank * step_bytes,
                optimizer_bytes=1.0 * GIB,
                gradients_bytes=0.0,
                cache_bytes=0.0,
                buffers_bytes=2.0 * GIB,
                dense_bytes=2.0 * GIB,
                reserved_bytes=6.0 * GIB,
                capacity_bytes=80.0 * GIB,
                host_bytes=host_bytes,
            )
            for rank in range(world_size)
        ),
        hosts=(HostMemory(host=0, used_bytes=host_bytes, capacity_bytes=1024.0 * GIB),),
    )


def make_candidate(
    name: str, workload: Workload, topology: Topology, *, time_s: float = 3.1e-3, shift: int = 0
) -> Candidate:
    return Candidate(
        name=name,
        plan=make_plan(workload, topology, shift=shift),
        estimate=make_estimate(topology.world_size, time_s),
        memory=make_memory(topology.world_size),
    )


def make_result(
    workload: Workload | None = None,
    topology: Topology | None = None,
    *,
    status: Status = Status.OPTIMAL,
    bound: float | None = 3.1e-3,
) -> PlanningResult:
    workload = workload or make_workload()
    topology = topology or make_topology()
    best = make_candidate("best", workload, topology)
    return PlanningResult(
        problem=PlanningProblem(workload=workload, topology=topology),
        best=best,
        solver=SolverReport(
            strategy="auto",
            objective="iteration",
            status=status,
            value=3.1e-3,
            bound=bound,
            seconds=2.4,
            seed=0,
            evaluations=1234,
        ),
        runners_up=(make_candidate("second", workload, topology, time_s=3.2e-3, shift=1),),
        baselines=(
            make_candidate("torchrec_greedy", workload, topology, time_s=4.154e-3, shift=2),
            make_candidate("size_greedy", workload, topology, time_s=6.2e-3, shift=3),
        ),
        unfit_baselines=("random",),
        warnings=("statistics were assumed",),
    )


def blocks_of(result: PlanningResult) -> dict[str, Block]:
    """The parts of the page, by name."""
    return {b.name: b for b in build_blocks(result)}


def with_memory(result: PlanningResult, memory: MemoryLedger) -> PlanningResult:
    return replace(result, best=replace(result.best, memory=memory))
