"""One rank of a job on hosts of LOCAL ranks: ``sharding_worker.py RANK WORLD FOLDER LOCAL STAGE``.

Stage ``all`` trains under a plan of every sharding type, under every kernel, and saves a checkpoint
half-way; stage ``resume`` plans again with other types, loads it and goes on.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ShardingPlan

from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.workload import Workload
from planner.integrations.torchrec_plan import to_sharding_plan
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import describe_model
from planner.options.torchrec_rules import layout_problems
from tests.integration.builders import make_topology
from tests.integration.on_ranks import gloo_model as gm

HALF = gm.STEPS // 2

KERNELS: Final = ("fused", "dense", "fused_uvm", "fused_uvm_caching")
"""Kernels that TorchRec takes on the CPU; the UVM ones are plain fused ones there."""

CUTS: Final[dict[ShardingType, tuple[int, ...]]] = {
    ShardingType.DATA_PARALLEL: (16,),
    ShardingType.TABLE_WISE: (16,),
    ShardingType.COLUMN_WISE: (4, 12),
    ShardingType.ROW_WISE: (16,),
    ShardingType.TABLE_COLUMN_WISE: (12, 4),
    ShardingType.TABLE_ROW_WISE: (16,),
    ShardingType.GRID_SHARD: (12, 4),
}
"""Column widths by type; unequal where there are several, so their places must be distinct."""


_GRID: Final = ShardingType.GRID_SHARD


def places(kind: ShardingType, index: int, world: int, local: int) -> tuple[int, ...]:
    """Ranks, or hosts, of the pieces of table ``index``."""
    hosts = world // local
    host = index % hosts
    ranks = range(host * local, host * local + local)
    return {
        ShardingType.DATA_PARALLEL: (),
        ShardingType.ROW_WISE: (),
        ShardingType.TABLE_WISE: (index % world,),
        ShardingType.COLUMN_WISE: (index % world, (index + 1) % world),
        ShardingType.TABLE_COLUMN_WISE: tuple(ranks[(index + i) % local] for i in range(2)),
        ShardingType.TABLE_ROW_WISE: (host,),
        ShardingType.GRID_SHARD: tuple({host: 0, (host + 1) % hosts: 0}),
    }[kind]


def by_types(workload: Workload, types: list[ShardingType], world: int, local: int) -> ShardingPlan:
    """A plan that goes through the types table by table."""
    placements = []
    for i, table in enumerate(workload.tables):
        kind = types[i % len(types)]
        replicated = kind is ShardingType.DATA_PARALLEL
        option = ShardingOption(
            table=table.name,
            sharding_type=kind,
            kernel=ComputeKernel.DENSE if replicated else ComputeKernel.FUSED,
            column_widths=CUTS[kind]
            if kind is not _GRID or world > local
            else (table.embedding_dim,),
        )
        placements.append(
            place(
                option,
                table.num_embeddings,
                places(kind, i, world, local),
                world_size=world,
                local_world_size=local,
            )
        )
    plan = Plan(placements=tuple(placements))
    problems = layout_problems(plan, workload, make_topology(world // local, local), device="cpu")
    assert not problems, problems
    return to_sharding_plan(plan, workload, compute_device="cpu", local_world_size=local)


def with_kernel(plan: ShardingPlan, kernel: str) -> ShardingPlan:
    """The same plan with another kernel in all tables that are not replicated."""
    cache = CacheParams(load_factor=0.3) if kernel == "fused_uvm_caching" else None
    changed = EmbeddingModuleShardingPlan(
        {
            name: p
            if p.sharding_type == "data_parallel"
            else replace(p, compute_kernel=kernel, cache_params=cache)
            for name, p in plan.plan[gm.PATH].items()
        }
    )
    return ShardingPlan({gm.PATH: changed})


def planned(seed: int, types: list[str] | None = None) -> ShardingPlan:
    """A plan of the planner, with one type per table if types are given."""
    constraints = gm.make_constraints()
    if types is not None:
        for i, limit in enumerate(constraints.values()):
            limit.sharding_types = [types[(i + seed) % len(types)]]
    planner = ShardPlanner(
        batch_size=gm.BATCH, constraints=constraints, timeout_seconds=3, seed=seed
    )
    plan: ShardingPlan = planner.collective_plan(gm.make_model(), gm.make_sharders())
    return plan


def sharded(plan: ShardingPlan) -> DistributedModelParallel:
    return gm.shard(gm.make_model(), gm.make_sharders(), plan)


def train(plan: ShardingPlan, rank: int, folder: Path | None = None) -> list[float]:
    """Losses of all steps; with a folder, a checkpoint is left there half-way."""
    model, batches = sharded(plan), gm.make_batches(rank)
    losses = gm.run_steps(model, batches, lambda a: a[0], range(HALF))
    if folder is not None:
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    return losses + gm.run_steps(model, batches, lambda a: a[0], range(HALF, gm.STEPS))


def resumed(plan: ShardingPlan, rank: int, folder: Path) -> list[float]:
    """Losses of the second half, from a checkpoint that another plan left."""
    model, batches = sharded(plan), gm.make_batches(rank)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    return gm.run_steps(model, batches, lambda a: a[0], range(HALF, gm.STEPS))


def stage_all(rank: int, world: int, local: int, folder: Path) -> dict[str, Any]:
    described = describe_model(
        gm.make_model(), gm.make_sharders(), batch_size=gm.BATCH, compute_device="cpu"
    )
    assert described is not None
    workload, every = described.workload, list(ShardingType)
    mixed = by_types(workload, every, world, local)
    plans = {str(kind): by_types(workload, [kind], world, local) for kind in every}
    plans |= {f"mixed, {kernel}": with_kernel(mixed, kernel) for kernel in KERNELS}
    plans["searched"] = planned(0)
    plans["forced"] = planned(0, [str(k) for k in every])
    losses = {
        name: train(plan, rank, folder / "checkpoint" if name == "forced" else None)
        for name, plan in plans.items()
    }
    return {
        "losses": losses,
        "types": {name: gm.types_of(plan) for name, plan in plans.items()},
        "forced": json.dumps(plans["forced"]._serialize()),
    }


def stage_resume(rank: int, folder: Path) -> dict[str, Any]:
    plans = {
        "other types": planned(1, ["row_wise", "column_wise", "table_wise", "data_parallel"]),
        "shifted types": planned(3, [str(k) for k in ShardingType]),
        "searched": planned(5),
    }
    return {
        "losses": {n: resumed(p, rank, folder / "checkpoint") for n, p in plans.items()},
        "plans": {n: json.dumps(p._serialize()) for n, p in plans.items()},
    }


def main(rank: int, world: int, folder: Path, local: int, stage: str) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    gm.join(rank, world, str(folder / f"store-{stage}"), local)
    is_first = stage == "all"
    answer = stage_all(rank, world, local, folder) if is_first else stage_resume(rank, folder)
    (folder / f"{stage}-{rank}.json").write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
