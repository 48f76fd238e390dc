"""Models with their settings drawn from a seed, small enough to train under both planners."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.found.drawn_torchrec import (
    drawn_bags,
    drawn_constraints,
    drawn_reservation,
    drawn_sequences,
    made_reservation,
)
from tests.integration.on_ranks.gloo_model import FUSED_PARAMS
from tests.integration.on_ranks.swap_models import Swap, random_bags

MOST_BYTES: Final = 4e6
"""Of the weights of all pooled tables."""


class Drawn(nn.Module):
    """Pooled tables, unpooled ones where some are drawn, and a layer above them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        names = list[str]()
        self.bags = drawn_bags(rng, names, MOST_BYTES)
        self.sequences = None
        if rng.random() < 0.5:
            self.sequences = drawn_sequences(rng, names, most_rows=3.5)
        tables = self.bags.embedding_bag_configs()
        self.features = [f for c in tables for f in c.feature_names]
        width = sum(c.embedding_dim * len(c.feature_names) for c in tables)
        self.over = nn.Linear(width, 1)
        self.limits = drawn_constraints(rng, names)
        self.reservation = drawn_reservation(rng)
        for name, parameter in self.bags.named_parameters():
            self._optimize(rng, name.split(".")[-2], parameter)

    def _optimize(self, rng: np.random.Generator, name: str, parameter: nn.Parameter) -> None:
        """Give about a third of the tables an optimizer that is not the sharder's."""
        chance = rng.random()
        limit = self.limits.setdefault(name, ParameterConstraints())
        if chance < 0.2:
            apply_optimizer_in_backward(torch.optim.Adagrad, [parameter], {"lr": 0.1})
            limit.sharding_types = limit.sharding_types or ["table_wise", "row_wise", "column_wise"]
        elif chance < 0.35:
            apply_optimizer_in_backward(RowWiseAdagrad, [parameter], {"lr": 0.1})
            limit.sharding_types = ["table_wise", "row_wise"]

    def forward(self, batch: dict[str, KeyedJaggedTensor]) -> torch.Tensor:
        found = self.bags(batch["pooled"])
        loss = self.over(torch.cat([found[f] for f in self.features], dim=1)).sigmoid().mean()
        if self.sequences is not None:
            vectors = self.sequences(batch["unpooled"]).values()
            loss = loss + sum(v.values().sin().mean() for v in vectors)
        return loss


def features_of(owner: Any) -> list[tuple[str, int]]:
    """The features of a module with tables, and the rows of each."""
    configs = (
        owner.embedding_bag_configs()
        if isinstance(owner, EmbeddingBagCollection)
        else owner.embedding_configs()
    )
    return [(f, c.num_embeddings) for c in configs for f in c.feature_names]


def drawn_swap(seed: int) -> Swap:
    """The model of a seed, which is trained under both planners."""
    known = Drawn(seed)
    weighted = known.bags.is_weighted()

    def batch(generator: torch.Generator) -> dict[str, KeyedJaggedTensor]:
        made = {"pooled": random_bags(features_of(known.bags), generator, weighted=weighted)}
        if known.sequences is not None:
            made["unpooled"] = random_bags(features_of(known.sequences), generator)
        return made

    return Swap(
        make=lambda: Drawn(seed),
        batch=batch,
        loss=lambda answer: answer,
        sharders=lambda: [
            EmbeddingBagCollectionSharder(fused_params=FUSED_PARAMS),
            EmbeddingCollectionSharder(fused_params=FUSED_PARAMS),
        ],
        limits=known.limits,
        device="cuda",
        reserve=lambda topology: made_reservation(*known.reservation, topology),
    )
