"""Small modules of each family, written from their papers' equations, and inputs for them.

Sizes are small, but for GPT-2 small and BERT base, which have their own. Batches are samples.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRMTrain

FEATURES = ("f0", "f1", "g1", "f2")
WIDTH = 64


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers, each with ReLU."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers)


class Block(nn.Module):
    """Norms first, fused attention."""

    def __init__(self, hidden: int, heads: int, ffn: int, *, causal: bool) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.inner, self.out = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).split(hidden, dim=2)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.out(functional.gelu(self.inner(self.last(x))))


class Transformer(nn.Module):
    """GPT-2 where causal, BERT4Rec where not; tied weights, loss on every position."""

    def __init__(
        self, layers: int, hidden: int, heads: int, ffn: int, seq: int, vocabulary: int,
        *, causal: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.places = nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, ffn, causal=causal) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Bert(nn.Module):
    """BERT base by PyTorch's own encoder: norms last, no fused path in training."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        self.kinds, self.norm = nn.Embedding(2, 768), nn.LayerNorm(768)
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.pooler = nn.Linear(768, 768)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1])
        x = self.words(ids) + self.places(places) + self.kinds(torch.zeros_like(ids))
        return torch.tanh(self.pooler(self.encoder(self.norm(x))[:, 0]))


