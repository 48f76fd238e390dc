"""Models that are trained under both planners, by name, with their batches and sharders."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection
from torchrec.modules.embedding_configs import PoolingType

from tests.integration.models import META
from tests.integration.on_ranks.gloo_model import FUSED_PARAMS
from tests.integration.on_ranks.swap_models import (
    Bags,
    Everything,
    Limits,
    Sequential,
    Swap,
    TwoTower,
    click_batch,
    deep_fm,
    dlrm,
    everything_batch,
    fused_bags,
    history_batch,
    of_shapes,
    pooled,
    random_bags,
)


def every_sharder() -> list[ModuleSharder[nn.Module]]:
    bags = EmbeddingBagCollectionSharder(fused_params=FUSED_PARAMS)
    single = EmbeddingCollectionSharder(fused_params=FUSED_PARAMS)
    return [
        bags,
        single,
        FusedEmbeddingBagCollectionSharder(),
        FeatureProcessedEmbeddingBagCollectionSharder(bags),
        ManagedCollisionEmbeddingBagCollectionSharder(bags),
        ManagedCollisionEmbeddingCollectionSharder(single),
    ]


def _first(answer: Any) -> torch.Tensor:
    return answer[0]


def _itself(answer: torch.Tensor) -> torch.Tensor:
    return answer


def read_often(*names: str) -> Limits:
    """Constraints that say how often tables are read, without which both planners often agree."""
    return {name: ParameterConstraints(pooling_factors=[10.0]) for name in names}


SWAPS: Final = {
    "DLRM": Swap(make=lambda: dlrm(DLRM), batch=click_batch, loss=_first, sharders=every_sharder),
    "DLRM-DCN": Swap(
        make=lambda: dlrm(DLRM_DCN, dcn_num_layers=2, dcn_low_rank_dim=8),
        batch=click_batch,
        loss=_first,
        sharders=every_sharder,
    ),
    "DLRM-Projection": Swap(
        make=lambda: dlrm(
            DLRM_Projection,
            interaction_branch1_layer_sizes=[32, 16],
            interaction_branch2_layer_sizes=[32, 16],
        ),
        batch=click_batch,
        loss=_first,
        sharders=every_sharder,
    ),
    "DeepFM": Swap(
        make=deep_fm,
        batch=click_batch,
        loss=_first,
        sharders=every_sharder,
        limits=read_often("t1", "t4"),
    ),
    "two towers": Swap(
        make=TwoTower,
        batch=lambda g: tuple(random_bags(of_shapes(s), g) for s in TwoTower.shapes),
        loss=_itself,
        sharders=every_sharder,
        limits=read_often("user", "shop"),
    ),
    "sequences": Swap(
        make=Sequential,
        batch=history_batch,
        loss=_itself,
        sharders=every_sharder,
        limits=read_often("item"),
    ),
    "every kind": Swap(
        make=Everything,
        batch=everything_batch,
        loss=_itself,
        sharders=every_sharder,
        limits=read_often("a", "w"),
        device="cuda",
    ),
    "fused module": Swap(
        make=fused_bags,
        batch=lambda g: random_bags(of_shapes(Bags.shapes), g),
        loss=_itself,
        sharders=every_sharder,
        limits=read_often("small", "wide"),
    ),
    "weighted means": Swap(
        make=lambda: Bags(
            EmbeddingBagCollection(
                pooled(Bags.shapes, pooling=PoolingType.MEAN), device=META, is_weighted=True
            )
        ),
        batch=lambda g: random_bags(of_shapes(Bags.shapes), g, weighted=True),
        loss=_itself,
        sharders=every_sharder,
        limits=read_often("small", "wide"),
    ),
    "batches by feature": Swap(
        make=lambda: Bags(EmbeddingBagCollection(pooled(Bags.shapes), device=META)),
        batch=lambda g: random_bags(of_shapes(Bags.shapes), g, batches=(3, 8, 5, 1)),
        loss=_itself,
        sharders=every_sharder,
        limits=read_often("small", "wide"),
    ),
}
