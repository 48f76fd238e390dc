"""Small models of many kinds, with their batches, for training under two planners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    StorageReservation,
    Topology,
)
from torchrec.distributed.types import ModuleSharder
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from tests.integration.models import META
from tests.integration.on_ranks.gloo_model import Batch

BATCH: Final = 8
CPU: Final = torch.device("cpu")

Shape = tuple[str, int, int]
Limits = dict[str, ParameterConstraints]

DLRM_TABLES: Final = tuple((f"t{i}", (2000, 3, 300, 40, 1000, 500)[i], 16) for i in range(6))
"""The interaction of a DLRM needs one dimension."""


@dataclass(frozen=True, kw_only=True)
class Swap:
    """A model that is trained under both planners.

    ``make`` gives the same dense weights at every call. ``batch`` makes a rank's batch from its
    generator, ``loss`` the loss from what the model returns. ``device`` is the one planned for;
    TorchRec's planner knows no plan of managed-collision tables on ``cpu``. ``reserve`` makes a
    storage reservation for a topology.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Any]
    loss: Callable[[Any], torch.Tensor]
    sharders: Callable[[], list[ModuleSharder[nn.Module]]]
    limits: Limits = field(default_factory=dict)
    device: str = "cpu"
    reserve: Callable[[Topology], StorageReservation | None] = lambda _: None


def pooled(shapes: Sequence[Shape], **more: Any) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(
            name=n, num_embeddings=r, embedding_dim=d, feature_names=[f"f_{n}"], **more
        )
        for n, r, d in shapes
    ]


def unpooled(shapes: Sequence[Shape]) -> list[EmbeddingConfig]:
    return [
        EmbeddingConfig(name=n, num_embeddings=r, embedding_dim=d, feature_names=[f"f_{n}"])
        for n, r, d in shapes
    ]


def random_bags(
    features: Sequence[tuple[str, int]],
    generator: torch.Generator,
    *,
    most: int = 4,
    weighted: bool = False,
    batches: Sequence[int] = (),
) -> KeyedJaggedTensor:
    """Features with ids below a limit each, 0 to ``most`` per sample.

    ``batches`` are samples by feature; the batch size if empty.
    """
    sizes = list(batches) or [BATCH] * len(features)
    lengths = [torch.randint(0, most + 1, (size,), generator=generator) for size in sizes]
    values = [
        torch.randint(0, limit, (int(length.sum()),), generator=generator)
        for (_, limit), length in zip(features, lengths, strict=True)
    ]
    found = torch.cat(values)
    inverse = [torch.randint(0, size, (BATCH,), generator=generator) for size in sizes]
    keys = [name for name, _ in features]
    return KeyedJaggedTensor(
        keys=keys,
        values=found,
        weights=torch.rand(len(found), generator=generator) if weighted else None,
        lengths=torch.cat(lengths).to(torch.int32),
        stride_per_key_per_rank=[[size] for size in batches] or None,
        inverse_indices=(keys, torch.stack(inverse)) if batches else None,
    )


def of_shapes(shapes: Sequence[Shape]) -> list[tuple[str, int]]:
    return [(f"f_{name}", rows) for name, rows, _ in shapes]


def columns(found: KeyedTensor, shapes: Sequence[Shape]) -> torch.Tensor:
    """The vectors of all features side by side; the order of ``values()`` depends on the plan."""
    return torch.cat([found[feature] for feature, _ in of_shapes(shapes)], dim=1)


# ------------------------------------------------------------------ models with dense features


def click_batch(generator: torch.Generator) -> Batch:
    return Batch(
        dense_features=torch.rand(BATCH, 13, generator=generator),
        sparse_features=random_bags(of_shapes(DLRM_TABLES), generator),
        labels=torch.randint(0, 2, (BATCH,), generator=generator).float(),
    )


def dlrm(kind: type[DLRM], **more: Any) -> nn.Module:
    torch.manual_seed(0)
    return DLRMTrain(
        kind(
            embedding_bag_collection=EmbeddingBagCollection(pooled(DLRM_TABLES), device=META),
            dense_in_features=13,
            dense_arch_layer_sizes=[32, 16],
            over_arch_layer_sizes=[32, 1],
            dense_device=CPU,
            **more,
        )
    )


def deep_fm() -> nn.Module:
    torch.manual_seed(0)
    return DLRMTrain(
        SimpleDeepFMNN(
            num_dense_features=13,
            embedding_bag_collection=EmbeddingBagCollection(pooled(DLRM_TABLES), device=META),
            hidden_layer_size=16,
            deep_fm_dimension=4,
        )
    )


class TwoTower(nn.Module):
    """A tower of queries and one of candidates; their dot products are the logits of the batch."""

    shapes: Final = (
        (("user", 3000, 32), ("country", 7, 8)),
        (("item", 5000, 16), ("shop", 200, 64)),
    )

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = nn.ModuleList(
            EmbeddingBagCollection(pooled(s), device=META) for s in self.shapes
        )
        self.towers = nn.ModuleList(MLP(sum(d for *_, d in s), [24, 16]) for s in self.shapes)

    def forward(self, features: tuple[KeyedJaggedTensor, KeyedJaggedTensor]) -> torch.Tensor:
        query, candidate = (
            tower(columns(bags(part), shapes))
            for part, bags, tower, shapes in zip(
                features, self.bags, self.towers, self.shapes, strict=True
            )
        )
        return nn.functional.cross_entropy(query @ candidate.T, torch.arange(len(query)))


