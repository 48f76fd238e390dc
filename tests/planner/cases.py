"""Workloads, systems and problems that the planner's tests share."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from costmodels.datatypes import FloatArray
from costmodels.distribution.zipf import Zipf
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Device, Host, Link, Topology
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseParallelism,
    Feature,
    Interaction,
    Pipeline,
    Table,
    Workload,
)
from planner import load_system
from planner.objectives.iteration import IterationTime
from planner.options.enumeration import enumerate_options
from planner.problem import NO_CONSTRAINTS, Constraints, PlanningProblem
from planner.search.bounds.boxes import Box
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import USUAL
from planner.search.construct.walk import every_assignment
from planner.space.evaluation import Evaluator, SearchSpace
from planner.space.objective import AbstractObjective

GIB = 2**30

DEVICE_ONLY = Constraints(kernels=(ComputeKernel.DENSE, ComputeKernel.FUSED))
"""No kernel that keeps weights in host memory: a fifth of the options."""

ROOT = Path(__file__).resolve().parents[2]

DLRM_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
    *(590_152, 12_973, 108, 36),
)
DLRM_POOLING = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)


class DeadlySearch(Topology):
    """A topology that kills the process that searches on it."""

    __slots__ = ()

    def hbm_capacities(self) -> NoReturn:
        """Never come back."""
        os._exit(1)


def topology(
    num_hosts: int = 1, local_world_size: int = 2, *, hbm_gib: float = 80, ddr_gib: float = 1000
) -> Topology:
    """Hosts of H100-like devices."""
    device = Device(
        name="test",
        hbm_capacity_bytes=hbm_gib * GIB,
        hbm_bandwidth_bytes_per_s=3.0e12,
        l2_capacity_bytes=50e6,
        l2_bandwidth_bytes_per_s=7e12,
        flops_per_s=((DataType.FP32, 6e13), (DataType.FP16, 9e14)),
        flops_efficiency_ratio=0.6,
        kernel_latency_s=4e-6,
        row_half_bytes=64.0,
        update_efficiency_ratio=0.6,
        sort_rate_per_s=2e10,
    )
    return Topology(
        name="test",
        device=device,
        host=Host(
            ddr_capacity_bytes=ddr_gib * GIB,
            ddr_bandwidth_bytes_per_s=3e11,
            device_link_bandwidth_bytes_per_s=5e10,
        ),
        num_hosts=num_hosts,
        local_world_size=local_world_size,
        domain_size=local_world_size,
        host_link=Link(latency_s=1e-5, bandwidth_bytes_per_s=4e11),
        domain_link=Link(latency_s=1e-5, bandwidth_bytes_per_s=4e11),
        network_link=Link(latency_s=2e-5, bandwidth_bytes_per_s=4.5e10),
    )


def unequal(system: Topology, seed: int = 0) -> Topology:
    """The same ranks, some of them up to four times as slow as others."""
    speeds = np.random.default_rng(seed).uniform(0.25, 1.0, system.world_size)
    return replace(system, speed_by_rank_ratio=tuple(speeds.tolist()))


def table(
    name: str,
    rows: int = 10_000,
    dim: int = 64,
    pooling: float = 4.0,
    *,
    exponent: float = 1.05,
    scattered: bool = True,
) -> Table:
    """One table with one feature and a power law."""
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name=f"f_{name}", pooling_factor=pooling),),
        distribution=Zipf(num_embeddings=rows, exponent=exponent, scattered=scattered),
    )


def workload(tables: tuple[Table, ...], *, batch: int = 1024, reserved: float = 0.0) -> Workload:
    """A small model around ``tables``."""
    return Workload(
        name="test",
        tables=tables,
        batch_size_per_rank=batch,
        dense=DenseArch(num_dense_features=13, bottom_mlp=(64, 32), top_mlp=(64, 1)),
        reserved_bytes=reserved,
    )


def dlrm(batch: int = 4096) -> Workload:
    """The 26 tables of MLPerf's DLRM-DCNv2."""
    tables = tuple(
        table(f"t{i}", rows, 128, float(pooling))
        for i, (rows, pooling) in enumerate(zip(DLRM_ROWS, DLRM_POOLING, strict=True))
    )
    return Workload(
        name="dlrm",
        tables=tables,
        batch_size_per_rank=batch,
        dense=DenseArch(
            num_dense_features=13,
            bottom_mlp=(512, 256, 128),
            top_mlp=(1024, 1024, 512, 256, 1),
            interaction=Interaction.DCN,
            dcn_num_layers=3,
            dcn_low_rank_dim=512,
            dtype=DataType.FP16,
        ),
        output_dtype=DataType.FP16,
        gradient_dtype=DataType.FP16,
        pipeline=Pipeline.SPARSE_DIST,
        reserved_bytes=6 * GIB,
    )


def synthetic(count: int, seed: int = 0, batch: int = 1024) -> Workload:
    """Tables with log-normal rows, widths and pooling factors; launches cost nothing."""
    rng = np.random.default_rng(seed)
    rows = np.clip(np.exp(rng.normal(np.log(3e5), 2.2, count)), 1e3, 1e8).astype(int)
    dims = np.clip(4 * np.round(np.exp(rng.normal(np.log(64), 0.7, count)) / 4), 4, 256).astype(int)
    pooling = np.clip(np.exp(rng.normal(np.log(6), 1.3, count)), 1, 200)
    exponents = rng.uniform(0.0, 1.2, count)
    tables = tuple(
        table(f"t{i}", int(rows[i]), int(dims[i]), float(pooling[i]), exponent=float(exponents[i]))
        for i in range(count)
    )
    return replace(workload(tables, batch=batch), cuda_graph=True)


