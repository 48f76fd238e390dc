"""Simple plans cost what the formulas of the documentation say, worked without the product."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from costmodels.distribution.uniform import Uniform
from costmodels.lookup.roofline import Roofline
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType, TablePlacement
from costmodels.system_models import default_models
from costmodels.topology import Link, Topology
from costmodels.units import GB, US
from costmodels.workload import (
    DataType,
    DenseArch,
    Feature,
    Optimizer,
    Pipeline,
    Pooling,
    Table,
    Workload,
)
from tests.differential.judging.by_hand import iteration_s
from tests.planner.cases import first
from tests.strategies import make_device, make_host, make_placement, make_topology, make_workload

T = TypeVar("T")
_CHUNK = 100
_WHOLE, _ROWS, _COPIES = (
    ShardingType.TABLE_WISE,
    ShardingType.ROW_WISE,
    ShardingType.DATA_PARALLEL,
)


@pytest.mark.parametrize("chunk", first(range(20), 1))
def test_simple_plans_cost_what_the_formulas_say(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        rng = np.random.default_rng(seed)
        topology, workload = _system(rng), _workload(rng)
        plan = _plan(rng, workload, topology)
        models = replace(default_models(topology), lookup=Roofline())
        pipeline = CostPipeline(workload, topology, models)
        expected_s = iteration_s(workload, topology, plan)
        assert pipeline.estimate(plan).time.time_s == pytest.approx(expected_s, rel=1e-7), seed


def _one(rng: np.random.Generator, *choices: T) -> T:
    return choices[int(rng.integers(len(choices)))]


def _system(rng: np.random.Generator) -> Topology:
    device = make_device(
        l2_capacity_bytes=_one(rng, 0.0, 1e15),
        l2_bandwidth_bytes_per_s=_one(rng, 800.0, 4000.0) * GB,
        hbm_bandwidth_bytes_per_s=_one(rng, 300.0, 3000.0) * GB,
        kernel_latency_s=_one(rng, 0.0, 3.0) * US,
        row_half_bytes=_one(rng, 0.0, 100.0),
        sort_rate_per_s=_one(rng, 1e9, 1e11),
        overlap_slowdown_ratio=0.0,
    )
    link = Link(
        latency_s=_one(rng, 0.0, 10.0) * US, bandwidth_bytes_per_s=_one(rng, 9.0, 300.0) * GB
    )
    host = make_host(device_link_bandwidth_bytes_per_s=_one(rng, 5.0, 50.0) * GB)
    network = Link(latency_s=1.0, bandwidth_bytes_per_s=1.0, fabric="infiniband")
    links = {"host_link": link, "network_link": network}
    return make_topology(1, int(rng.integers(1, 9)), device=device, host=host, **links)


def _workload(rng: np.random.Generator) -> Workload:
    return make_workload(
        *(_table(rng, f"t{i}") for i in range(int(rng.integers(1, 5)))),
        batch_size_per_rank=int(10 ** rng.uniform(0, 5)),
        dense=DenseArch(),
        pipeline=Pipeline.NONE,
        cuda_graph=True,
        optimizer=_one(rng, *Optimizer),
        output_dtype=_one(rng, DataType.FP32, DataType.FP16),
        index_bytes=_one(rng, 4, 8),
    )


def _table(rng: np.random.Generator, name: str) -> Table:
    """A table whose rows are a multiple of every number of ranks."""
    rows = 840 * int(10 ** rng.uniform(0, 4))
    features = tuple(
        Feature(name=f"{name}_f{i}", pooling_factor=float(_one(rng, 0.0, 0.3, 1.0, 40.0)))
        for i in range(int(rng.integers(1, 4)))
    )
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=_one(rng, 4, 12, 64, 128, 1024),
        features=features,
        distribution=Uniform(num_embeddings=rows),
        dtype=_one(rng, DataType.FP32, DataType.FP16, DataType.INT8),
        pooling=_one(rng, Pooling.SUM, Pooling.MEAN),
        is_weighted=bool(rng.random() < 0.3),
    )


def _plan(rng: np.random.Generator, workload: Workload, topology: Topology) -> Plan:
    return Plan(placements=tuple(_placed(rng, t, topology) for t in workload.tables))


def _placed(rng: np.random.Generator, table: Table, topology: Topology) -> TablePlacement:
    kind = _one(rng, _WHOLE, _WHOLE, _ROWS, _COPIES)
    where = (int(rng.integers(topology.world_size)),) if kind is _WHOLE else ()
    return make_placement(table, kind, topology, where=where)
