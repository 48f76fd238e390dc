"""Small TorchRec models on the meta device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

META = torch.device("meta")

Shape = tuple[str, int, int]
"""Name, rows, dimension."""


def bags(shapes: Sequence[Shape], *, is_weighted: bool = False) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        device=META,
        is_weighted=is_weighted,
        tables=[
            EmbeddingBagConfig(name=n, num_embeddings=r, embedding_dim=d, feature_names=[f"f_{n}"])
            for n, r, d in shapes
        ],
    )


def sequences(shapes: Sequence[Shape]) -> EmbeddingCollection:
    return EmbeddingCollection(
        device=META,
        tables=[
            EmbeddingConfig(name=n, num_embeddings=r, embedding_dim=d, feature_names=[f"f_{n}"])
            for n, r, d in shapes
        ],
    )


class Model(nn.Module):
    """Embedding modules at two depths, and a dense layer."""

    def __init__(self, pooled: nn.Module | None = None, unpooled: nn.Module | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 4)
        self.sparse = nn.ModuleDict({} if pooled is None else {"bags": pooled})
        if unpooled is not None:
            self.history = unpooled


def torchrec_topology(
    world: int, local: int, device: str = "cuda", *, pod_size: int | None = None
) -> Topology:
    trainer = TrainerConfig(world_size=world, local_world_size=local)
    if pod_size is not None:
        trainer = replace(trainer, pod_size=pod_size)
    return TopologyFactory.create_topology(
        trainer_config=trainer,
        hardware_config=HardwareConfig(hbm_cap_bytes=2**30, ddr_cap_bytes=2**33),
        kernel_config=KernelConfig(compute_device=device),
    )
