"""One rank that trains under both planners: ``swap_worker.py RANK WORLD FOLDER LOCAL NAME...``."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.remote_device import _remote_device
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.types import ShardingPlan

from planner.integrations.torchrec_planner import ShardPlanner
from tests.integration.drop_in.drawn_swaps import drawn_swap
from tests.integration.on_ranks import gloo_model as gm
from tests.integration.on_ranks.swap_models import BATCH, Swap
from tests.integration.on_ranks.swaps import SWAPS

PLANNERS = {"theirs": EmbeddingShardingPlanner, "ours": ShardPlanner}
STEPS = range(4)


def planned(kind: type[EmbeddingShardingPlanner], swap: Swap, local: int) -> ShardingPlan:
    topology = Topology(dist.get_world_size(), swap.device, local_world_size=local)
    planner = kind(
        topology,
        BATCH,
        constraints=swap.limits,
        stats=[],
        storage_reservation=swap.reserve(topology),
    )
    return on_cpu(planner.collective_plan(swap.make(), swap.sharders(), dist.group.WORLD))


def on_cpu(plan: ShardingPlan) -> ShardingPlan:
    """The same plan with its shards in the memory of the CPU."""
    for tables in plan.plan.values():
        for sharding in tables.values():
            for shard in sharding.sharding_spec.shards if sharding.sharding_spec else ():
                shard.placement = _remote_device(f"rank:{shard.placement.rank()}/cpu")
    return plan


def whole_tables(model: DistributedModelParallel) -> dict[str, torch.Tensor]:
    """Every sharded weight in one piece, on rank 0."""
    found = {}
    for name, weight in model.state_dict().items():
        if isinstance(weight, ShardedTensor):
            out = torch.empty(weight.size()) if dist.get_rank() == 0 else None
            weight.gather(0, out)
            found[name] = out
        else:
            found[name] = weight
    return found


def trained(swap: Swap, rank: int, local: int, folder: Path) -> dict[str, Any]:
    """Losses and plans under both planners; and whether a checkpoint is the same under the other.

    The first planner's is written, and read under the second's.
    """
    batches = [swap.batch(torch.Generator().manual_seed(10 * rank + i)) for i in range(2)]
    answer: dict[str, Any] = {"losses": {}, "plans": {}}
    kept: dict[str, torch.Tensor] = {}
    for name, kind in PLANNERS.items():
        plan = planned(kind, swap, local)
        model = gm.shard(swap.make(), swap.sharders(), plan)
        answer["plans"][name] = str(plan)
        torch.manual_seed(rank)  # managed collision fills the rows of new ids at random
        answer["losses"][name] = gm.run_steps(model, batches, swap.loss, STEPS)
        if not kept:
            dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
            kept = whole_tables(model)
            continue
        gm.fill_tables(model)
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        model.load_state_dict(state["model"])
        read = whole_tables(model)
        differing = [n for n in kept if rank == 0 and not torch.equal(kept[n], read[n])]
        answer["checkpoint"] = {"weights": len(kept), "differing": differing}
    return answer


def swap_of(name: str) -> Swap:
    """The model of a name, or that of a seed."""
    return drawn_swap(int(name)) if name.isdecimal() else SWAPS[name]


def main(rank: int, world: int, folder: Path, local: int, names: list[str]) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    gm.join(rank, world, str(folder / "store"), local)
    answers = {
        name: trained(swap_of(name), rank, local, folder / f"checkpoint-{i}")
        for i, name in enumerate(names)
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
