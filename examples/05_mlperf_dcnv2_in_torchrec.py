"""MLPerf's DLRM-DCNv2 planned, sharded and trained by TorchRec, with this planner in its place.

The one line that differs from a script for TorchRec's own planner is its import::

    -from torchrec.distributed.planner import EmbeddingShardingPlanner
    +from planner.integrations.torchrec_planner import ShardPlanner as EmbeddingShardingPlanner

Layers, dimensions and multi-hot inputs are those of MLPerf; tables are cut to a few rows so that
two CPU ranks can train it::

    python examples/05_mlperf_dcnv2_in_torchrec.py
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.models.dlrm import DLRM_DCN, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from planner import load_workload
from planner.integrations.torchrec_planner import ShardPlanner as EmbeddingShardingPlanner

WORLD_SIZE = 2
BATCH = 16
STEPS = 3
MOST_ROWS = 2000
MLPERF = load_workload("dlrm_dcnv2_mlperf")
ROWS = {t.name: min(t.num_embeddings, MOST_ROWS) for t in MLPERF.tables}
MULTI_HOT = {t.name: int(t.features[0].pooling_factor) for t in MLPERF.tables}


def make_model() -> DLRMTrain:
    """The model as MLPerf's reference builds it: tables on the meta device, row-wise Adagrad."""
    dense = MLPERF.dense
    tables = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=t.name,
                num_embeddings=ROWS[t.name],
                embedding_dim=t.embedding_dim,
                feature_names=[t.name],
            )
            for t in MLPERF.tables
        ],
    )
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": 0.005})
    return DLRMTrain(
        DLRM_DCN(
            embedding_bag_collection=tables,
            dense_in_features=dense.num_dense_features,
            dense_arch_layer_sizes=list(dense.bottom_mlp),
            over_arch_layer_sizes=list(dense.top_mlp),
            dcn_num_layers=dense.dcn_num_layers,
            dcn_low_rank_dim=dense.dcn_low_rank_dim,
            dense_device=torch.device("cpu"),
        )
    )


class Batch:
    """Random inputs for one step of one rank, with MLPerf's number of indices per feature."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.dense_features = torch.rand(BATCH, 13, generator=generator)
        self.labels = torch.randint(0, 2, (BATCH,), generator=generator).float()
        values = [
            torch.randint(0, ROWS[name], (BATCH * hot,), generator=generator)
            for name, hot in MULTI_HOT.items()
        ]
        self.sparse_features = KeyedJaggedTensor(
            keys=list(MULTI_HOT),
            values=torch.cat(values),
            lengths=torch.cat([torch.full((BATCH,), hot) for hot in MULTI_HOT.values()]),
        )


def train(rank: int, store: str) -> None:
    """What every rank of a job does."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), LOCAL_WORLD_SIZE=str(WORLD_SIZE))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    model, sharders = make_model(), [EmbeddingBagCollectionSharder()]
    planner = EmbeddingShardingPlanner(
        batch_size=BATCH,
        constraints={
            name: ParameterConstraints(pooling_factors=[float(hot)])
            for name, hot in MULTI_HOT.items()
        },
        timeout_seconds=2,
        stats=[],
    )
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    model = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=sharders
    )
    if rank == 0:
        kinds = Counter(p.sharding_type for ps in plan.plan.values() for p in ps.values())
        print(f"{type(planner).__name__}: {dict(sorted(kinds.items()))}")
    dense = [p for p in model.parameters() if not hasattr(p, "_in_backward_optimizers")]
    optimizer = torch.optim.SGD(dense, lr=0.01)
    for step in range(STEPS):
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
        torch.multiprocessing.spawn(train, args=(str(Path(folder) / "store"),), nprocs=WORLD_SIZE)
