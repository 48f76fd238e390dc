"""Trains small models under a sharding plan, with batches drawn from index distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ModuleSharder, ShardingEnv
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from costmodels.sharding import Plan
from costmodels.workload import Pooling, Workload
from planner.integrations.dense.trace import DenseTrace, trace_dense
from planner.integrations.measure.stage_clock import StageClock
from planner.integrations.measure.synthetic_indices import IndexSampler, bag_lengths
from planner.integrations.torchrec_plan import to_sharding_plan
from planner.validation.tasks import Blocks

_LEARNING_RATE = 0.01
NUM_BATCHES = 4


@dataclass(slots=True)
class Batch:
    """One rank's share of a batch."""

    dense: torch.Tensor
    sparse: KeyedJaggedTensor
    labels: torch.Tensor


class Model(nn.Module):
    """Bottom MLP, tables, concatenation, top MLP, logistic loss.

    ``blocks`` are transformer blocks between the tables and the concatenation. They run over the
    pooled vectors of a sample, or over its sequences, which are padded and added up; the mean over
    positions is passed on.
    """

    def __init__(
        self, workload: Workload, marks: StageClock | None = None, blocks: Blocks | None = None
    ) -> None:
        """Make dense weights on the CPU, and tables without memory."""
        super().__init__()
        self._marks = marks
        self._tables, self._width = workload.tables[0].module, workload.tables[0].embedding_dim
        self._positions = blocks.positions if blocks is not None else 0
        self._is_sequence = workload.tables[0].pooling is Pooling.NONE
        setattr(self, self._tables, _tables(workload))
        arch = workload.dense
        self.bottom = mlp((arch.num_dense_features, *arch.bottom_mlp), last_relu=True)
        joined = sum(t.embedding_dim * len(t.features) for t in workload.tables)
        self.blocks: nn.Module | None = None
        if blocks is not None:
            joined, self.blocks = self._width, _encoder(self._width, blocks)
        joined += arch.bottom_mlp[-1] if arch.bottom_mlp else 0
        self.top = mlp((joined, *arch.top_mlp), last_relu=False)
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch."""
        bottom = self.bottom(batch.dense)
        self._mark("dense_forward")
        found = getattr(self, self._tables)(batch.sparse)
        sequences = list(found.values()) if self._is_sequence else []
        vectors = [x.values() for x in sequences] or [found.values()]
        self._mark("vectors")
        if self._marks is not None:
            for tensor in vectors:
                self._marks.follow(tensor, "dense_backward")
            self._marks.follow(bottom, "gradients")
        met = vectors[0]
        if sequences:
            padded = [x.to_padded_dense(self._positions) for x in sequences]
            met = torch.stack(padded).sum(dim=0) if len(padded) > 1 else padded[0]
        if self.blocks is not None:
            met = self.blocks(met.view(len(bottom), -1, self._width)).mean(dim=1)
        logits = self.top(torch.cat([bottom, met], dim=1))
        loss: torch.Tensor = self.loss(logits.squeeze(-1), batch.labels)
        self._mark("dense_forward")
        return loss

    def _mark(self, stage: str) -> None:
        if self._marks is not None:
            self._marks.mark(stage)


def _tables(workload: Workload) -> nn.Module:
    """One module with all tables: a collection of bags, or of sequences for unpooled tables."""
    collection: Any = EmbeddingBagCollection
    config: Any = EmbeddingBagConfig
    if workload.tables[0].pooling is Pooling.NONE:
        collection, config = EmbeddingCollection, EmbeddingConfig
    tables = [
        config(
            name=t.name,
            embedding_dim=t.embedding_dim,
            num_embeddings=t.num_embeddings,
            feature_names=[f.name for f in t.features],
        )
        for t in workload.tables
    ]
    return cast("nn.Module", collection(device=torch.device("meta"), tables=tables))


def _encoder(width: int, blocks: Blocks) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width,
        blocks.heads,
        blocks.ffn,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    return nn.TransformerEncoder(layer, blocks.layers, enable_nested_tensor=False)


def traced_dense(workload: Workload, blocks: Blocks) -> DenseTrace:
    """The dense part of the model as ``shardplan import torchrec`` sees it."""
    model = Model(workload, blocks=blocks)
    batch = make_batches(workload, 0, 0)[0]
    return trace_dense(
        model,
        (batch,),
        batch_size=int(workload.batch_size_per_rank),
        inputs_need_gradients=False,
    )


def mlp(sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(fan_in, fan_out))
        if last_relu or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Training:
    """One model under one plan, ready to step."""

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        world_size: int,
        seed: int,
        marks: StageClock | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        """Shard the model under the plan, and initialise it."""
        self._marks = marks
        torch.manual_seed(seed)
        fused_params = {
            "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            "learning_rate": _LEARNING_RATE,
            "eps": 1e-8,
        }
        codecs = _codecs(workload)
        sharders: list[ModuleSharder[nn.Module]] = [
            EmbeddingBagCollectionSharder(fused_params=fused_params, qcomm_codecs_registry=codecs),
            EmbeddingCollectionSharder(fused_params=fused_params, qcomm_codecs_registry=codecs),
        ]
        self.model = DistributedModelParallel(
            Model(workload, marks, blocks),
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=torch.device("cpu"),
            plan=to_sharding_plan(
                plan, workload, compute_device="cpu", local_world_size=world_size
            ),
            sharders=sharders,
        )
        dense = dict(in_backward_optimizer_filter(self.model.named_parameters()))
        optimizer = KeyedOptimizerWrapper(
            dense, lambda parameters: torch.optim.SGD(parameters, lr=_LEARNING_RATE)
        )
        self.optimizer = CombinedOptimizer([self.model.fused_optimizer, optimizer])

    def step(self, batch: Batch) -> None:
        """One iteration."""
        self.optimizer.zero_grad()
        if self._marks is not None:
            self._marks.mark("update")
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        if self._marks is not None:
            self._marks.mark("update")


def _codecs(workload: Workload) -> dict[str, Any] | None:
    """TorchRec's codecs for the exchanges of the first table's vectors; None for fp32."""
    used = workload.tables[0].codecs.all_to_all
    if used is None or not used.compresses:
        return None
    config = QCommsConfig(
        forward_precision=CommType(used.forward.precision.value),
        backward_precision=CommType(used.backward.precision.value),
    )
    registry: dict[str, Any] = get_qcomm_codecs_registry(config, device=torch.device("cpu"))
    return registry


def make_batches(workload: Workload, rank: int, seed: int) -> list[Batch]:
    """Batches of one rank: hot rows are the same on every rank, but draws differ."""
    laws = np.random.default_rng(seed)
    draws = np.random.default_rng([seed, rank + 1])
    size = int(workload.batch_size_per_rank)
    samplers = {t.name: IndexSampler(t.distribution, laws) for t in workload.tables}
    batches = []
    for _ in range(NUM_BATCHES):
        lengths, values = [], []
        for table in workload.tables:
            for feature in table.features:
                count = bag_lengths(feature.pooling_factor, size, draws)
                lengths.append(count)
                values.append(samplers[table.name].draw(int(count.sum()), draws))
        features = [f.name for t in workload.tables for f in t.features]
        sparse = KeyedJaggedTensor(
            keys=features,
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(np.concatenate(lengths).astype(np.int32)),
        )
        dense = draws.standard_normal((size, workload.dense.num_dense_features))
        labels = draws.integers(0, 2, size)
        batches.append(
            Batch(
                dense=torch.from_numpy(dense.astype(np.float32)),
                sparse=sparse,
                labels=torch.from_numpy(labels.astype(np.float32)),
            )
        )
    return batches
