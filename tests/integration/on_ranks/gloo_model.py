"""A scaled-down DCNv2, its batches, and twelve steps of training under a given plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DLRM_DCN, DLRMTrain
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.models import sequences

ROWS = (
    *(2000, 1951, 858, 369, 3, 1423, 20, 36, 2000, 1917, 1480, 2000, 2000),
    *(2000, 1001, 1000, 1000, 97, 14, 2000, 2000, 2000, 1181, 300, 108, 36),
)
"""Rows of the 26 Criteo tables, scaled down and capped at 2000."""

MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Indices per sample and table of MLPerf's DCNv2, divided by up to 100 below."""

DIM = 16
BATCH = 16
STEPS = 12
LEARNING_RATE = 1.0
FUSED_PARAMS = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
PATH = "model.sparse_arch.embedding_bag_collection"
TABLES = tuple(f"t{i}" for i in range(len(ROWS)))


@dataclass
class Batch:
    """What DLRMTrain takes."""

    dense_features: torch.Tensor
    sparse_features: KeyedJaggedTensor
    labels: torch.Tensor


def join(rank: int, world: int, init_file: str, local: int | None = None) -> None:
    """One thread per rank, ranks met through a file, on hosts of ``local`` ranks or on one."""
    local = local or world
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank % local),
        LOCAL_WORLD_SIZE=str(local),
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=world)


def make_model() -> nn.Module:
    """The same weights on every rank and for every plan; tables are filled after sharding."""
    torch.manual_seed(0)
    tables = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=t, num_embeddings=r, embedding_dim=DIM, feature_names=[f"f_{t}"]
            )
            for t, r in zip(TABLES, ROWS, strict=True)
        ],
    )
    return DLRMTrain(
        DLRM_DCN(
            embedding_bag_collection=tables,
            dense_in_features=13,
            dense_arch_layer_sizes=[32, DIM],
            over_arch_layer_sizes=[32, 1],
            dcn_num_layers=2,
            dcn_low_rank_dim=8,
            dense_device=torch.device("cpu"),
        )
    )


def make_sharders() -> list[ModuleSharder[nn.Module]]:
    return [EmbeddingBagCollectionSharder(fused_params=FUSED_PARAMS)]


