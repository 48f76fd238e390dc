"""Use the planner inside a TorchRec job: one line changes.

Run it as it stands: it starts two ranks on the CPU, plans a small DLRM on rank 0, sends the plan to
both, and trains three steps under it.

    python examples/03_use_in_torchrec.py
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from costmodels.units import format_time
from planner.integrations.torchrec_planner import ShardPlanner

WORLD_SIZE = 2
BATCH = 32
TABLES = {"user": (5000, 1), "item": (2000, 8), "country": (40, 1)}
"""Rows, and mean indices per sample."""


def make_model() -> DLRMTrain:
    """A DLRM as TorchRec users write it: tables on the meta device, their optimizer attached."""
    tables = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=name, num_embeddings=rows, embedding_dim=16, feature_names=[name]
            )
            for name, (rows, _) in TABLES.items()
        ],
    )
    apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": 0.1})
    return DLRMTrain(
        DLRM(
            embedding_bag_collection=tables,
            dense_in_features=4,
            dense_arch_layer_sizes=[32, 16],
            over_arch_layer_sizes=[32, 1],
            dense_device=torch.device("cpu"),
        )
    )


class Batch:
    """Random inputs for one step of one rank."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.cat([torch.full((BATCH,), hot) for _, hot in TABLES.values()])
        values = [
            torch.randint(0, rows, (BATCH * hot,), generator=generator)
            for rows, hot in TABLES.values()
        ]
        self.dense_features = torch.rand(BATCH, 4, generator=generator)
        self.labels = torch.randint(0, 2, (BATCH,), generator=generator).float()
        self.sparse_features = KeyedJaggedTensor(
            keys=list(TABLES), values=torch.cat(values), lengths=lengths
        )


def train(rank: int, store: str) -> None:
    """What every rank of a job does."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), LOCAL_WORLD_SIZE=str(WORLD_SIZE))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    model = make_model()
    sharders = [EmbeddingBagCollectionSharder()]
    constraints = {
        name: ParameterConstraints(pooling_factors=[float(hot)])
        for name, (_, hot) in TABLES.items()
    }

    # The one line: it was EmbeddingShardingPlanner, with the same arguments.
    planner = ShardPlanner(batch_size=BATCH, constraints=constraints, timeout_seconds=2)

    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    model = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=sharders
    )
    if rank == 0:
        print(plan)
        predicted = planner.result.estimate.time
        print(
            f"predicted iteration time: {format_time(predicted.time_s)} "
            f"[{format_time(predicted.low_s)} .. {format_time(predicted.high_s)}]"
        )
    dense = [p for p in model.parameters() if not hasattr(p, "_in_backward_optimizers")]
    optimizer = torch.optim.SGD(dense, lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss, _ = model(Batch(seed=WORLD_SIZE * step + rank))
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        if rank == 0:
            print(f"step {step}: loss {loss.item() / WORLD_SIZE:.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # Ranks on GPUs need "spawn": a fork cannot use CUDA if this process has used it.
        torch.multiprocessing.start_processes(
            train,
            args=(str(Path(folder) / "store"),),
            nprocs=WORLD_SIZE,
            start_method="fork",
        )
