"""Quantized tables, planned for inference."""

from __future__ import annotations

import pytest

pytest.importorskip("torchrec", reason="plans models of torchrec, which is not installed")

from torchrec import EmbeddingBagConfig
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.quant_embedding import QuantEmbeddingCollectionSharder
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import DataType as TorchrecDataType
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantBags
from torchrec.quant.embedding_modules import EmbeddingCollection as QuantSequences

from costmodels.sharding import ShardingType
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import describe_model
from planner.integrations.translate.constraints import search_limits
from tests.integration.models import META, Model, torchrec_topology

pytestmark = pytest.mark.torchrec


@pytest.mark.parametrize("kind", ["INT8", "INT4", "INT2"])
@pytest.mark.parametrize("types", [None, ["column_wise"]])
def test_quantized_tables_of_every_width_are_planned(kind: str, types: list[str] | None) -> None:
    table = EmbeddingBagConfig(
        name="a",
        num_embeddings=500,
        embedding_dim=64,
        feature_names=["f"],
        data_type=TorchrecDataType[kind],
    )
    module = QuantBags(tables=[table], is_weighted=False, device=META)
    sharder = QuantEmbeddingBagCollectionSharder()
    limit = {"a": ParameterConstraints(sharding_types=types)}
    planner = ShardPlanner(
        torchrec_topology(4, 2), 64, stats=[], constraints=limit, max_evaluations=20
    )
    sharding = planner.plan(Model(module), [sharder]).plan["sparse.bags"]["a"]
    (weights,) = sharder.shardable_parameters(module).values()
    cells = sum(s.shard_sizes[0] * s.shard_sizes[1] for s in sharding.sharding_spec.shards)
    assert cells == weights.numel()
    assert sharding.compute_kernel.startswith("quant")


def test_quantized_unpooled_tables_are_not_cut_by_columns_on_cpu() -> None:
    table = EmbeddingConfig(
        name="a",
        num_embeddings=500,
        embedding_dim=64,
        feature_names=["f"],
        data_type=TorchrecDataType.INT8,
    )
    module = Model(QuantSequences(tables=[table], device=META))
    sharders = [QuantEmbeddingCollectionSharder()]
    limits = {"a": ParameterConstraints(sharding_types=["column_wise", "row_wise"])}
    left = {}
    for device in ("cpu", "cuda"):
        topology = torchrec_topology(2, 2, device=device)
        model = describe_model(
            module, sharders, batch_size=32, constraints=limits, compute_device=device
        )
        assert model is not None
        (rule,) = search_limits(model, topology, None).tables
        left[device] = set(rule.sharding_types)
    both = {ShardingType.ROW_WISE, ShardingType.COLUMN_WISE}
    assert left == {"cpu": {ShardingType.ROW_WISE}, "cuda": both}
