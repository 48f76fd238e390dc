"""INT8 and INT4 tables, sharded for inference by the plans of both planners, give one answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

pytest.importorskip("torchrec", reason="shards with torchrec, which is not installed")

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensorBase
from torchrec import EmbeddingBagCollection
from torchrec.distributed.global_settings import get_propogate_device, set_propogate_device
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.inference.modules import (
    DEFAULT_SHARDERS,
    quantize_inference_model,
    shard_quant_model,
)
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.quant.embedding_modules import (
    quant_prep_enable_quant_state_dict_split_scale_bias_for_types,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from planner.integrations.torchrec_planner import ShardPlanner
from tests.integration.on_ranks.swap_models import CPU, of_shapes, pooled, random_bags, unpooled

pytestmark = [pytest.mark.torchrec, pytest.mark.slow]

POOLED = (("big", 4000, 64), ("small", 9, 16), ("wide", 100, 128), ("odd", 333, 16))
UNPOOLED = (("clicks", 900, 16), ("pages", 50, 16))
WORLD = 2
BY_COLUMNS = {
    "wide": ParameterConstraints(
        sharding_types=["column_wise"], min_partition=32, pooling_factors=[10_000.0]
    )
}

Answers = tuple[torch.Tensor, ...]


class Scorer(nn.Module):
    """Pooled and unpooled tables, with what they look up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = EmbeddingBagCollection(pooled(POOLED), device=CPU)
        self.history = EmbeddingCollection(tables=unpooled(UNPOOLED), device=CPU)

    def forward(self, bags: KeyedJaggedTensor, history: KeyedJaggedTensor) -> Answers:
        seen = self.history(history)
        found = self.bags(bags)
        return (
            *(found[f"f_{n}"] for n, *_ in POOLED),
            *(seen[f"f_{n}"].values() for n, *_ in UNPOOLED),
        )


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    """Lookups take the device that they are sharded for."""
    before = get_propogate_device()
    set_propogate_device(True)
    yield
    set_propogate_device(before)


def quantized(width: torch.dtype) -> nn.Module:
    model = Scorer()
    kinds = [EmbeddingBagCollection, EmbeddingCollection]
    quant_prep_enable_quant_state_dict_split_scale_bias_for_types(model, kinds)
    return quantize_inference_model(model, quantization_dtype=width)


def inputs() -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(random_bags(of_shapes(s), generator) for s in (POOLED, UNPOOLED))


def run(model: nn.Module, plan: ShardingPlan) -> Answers:
    """What the model answers once it is sharded; its shards get its weights."""
    sharded, _ = shard_quant_model(
        copy.deepcopy(model), WORLD, "cpu", "cpu", sharding_plan=copy.deepcopy(plan)
    )
    source = model.state_dict()
    for name, target in sharded.state_dict().items():
        if ".tbes." in name:
            continue
        if isinstance(target, ShardedTensorBase):
            for shard in target.local_shards():
                row, column = shard.metadata.shard_offsets
                rows, columns = shard.tensor.shape
                shard.tensor.copy_(source[name][row : row + rows, column : column + columns])
        elif isinstance(target, list):  # of every piece of a row, the scale of the whole row
            for piece in target:
                piece.copy_(source[name])
        else:
            target.copy_(source[name])
    return sharded(*inputs())


@pytest.mark.parametrize("cut", ["freely", "by columns"])
@pytest.mark.parametrize("width", [torch.qint8, torch.quint4x2])
def test_inference_answers_alike_under_both_planners(width: torch.dtype, cut: str) -> None:
    model = quantized(width)
    expected = model(*inputs())
    assert all(float(answer.abs().max()) > 0.001 for answer in expected)
    topology = Topology(WORLD, "cpu", local_world_size=WORLD)
    limits = BY_COLUMNS if cut == "by columns" else {}
    for planner in (EmbeddingShardingPlanner, ShardPlanner):
        made = planner(topology, 8, constraints=limits, stats=[])
        plan = made.plan(model, list(DEFAULT_SHARDERS))
        assert {len(plan.plan[module]) for module in ("bags", "history")} == {4, 2}
        for table in limits:
            assert plan.plan["bags"][table].sharding_type == "column_wise"
            assert len(plan.plan["bags"][table].sharding_spec.shards) > 1
        for answer, other in zip(run(model, plan), expected, strict=True):
            assert torch.allclose(answer, other, rtol=0, atol=1e-5)