def make_constraints() -> dict[str, ParameterConstraints]:
    return {
        t: ParameterConstraints(pooling_factors=[float(max(1, m // 8))])
        for t, m in zip(TABLES, MULTI_HOT, strict=True)
    }


def make_batches(rank: int, count: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(100 + rank)
    batches = []
    for _ in range(count):
        lengths, values = [], []
        for rows, hot in zip(ROWS, MULTI_HOT, strict=True):
            per_sample = torch.randint(0, 2 * max(1, hot // 8) + 1, (BATCH,), generator=generator)
            lengths.append(per_sample)
            values.append(torch.randint(0, rows, (int(per_sample.sum()),), generator=generator))
        batches.append(
            Batch(
                dense_features=torch.rand(BATCH, 13, generator=generator),
                sparse_features=KeyedJaggedTensor(
                    keys=[f"f_{t}" for t in TABLES],
                    values=torch.cat(values),
                    lengths=torch.cat(lengths).to(torch.int32),
                ),
                labels=torch.randint(0, 2, (BATCH,), generator=generator).float(),
            )
        )
    return batches


class Sequences(nn.Module):
    """Two unpooled tables, a sum over all their looked-up values, and one dense parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.history = sequences([("clicks", 50, DIM), ("pages", 8, DIM)])
        self.bias = nn.Parameter(torch.ones(()))

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        means = [v.values().sin().mean() for v in self.history(features).values()]
        return torch.stack(means).sum() * self.bias


def sequence_sharders() -> list[ModuleSharder[nn.Module]]:
    return [EmbeddingCollectionSharder(fused_params=FUSED_PARAMS)]


def sequence_batch(rank: int) -> KeyedJaggedTensor:
    """Four samples; half of the indices fall on either half of each table's rows."""
    generator = torch.Generator().manual_seed(rank)
    halves = [(low, low + rows // 2) for rows in (50, 8) for low in (0, rows // 2)]
    values = [torch.randint(low, high, (6,), generator=generator) for low, high in halves]
    return KeyedJaggedTensor(
        keys=["f_clicks", "f_pages"],
        values=torch.cat(values),
        lengths=torch.full((8,), 3, dtype=torch.int32),
    )


def fill_tables(model: DistributedModelParallel) -> None:
    """Give every table weight a value that depends on its row and column in the whole table."""
    for name, weight in model.state_dict().items():
        if ".embedding_bags." not in name and ".embeddings." not in name:
            continue
        if isinstance(weight, ShardedTensor):
            parts = [(s.tensor, s.metadata.shard_offsets) for s in weight.local_shards()]
        else:
            parts = [(weight.detach(), [0, 0])]
        for tensor, (row, column) in parts:
            rows = torch.arange(row, row + tensor.shape[0]).unsqueeze(1)
            columns = torch.arange(column, column + tensor.shape[1]).unsqueeze(0)
            tensor.copy_(0.1 * torch.sin(0.7 * rows + 1.3 * columns + len(name)))


def train(plan: ShardingPlan, rank: int) -> list[float]:
    """Mean loss of the DCNv2 over the ranks at each step."""
    batches = make_batches(rank)
    return _train(make_model(), make_sharders(), plan, batches, lambda answer: answer[0])


def train_sequences(plan: ShardingPlan, rank: int) -> list[float]:
    """Mean loss of the unpooled model over the ranks at each step."""
    batches = [sequence_batch(rank)]
    return _train(Sequences(), sequence_sharders(), plan, batches, lambda answer: answer)


def shard(
    module: nn.Module, sharders: list[ModuleSharder[nn.Module]], plan: ShardingPlan
) -> DistributedModelParallel:
    """The model under a plan, with table weights that do not depend on it."""
    model = DistributedModelParallel(
        module,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=plan,
        sharders=sharders,
    )
    fill_tables(model)
    return model


def run_steps(
    model: DistributedModelParallel,
    batches: Sequence[Any],
    loss_of: Callable[[Any], torch.Tensor],
    steps: Sequence[int] = range(STEPS),
) -> list[float]:
    """Train some steps; mean loss over the ranks at each."""
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer = KeyedOptimizerWrapper(dense, lambda ps: torch.optim.SGD(ps, lr=LEARNING_RATE))
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model(batches[step % len(batches)]))
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def _train(
    module: nn.Module,
    sharders: list[ModuleSharder[nn.Module]],
    plan: ShardingPlan,
    batches: Sequence[Any],
    loss_of: Callable[[Any], torch.Tensor],
) -> list[float]:
    return run_steps(shard(module, sharders, plan), batches, loss_of)


def hand_built_plans() -> dict[str, ShardingPlan]:
    """Plans made with TorchRec's own helpers for plans written by hand."""
    tables = make_model().model.sparse_arch.embedding_bag_collection
    makers: dict[str, Callable[[int], object]] = {
        "table_wise": lambda i: table_wise(rank=i % 2, compute_kernel="fused"),
        "row_wise": lambda _: row_wise(compute_kernel="fused"),
        "column_wise": lambda _: column_wise(ranks=[0, 1], compute_kernel="fused"),
        "data_parallel": lambda _: data_parallel(),
    }
    return {name: ShardingPlan({PATH: _by_hand(tables, make)}) for name, make in makers.items()}


def _by_hand(tables: nn.Module, make: Callable[[int], object]) -> object:
    return construct_module_sharding_plan(
        tables,
        {t: make(i) for i, t in enumerate(TABLES)},
        sharder=make_sharders()[0],
        local_size=2,
        world_size=2,
        device_type="cpu",
    )


def attempt(plan: ShardingPlan) -> str:
    """What happens when TorchRec is given a plan: the error, or ``trained``."""
    try:
        train(plan, dist.get_rank())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


def types_of(plan: ShardingPlan) -> Sequence[str]:
    return sorted({p.sharding_type for ps in plan.plan.values() for p in ps.values()})