class Sequential(nn.Module):
    """Attention over a padded sequence of items, which predicts each next item."""

    length: Final = 6
    items: Final = 400

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        shapes = [("item", self.items, 16), ("position", self.length, 16)]
        self.history = EmbeddingCollection(tables=unpooled(shapes), device=META)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, self.items)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found = self.history(features)
        item, position = (found[f].to_padded_dense(self.length) for f in ("f_item", "f_position"))
        seen = self.layer(item + position)
        target = features["f_item"].to_padded_dense(self.length)[:, 1:].long()
        logits = self.out(seen[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def history_batch(generator: torch.Generator) -> KeyedJaggedTensor:
    lengths = torch.randint(1, Sequential.length + 1, (BATCH,), generator=generator)
    items = torch.randint(0, Sequential.items, (int(lengths.sum()),), generator=generator)
    positions = torch.cat([torch.arange(int(n)) for n in lengths])
    return KeyedJaggedTensor(
        keys=["f_item", "f_position"],
        values=torch.cat([items, positions]),
        lengths=torch.cat([lengths, lengths]).to(torch.int32),
    )


# ------------------------------------------------------------------ every kind of module


def collisions(configs: Sequence[Any]) -> ManagedCollisionCollection:
    """Raw ids below 4000 on the rows of the tables, in buckets of which ranks get whole ones."""
    modules = {
        c.name: MCHManagedCollisionModule(
            zch_size=c.num_embeddings,
            device=CPU,
            input_hash_size=4000,
            eviction_interval=2,
            eviction_policy=DistanceLFU_EvictionPolicy(),
            buckets=4,
        )
        for c in configs
    }
    return ManagedCollisionCollection(modules, list(configs))


class Everything(nn.Module):
    """Plain, weighted, unpooled, feature-processed and managed-collision tables in one model."""

    plain: Final = (("a", 1000, 32), ("b", 5, 8))
    weighted: Final = (("w", 700, 16), ("v", 60, 128))
    clicked: Final = (("c", 900, 16), ("p", 50, 16))
    processed: Final = (("x", 800, 64), ("y", 30, 16))
    collided: Final = (("m", 512, 16), ("n", 256, 32))
    raw: Final = (("r", 256, 16),)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = EmbeddingBagCollection(
            pooled(self.plain, pooling=PoolingType.MEAN), device=META
        )
        self.weighing = EmbeddingBagCollection(pooled(self.weighted), device=META, is_weighted=True)
        self.history = EmbeddingCollection(tables=unpooled(self.clicked), device=META)
        self.positioned = FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection(pooled(self.processed), device=META, is_weighted=True),
            PositionWeightedModuleCollection(
                max_feature_lengths=dict.fromkeys(("f_x", "f_y"), 8), device=CPU
            ),
        )
        configs, raw = pooled(self.collided), unpooled(self.raw)
        self.hashed = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection(configs, device=META), collisions(configs)
        )
        self.hashed_history = ManagedCollisionEmbeddingCollection(
            EmbeddingCollection(tables=raw, device=META), collisions(raw)
        )
        width = sum(d for s in (self.plain, self.weighted, self.processed) for *_, d in s)
        self.over = MLP(width + 48, [16, 1])

    def forward(self, batch: dict[str, KeyedJaggedTensor]) -> torch.Tensor:
        summed = [
            columns(self.bags(batch["plain"]), self.plain),
            columns(self.weighing(batch["weighted"]), self.weighted),
            columns(self.positioned(batch["processed"]), self.processed),
            columns(self.hashed(batch["collided"])[0], self.collided),
        ]
        logits = self.over(torch.cat(summed, dim=1)).mean()
        clicked, raw = self.history(batch["clicked"]), self.hashed_history(batch["raw"])[0]
        found = [clicked["f_c"], clicked["f_p"], raw["f_r"]]
        return logits.sigmoid() + sum(f.values().sin().mean() for f in found)


def everything_batch(generator: torch.Generator) -> dict[str, KeyedJaggedTensor]:
    kind = Everything
    made = {
        name: random_bags(of_shapes(getattr(kind, name)), generator, weighted=name == "weighted")
        for name in ("plain", "weighted", "clicked", "processed")
    }
    for name in ("collided", "raw"):
        ids = [(feature, 4000) for feature, _ in of_shapes(getattr(kind, name))]
        made[name] = random_bags(ids, generator)
    return made


class Bags(nn.Module):
    """One pooled module and a layer above it."""

    shapes: Final = (("big", 4000, 64), ("small", 9, 16), ("wide", 100, 128), ("odd", 333, 16))

    def __init__(self, bags: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = bags
        self.over = nn.Linear(sum(d for *_, d in self.shapes), 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.over(columns(self.bags(features), self.shapes)).sigmoid().mean()


def fused_bags() -> nn.Module:
    return Bags(
        FusedEmbeddingBagCollection(
            tables=pooled(Bags.shapes),
            optimizer_type=torch.optim.SGD,
            optimizer_kwargs={"lr": 1.0},
            device=META,
        )
    )