def space(
    model: Workload, system: Topology, constraints: Constraints = NO_CONSTRAINTS
) -> SearchSpace:
    """The search space of a problem."""
    problem = PlanningProblem(workload=model, topology=system, constraints=constraints)
    pipeline = CostPipeline(model, system)
    return SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))


def tiny(seed: int) -> SearchSpace:
    """A random problem small enough to price every plan: 2 or 3 tables on 2 to 4 ranks."""
    rng = np.random.default_rng(seed)
    hosts, local = [(1, 2), (2, 1), (2, 2), (1, 3)][seed % 4]
    tables = tuple(
        table(
            f"t{i}",
            int(10 ** rng.uniform(2, 6.5)),
            int(4 * rng.integers(1, 9)),
            float(rng.uniform(0.5, 30)),
            exponent=float(rng.uniform(0, 1.3)),
            scattered=bool(rng.random() < 0.7),
        )
        for i in range(2 + seed % 2)
    )
    model = replace(
        workload(tables, batch=int(10 ** rng.uniform(1.5, 3.5))),
        pipeline=list(Pipeline)[seed % 3],
        dense_parallelism=list(DenseParallelism)[seed // 3 % 2],
        cuda_graph=bool(rng.random() < 0.7),
    )
    system = topology(hosts, local, hbm_gib=0.4 if seed % 5 == 4 else 80)
    slow = replace(system.device, overlap_slowdown_ratio=float(rng.choice([0.0, 0.3])))
    speeds = tuple(rng.uniform(0.8, 1.2, hosts * local).tolist()) if seed % 7 == 6 else ()
    system = replace(system, device=slow, speed_by_rank_ratio=speeds)
    return space(model, system, NO_CONSTRAINTS if seed % 5 == 4 else DEVICE_ONLY)


def two_tables(seed: int) -> PlanningProblem:
    """Two tables on two to four ranks of one to three hosts: few enough plans to price them all."""
    hosts, local = ((1, 3), (2, 2), (1, 2), (3, 1))[seed % 4]
    system = load_system("h100_sxm", gpus=hosts * local, gpus_per_host=local)
    model = synthetic(2, seed=seed, batch=(512, 8192)[seed % 2])
    return PlanningProblem(workload=model, topology=system, constraints=DEVICE_ONLY)


def least_value(space: SearchSpace, objective: AbstractObjective) -> float:
    """The optimum: every plan priced."""
    best = math.inf
    for _, works in every_assignment(space):
        values = np.where(space.overflow_ratio(works) <= 0, objective.values(works), np.inf)
        best = min(best, float(values.min()))
    return best


def slow_phases(space: SearchSpace, model: LinearModel) -> FloatArray:
    """How many times as long as on the fastest device each load takes on each rank, ``[W, c]``.

    Only lookups depend on the device: forward, backward, and both without what else is in a phase.
    A forward lookup that may wait for rows of a cache is taken for the fastest device's.
    """
    speeds = space.problem.topology.speeds()
    slow = np.ones((space.world_size, len(model.phase) + 2))
    caches = any(o.kernel is ComputeKernel.FUSED_UVM_CACHING for o in space.options)
    named = model.objective.name != "iteration"
    for c, phase in enumerate(model.phase):
        if phase in (1, 21, 22) or (phase == 0 and not caches and not named):
            slow[:, c] = speeds.max() / speeds
    return slow


@contextmanager
def scheduled(**numbers: float) -> Iterator[None]:
    """Searches of this process go by other numbers of the schedule for a while."""
    before = {name: getattr(USUAL, name) for name in numbers}
    try:
        for name, value in numbers.items():
            object.__setattr__(USUAL, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(USUAL, name, value)


def first(values: Iterable[object], count: int) -> list[object]:
    """Parameters of which the first few run by default and the others are slow."""
    return [
        pytest.param(value, marks=[] if i < count else pytest.mark.slow)
        for i, value in enumerate(values)
    ]


def printed(code: str, *, hash_seeds: Sequence[str]) -> set[str]:
    """What ``code`` prints in a new process for each PYTHONHASHSEED; one text if they agree.

    Variables that choose the kernels of linear algebra are passed on. Others round otherwise,
    and which of two equally good plans is found then differs, as it may on another machine.
    """
    algebra = {k: v for k, v in os.environ.items() if k.startswith(("OPENBLAS_", "NVPL_BLAS_"))}
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**algebra, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in hash_seeds
    }


def box(
    objective: IterationTime,
    types: frozenset[ShardingType],
    low: FloatArray,
    high: FloatArray,
    optional: frozenset[ShardingType] = frozenset(),
) -> Box | None:
    """The plans with exactly these types whose largest phases, ``[K]``, lie between two limits."""
    whole = objective.box(types, optional=optional)
    if whole is None:
        return None
    start = np.maximum(low[whole.first], 0.0)
    return whole.part(start, np.maximum(high[whole.first], start))


def relaxed(found: Box, points: FloatArray) -> FloatArray:
    """``[N]`` the shortest iterations by the chords, from points ``[N, L]``."""
    return found.floor.seconds(found._chords(points))


class Timeless(Evaluator):
    """An evaluator whose clock stands still."""

    @property
    def seconds(self) -> float:
        """None has passed."""
        return 0.0
