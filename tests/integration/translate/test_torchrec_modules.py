"""Module types beyond plain collections: towers, quantized tables; and pods of the running job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torchrec")

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagConfig
from torchrec.distributed.embedding_tower_sharding import (
    EmbeddingTowerCollectionSharder,
    EmbeddingTowerSharder,
)
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import KeyValueParams
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantBags

from planner.errors import InvalidInputError
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_topology import POD_SIZE_VARIABLE, default_topology
from planner.integrations.torchrec_workload import describe_model
from tests.integration.models import META, Model, bags, torchrec_topology

pytestmark = pytest.mark.torchrec

TOWERS = (EmbeddingTowerSharder(), EmbeddingTowerCollectionSharder())


def tower(*names: str) -> EmbeddingTower:
    return EmbeddingTower(bags([(n, 5000, 64) for n in names]), nn.Linear(64 * len(names), 8))


def planner(world: int, local: int, **arguments: object) -> ShardPlanner:
    topology = torchrec_topology(world, local)
    return ShardPlanner(topology, 64, max_evaluations=20, stats=[], **arguments)


def test_tables_of_a_tower_lie_on_one_host() -> None:
    towers = EmbeddingTowerCollection([tower("a", "b", "c"), tower("d", "e")])
    made = planner(8, 2)
    plan = made.plan(Model(towers), list(TOWERS)).plan["sparse.bags"]
    for names in ("abc", "de"):
        assert len({rank // 2 for n in names for rank in plan[n].ranks}) == 1
    assert {p.sharding_type for p in plan.values()} <= {"table_row_wise", "table_column_wise"}
    towers_of = [o.dependency for o in made.get_selected_options()]
    assert towers_of == ["sparse.bags.tower_0"] * 3 + ["sparse.bags.tower_1"] * 2


def test_a_tower_alone_is_one_group() -> None:
    described = describe_model(Model(tower("a", "b")), list(TOWERS), batch_size=8)
    assert described is not None
    assert [t.tower for t in described.tables] == ["sparse.bags"] * 2
    (group,) = described.constraints.together
    assert group.patterns == ("a", "b")


@pytest.mark.parametrize("data_type", [DataType.INT8, DataType.FP16])
def test_quantized_tables_are_planned_by_their_bytes(data_type: DataType) -> None:
    tables = [
        EmbeddingBagConfig(
            name=n,
            num_embeddings=5000,
            embedding_dim=64,
            feature_names=[f"f_{n}"],
            data_type=data_type,
        )
        for n in "ab"
    ]
    module = QuantBags(tables=tables, is_weighted=False, device=META)
    sharder = QuantEmbeddingBagCollectionSharder()
    plan = planner(4, 2).plan(Model(module), [sharder]).plan["sparse.bags"]
    shapes = {n: list(p.shape) for n, p in sharder.shardable_parameters(module).items()}
    for name, sharding in plan.items():
        assert sharding.compute_kernel.startswith("quant")
        assert sharding.sharding_type in ("table_wise", "row_wise")
        cells = sum(s.shard_sizes[0] * s.shard_sizes[1] for s in sharding.sharding_spec.shards)
        assert cells == shapes[name][0] * shapes[name][1]


def test_all_settings_of_a_constraint_reach_the_plan() -> None:
    limit = ParameterConstraints(
        sharding_types=["column_wise"],
        compute_kernels=["fused"],
        min_partition=32,
        enforce_hbm=True,
        stochastic_rounding=False,
        output_dtype=DataType.FP16,
        key_value_params=KeyValueParams(l2_cache_size=2),
    )
    made = planner(4, 4, constraints={"a": limit})
    sharding = made.plan(Model(bags([("a", 5000, 128)])), get_default_sharders()).plan[
        "sparse.bags"
    ]["a"]
    assert sharding.sharding_type == "column_wise"
    assert min(s.shard_sizes[1] for s in sharding.sharding_spec.shards) >= 32
    assert sharding.enforce_hbm is True
    assert sharding.stochastic_rounding is False
    assert sharding.output_dtype is DataType.FP16
    assert sharding.key_value_params == KeyValueParams(l2_cache_size=2)


# ------------------------------------------------------------------ pods of the running job


@pytest.fixture
def process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that counts 4 ranks on hosts of 1, without them."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(("variable", "group"), [(None, 1), ("2", 2), ("4", 4)])
def test_pods_are_those_of_the_runtime(
    process_group: None, monkeypatch: pytest.MonkeyPatch, variable: str | None, group: int
) -> None:
    monkeypatch.delenv(POD_SIZE_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(POD_SIZE_VARIABLE, variable)
    topology = default_topology("h100_sxm")
    assert (topology.world_size, topology.local_world_size) == (4, 1)
    assert topology.intra_group_size == group
    assert os.environ.get(POD_SIZE_VARIABLE) == variable


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_a_pod_size_that_is_none_is_refused(
    process_group: None, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(POD_SIZE_VARIABLE, text)
    with pytest.raises(InvalidInputError, match="must be a number of hosts"):
        default_topology("h100_sxm")
