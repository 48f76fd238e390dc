"""Reads TorchRec's plans back in the form of ours, to compare them."""

from __future__ import annotations

from torchrec.distributed.types import ShardingPlan

from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from costmodels.workload import Workload
from planner.integrations.translate.settings import our_kernel
from planner.io.plan.plan_file import DEFAULT_LOAD_FACTOR, parameter_name


def from_sharding_plan(sharding_plan: ShardingPlan, workload: Workload) -> Plan:
    """The plan of exactly the tables of a workload."""
    planned = {(m, t): p for m, tables in sharding_plan.plan.items() for t, p in tables.items()}
    assert set(planned) == {(t.module, parameter_name(t)) for t in workload.tables}
    placements = []
    for table in workload.tables:
        found = planned[table.module, parameter_name(table)]
        kernel, ratio = our_kernel(found.compute_kernel), None
        if kernel is ComputeKernel.FUSED_UVM_CACHING:
            ratio = DEFAULT_LOAD_FACTOR
            if found.cache_params and found.cache_params.load_factor is not None:
                ratio = found.cache_params.load_factor
        shards = [
            Shard(rank, 0, table.num_embeddings, 0, table.embedding_dim) for rank in found.ranks
        ]
        if found.sharding_spec is not None:
            cells = found.sharding_spec.shards
            assert [c.placement.rank() for c in cells] == found.ranks
            shards = [
                Shard(c.placement.rank(), o[0], n[0], o[1], n[1])
                for c in cells
                for o, n in [(c.shard_offsets, c.shard_sizes)]
            ]
        placements.append(
            TablePlacement(
                table=table.name,
                sharding_type=ShardingType(found.sharding_type),
                kernel=kernel,
                shards=shards,
                cache_load_factor_ratio=ratio,
            )
        )
    return Plan(placements=tuple(placements))
