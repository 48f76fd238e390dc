"""Every private name of TorchRec and FBGEMM that plans depend on still says what it did.

Without these tests a renamed attribute would read as "not set", and plans would change in silence.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.planner import Topology
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
)
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.crossnet import LowRankCrossNet, VectorCrossNet
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from planner.integrations.torchrec_topology import MULTIPLIERS
from planner.integrations.translate import private_names as private
from planner.integrations.translate.reading import table_configs


def _configs() -> list[EmbeddingBagConfig]:
    return [EmbeddingBagConfig(name="t", num_embeddings=64, embedding_dim=8, feature_names=["f"])]


def _tables() -> EmbeddingBagCollection:
    return EmbeddingBagCollection(tables=_configs(), device=torch.device("meta"))


def test_the_optimizer_on_a_parameter_is_found() -> None:
    tables = _tables()
    parameter = tables.embedding_bags["t"].weight
    assert private.optimizer_classes(parameter) == []
    apply_optimizer_in_backward(torch.optim.Adam, tables.parameters(), {"lr": 0.1})
    assert private.optimizer_classes(parameter) == [torch.optim.Adam]


def test_torchrec_counts_two_states_of_adam_and_none_without_an_optimizer() -> None:
    parameter = nn.Parameter(torch.empty(64, 8))
    assert private.optimizer_multiplier(torch.optim.Adam, parameter) == 2.0
    assert private.optimizer_multiplier(None, parameter) == 0.0


@pytest.mark.parametrize("is_set", [False, True])
def test_index_dedup_of_sharders_is_seen(is_set: bool) -> None:
    plain = EmbeddingCollectionSharder(use_index_dedup=is_set)
    wrapped = ManagedCollisionEmbeddingCollectionSharder(ec_sharder=plain)
    assert private.has_index_dedup(plain) is is_set
    assert private.has_index_dedup(wrapped) is is_set


def test_precision_and_rows_of_fbgemms_codecs_are_read() -> None:
    config = QCommsConfig(
        forward_precision=CommType.FP8, backward_precision=CommType.FP16, fp8_quantize_dim=64
    )
    codecs: Any = get_qcomm_codecs_registry(config, device=torch.device("cpu"))
    both = codecs["POOLED_EMBEDDINGS_ALL_TO_ALL"]
    assert private.codec_rows(both.forward) == ("fp8", 64)
    assert private.codec_rows(both.backward)[0] == "fp16"
    assert private.codec_rows(object()) == (None, 0)


def test_buckets_and_tables_of_managed_collisions_are_found() -> None:
    collision = MCHManagedCollisionModule(
        zch_size=64,
        device=torch.device("cpu"),
        eviction_interval=1,
        eviction_policy=DistanceLFU_EvictionPolicy(),
    )
    configs = _configs()
    collection = ManagedCollisionCollection({"t": collision}, configs)
    module = ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(tables=configs), collection
    )
    assert private.collision_buckets(module) == collection.table_to_number_buckets()
    assert list(table_configs(module) or {}) == ["t"]


def test_layers_and_rank_of_a_cross_net_are_read() -> None:
    assert private.cross_layers(LowRankCrossNet(in_features=8, num_layers=3, low_rank=2)) == (3, 2)
    assert private.cross_layers(VectorCrossNet(in_features=8, num_layers=3)) is None


def test_the_share_of_a_reservation_is_read() -> None:
    assert private.reserved_sizes(FixedPercentageStorageReservation(percentage=0.2)) == (None, 0.2)


def test_the_bytes_of_a_reservation_are_read() -> None:
    kept = FixedAbsoluteStorageReservation(hbm_reserved_bytes=2**20)
    assert private.reserved_sizes(kept)[0] == 2**20


def test_tables_behind_feature_processors_are_found() -> None:
    processors = {"f": PositionWeightedModule(max_feature_length=4)}
    weighted = EmbeddingBagCollection(_configs(), is_weighted=True, device=torch.device("meta"))
    module = FeatureProcessedEmbeddingBagCollection(weighted, processors)
    assert list(table_configs(module) or {}) == ["t"]


def test_the_processor_of_a_table_is_the_one_that_torchrec_sees() -> None:
    tables = _tables()
    assert private.feature_processor(tables) is None
    processor = nn.Module()
    processor.feature_processor_modules = nn.ModuleDict({"t": nn.Identity()})
    tables._feature_processor = processor
    option = ShardingOption(
        name="t",
        tensor=tables.embedding_bags["t"].weight,
        module=("", tables),
        input_lengths=[1.0],
        batch_size=8,
        sharding_type="table_wise",
        partition_by="device",
        compute_kernel="fused",
        shards=[],
    )
    assert option.has_feature_processor
    assert private.feature_processor(tables) is processor


@pytest.mark.parametrize("name", [*MULTIPLIERS])
def test_factors_of_a_topology_are_read(name: str) -> None:
    topology = Topology(world_size=2, compute_device="cuda", **{name: 7.0})
    assert private.topology_setting(topology, name, 0.0) == 7.0


def test_the_options_of_torchrecs_last_plan_are_read() -> None:
    topology = Topology(world_size=2, compute_device="cuda")
    planner = EmbeddingShardingPlanner(topology=topology, debug=False, stats=[])
    assert private.last_options(planner) == []
    planner.plan(nn.Sequential(_tables()), get_default_sharders())
    assert [o.name for o in private.last_options(planner)] == ["t"]


def test_each_proposer_of_torchrecs_planner_is_found() -> None:
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=2, compute_device="cuda"))
    kinds = {type(proposer).__name__ for proposer in private.proposers_of(planner)}
    assert kinds == {"GridSearchProposer", "GreedyProposer", "UniformProposer"}
