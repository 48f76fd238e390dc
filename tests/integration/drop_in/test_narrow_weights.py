"""Tables of 16-bit weights, which fit by TorchRec's count because it counts their outputs so."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("torchrec", reason="plans models of torchrec, which is not installed")

import torch
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from planner.integrations.torchrec_planner import ShardPlanner

pytestmark = pytest.mark.torchrec


def fits(
    planner: type[EmbeddingShardingPlanner], weights: DataType, outputs: DataType | None
) -> bool:
    """Whether a planner finds room for unpooled tables on two ranks of 1 GiB."""
    names = [f"t{i}" for i in range(3)]
    tables = [
        EmbeddingConfig(
            name=name,
            num_embeddings=1_000_000,
            embedding_dim=128,
            feature_names=[f"{name}_f"],
            data_type=weights,
        )
        for name in names
    ]
    model = nn.Sequential(EmbeddingCollection(device=torch.device("meta"), tables=tables))
    limits = ParameterConstraints(pooling_factors=[500.0], output_dtype=outputs)
    topology = Topology(world_size=2, compute_device="cuda", hbm_cap=2**30)
    few = {"max_evaluations": 5} if planner is ShardPlanner else {}
    asked = planner(
        topology=topology, batch_size=1024, constraints=dict.fromkeys(names, limits), **few
    )
    try:
        asked.plan(model, [EmbeddingCollectionSharder()])
    except PlannerError:
        return False
    return True


@pytest.mark.parametrize(
    ("weights", "outputs", "is_room"),
    [
        (DataType.BF16, None, True),
        (DataType.FP16, None, True),
        (DataType.FP16, DataType.FP32, False),
        (DataType.FP32, None, False),
        (DataType.FP32, DataType.FP16, True),
    ],
)
def test_what_fits_by_torchrecs_count_is_planned(
    weights: DataType, outputs: DataType | None, is_room: bool
) -> None:
    assert fits(EmbeddingShardingPlanner, weights, outputs) is is_room
    assert fits(ShardPlanner, weights, outputs) is is_room


def test_a_plan_that_fits_by_that_count_alone_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert fits(ShardPlanner, DataType.FP16, None)
    assert "counts outputs of narrow weights as narrow: it may run out of memory" in caplog.text