class Hstu(nn.Module):
    """Layers of Zhai et al. 2024, equations 1 to 3: pointwise attention without softmax."""

    def __init__(
        self, layers: int, hidden: int, heads: int, widths: tuple[int, int], *, given: int = 0
    ) -> None:
        super().__init__()
        self.widths, self.heads = widths, heads
        asked, told = (heads * width for width in widths)
        self.given = nn.Linear(given, hidden) if given else nn.Identity()
        self.inner = nn.ModuleList(nn.Linear(hidden, 2 * asked + 2 * told) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(told, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.lasts = nn.ModuleList(nn.LayerNorm(told) for _ in range(layers))
        self.is_causal = bool(given)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.given(x)
        batch, length, _ = x.shape
        asked, told = (self.heads * width for width in self.widths)
        for norm, inner, last, outer in zip(
            self.norms, self.inner, self.lasts, self.outer, strict=True
        ):
            met = functional.silu(inner(norm(x)))
            u, v, q, k = met.split([told, told, asked, asked], dim=-1)
            q, k, v = (
                part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v)
            )
            scores = functional.silu(q @ k.transpose(-1, -2)) / length
            if self.is_causal:
                scores = scores * torch.ones(length, length).tril()
            seen = (scores @ v).transpose(1, 2).reshape(batch, length, told)
            x = x + outer(last(seen) * u)
        return x


class Din(nn.Module):
    """Attention pooling of Zhou et al. 2018: an MLP scores every position against the target."""

    def __init__(self, width: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.scores = nn.Sequential(mlp(4 * width, *sizes), nn.Linear(sizes[-1], 1))
        self.top = mlp(2 * width, 32, 1)

    def forward(self, target: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        wide = target.unsqueeze(1).expand_as(history)
        met = torch.cat([wide, history, wide - history, wide * history], dim=-1)
        weights = self.scores(met).transpose(1, 2)
        pooled = (weights @ history).squeeze(1)
        return self.top(torch.cat([pooled, target], dim=-1))


class Mmoe(nn.Module):
    """Ma et al. 2018: every task mixes all experts by a gate of its own."""

    def __init__(self, width: int, experts: int, tasks: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(width, *sizes) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(tasks))
        self.towers = nn.ModuleList(mlp(sizes[-1], 16, 1) for _ in range(tasks))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        known = torch.stack([expert(x) for expert in self.experts], dim=1)
        found = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = torch.softmax(gate(x), dim=-1).unsqueeze(1)
            found.append(tower((weights @ known).squeeze(1)))
        return found


class Moe(nn.Module):
    """Experts by capacity: each takes its share of the rows that choose it, as GShard does."""

    def __init__(self, width: int, ffn: int, experts: int, top: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.inner = nn.Parameter(torch.empty(experts, width, ffn))
        self.outer = nn.Parameter(torch.empty(experts, ffn, width))
        self.experts, self.top = experts, top

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, width = x.shape
        capacity = -(-rows * self.top // self.experts)
        weights = torch.softmax(self.gate(x), dim=-1)
        shares, places = weights.transpose(0, 1).topk(capacity, dim=-1)
        taken = x.index_select(0, places.reshape(-1)).view(self.experts, capacity, width)
        made = torch.bmm(functional.relu(torch.bmm(taken, self.inner)), self.outer)
        made = made * shares.unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, places.reshape(-1), made.view(-1, width))


class TwoTower(nn.Module):
    """A tower each for users and items; all pairs of a batch are scored."""

    def __init__(self, width: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.user, self.item = mlp(width, *sizes), mlp(width, *sizes)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        scores = self.user(user) @ self.item(item).T
        return functional.cross_entropy(scores, torch.arange(scores.shape[0]))


class DeepFm(nn.Module):
    """Guo et al. 2017: first order, pairs of vectors, and an MLP, added up."""

    def __init__(self, fields: int, width: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(fields * width, 1)
        self.deep = nn.Sequential(mlp(fields * width, *sizes), nn.Linear(sizes[-1], 1))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        flat = vectors.flatten(1)
        pairs = vectors.sum(1).square() - vectors.square().sum(1)
        return self.first(flat) + 0.5 * pairs.sum(1, keepdim=True) + self.deep(flat)


def tables() -> EmbeddingBagCollection:
    """Three tables with four features of 64."""
    return EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=f"t{i}",
                embedding_dim=WIDTH,
                num_embeddings=100,
                feature_names=["f1", "g1"] if i == 1 else [f"f{i}"],
            )
            for i in range(3)
        ],
    )


def indices(batch: int) -> KeyedJaggedTensor:
    """One index of each feature."""
    return KeyedJaggedTensor(
        keys=list(FEATURES),
        values=torch.zeros(4 * batch, dtype=torch.int64),
        lengths=torch.ones(4 * batch, dtype=torch.int64),
    )


def dlrm(kind: type = DLRM, **more: int) -> DLRM:
    """TorchRec's, over :func:`tables`."""
    return kind(
        embedding_bag_collection=tables(),
        dense_in_features=13,
        dense_arch_layer_sizes=[512, WIDTH],
        over_arch_layer_sizes=[512, 256, 1],
        dense_device=torch.device("meta"),
        **more,
    )


def tokens(batch: int, seq: int, count: int) -> tuple[torch.Tensor, ...]:
    return (torch.zeros(batch, seq, dtype=torch.int64),) * count


BATCH = 8
WITH_TABLES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "DLRM": (dlrm, lambda n: (torch.zeros(n, 13), indices(n))),
    "DCNv2": (
        lambda: dlrm(DLRM_DCN, dcn_num_layers=3, dcn_low_rank_dim=32),
        lambda n: (torch.zeros(n, 13), indices(n)),
    ),
    "TorchRec's DeepFM": (
        lambda: SimpleDeepFMNN(
            num_dense_features=13,
            embedding_bag_collection=tables(),
            hidden_layer_size=20,
            deep_fm_dimension=5,
        ),
        lambda n: (torch.zeros(n, 13), indices(n)),
    ),
}
PLAIN: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "DeepFM": (lambda: DeepFm(6, 16, (64, 32)), lambda n: (torch.zeros(n, 6, 16),)),
    "DIN": (
        lambda: Din(32, (80, 40)),
        lambda n: (torch.zeros(n, 32), torch.zeros(n, 50, 32)),
    ),
    "MMoE": (lambda: Mmoe(64, 4, 2, (64, 32)), lambda n: (torch.zeros(n, 64),)),
    "two-tower": (
        lambda: TwoTower(64, (128, 32)),
        lambda n: (torch.zeros(n, 64), torch.zeros(n, 64)),
    ),
    "BERT4Rec": (
        lambda: Transformer(2, 64, 2, 256, 50, 1000, causal=False),
        lambda n: tokens(n, 50, 2),
    ),
    "SASRec": (
        lambda: Transformer(2, 48, 1, 48, 50, 700, causal=True),
        lambda n: tokens(n, 50, 2),
    ),
    "HSTU": (lambda: Hstu(3, 64, 4, (16, 16)), lambda n: (torch.zeros(n, 50, 64),)),
    "HSTU, causal": (
        lambda: Hstu(2, 96, 4, (16, 40), given=24),
        lambda n: (torch.zeros(n, 60, 24),),
    ),
    "GPT-2 small": (
        lambda: Transformer(12, 768, 12, 3072, 1024, 50257, causal=True),
        lambda n: tokens(n, 1024, 2),
    ),
    "BERT base": (Bert, lambda n: tokens(n, 128, 1)),
    "MoE": (lambda: Moe(32, 64, 4, 2), lambda n: (torch.zeros(n, 32),)),
}
LARGE = ("GPT-2 small", "BERT base")


def train_dlrm() -> nn.Module:
    """DLRM with its loss."""
    return DLRMTrain(dlrm())
