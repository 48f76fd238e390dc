"""Hidden steps that outlast all else in a solution, so that programs begin to look at them."""

from __future__ import annotations

import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.topology import Link, Topology
from costmodels.workload import Feature, Pipeline
from planner.api import floor, plan
from planner.problem import Constraints, PlanningProblem, TableConstraint, TableGroup
from tests.strategies import GB, make_device, make_host, make_table, make_topology, make_workload

DEVICE_BYTES = 40.0 * GB


def topology(device_bytes: float, host_bytes: float) -> Topology:
    """Two hosts of one rank on a slow network."""
    return make_topology(
        2,
        1,
        device=make_device(hbm_capacity_bytes=device_bytes),
        host=make_host(ddr_capacity_bytes=host_bytes),
        network_link=Link(latency_s=1e-5, bandwidth_bytes_per_s=2e8),
    )


@pytest.mark.parametrize("pipeline", [Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST])
def test_limits_of_host_memory_stay_when_a_hidden_exchange_comes_into_use(
    pipeline: Pipeline,
) -> None:
    """The row for the host's memory was taken for one of another phase, and the search broke off.

    Tables ``pinned`` and ``free`` share a rank, whose host cannot hold both. Devices are so full
    that the first solution has most of ``free`` in host memory, and long lists of indices outlast
    all else in the same solution.
    """
    sizes, lengths = {"pinned": 1.2, "free": 0.6, "large": 1.2}, {"large": 400.0}
    tables = [
        make_table(
            name,
            num_embeddings=int(4e7 * size),
            embedding_dim=8,
            features=(Feature(name=name, pooling_factor=lengths.get(name, 20.0)),),
        )
        for name, size in sizes.items()
    ]
    workload = make_workload(*tables, batch_size_per_rank=4096, pipeline=pipeline)
    unit_bytes = workload.trained_bytes(tables[0]) / sizes["pinned"]
    empty = CostPipeline(workload, topology(DEVICE_BYTES, DEVICE_BYTES))
    taken_bytes = DEVICE_BYTES - float(empty.device_limits[0])
    usable_ratio = float(empty.host_limits[0]) / DEVICE_BYTES
    small = topology(taken_bytes + 0.7 * unit_bytes, 1.3 * unit_bytes / usable_ratio)
    in_host, in_device = ComputeKernel.FUSED_UVM, ComputeKernel.FUSED
    rules = Constraints(
        tables=(
            TableConstraint(pattern="pinned", kernels=(in_host,)),
            *(TableConstraint(pattern=p, kernels=(in_device, in_host)) for p in ("free", "large")),
        ),
        sharding_types=(ShardingType.TABLE_WISE, ShardingType.ROW_WISE),
        together=(TableGroup(patterns=("pinned", "free")),),
    )
    found = plan(workload, small, constraints=rules, with_baselines=False, max_evaluations=100)
    assert found.plan.placement("free").kernel is in_device
    assert found.plan.placement("large").kernel is in_host
    indices_s = max(
        max(s.duration_s) for s in found.best.estimate.stages if s.name.startswith("input dist")
    )
    assert indices_s > 0.9 * found.solver.value, "the case does not need what it tests"
    asked = PlanningProblem(workload=workload, topology=small, constraints=rules)
    assert 0.5 * found.solver.value < floor(asked).value <= found.solver.value
    assert found.solver.gap_ratio == pytest.approx(0.0)
