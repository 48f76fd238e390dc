"""The contract with users of TorchRec: complete, tested, and written on a page of the site."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.types import (
    GeneralizedCommsBandwidth,
    ParameterConstraints,
    PlannerErrorType,
    Stats,
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    KeyValueParams,
    ModuleSharder,
    MultiPassPrefetchConfig,
)
from torchrec.modules.embedding_configs import DataType
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
from torchrec.optim import RowWiseAdagrad

from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.translate.settings import ShardPlannerError
from tests.integration import contract
from tests.integration.models import META, Model, bags, sequences, torchrec_topology

pytestmark = pytest.mark.torchrec

SHARDERS = get_default_sharders()
ROOT = Path(__file__).resolve().parents[3]


def made(**arguments: Any) -> ShardPlanner:
    arguments.setdefault("topology", torchrec_topology(2, 2))
    arguments.setdefault("stats", [])
    return ShardPlanner(batch_size=64, **arguments)


def parameters_of(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


# ------------------------------------------------------------------ complete and tested


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        (contract.ARGUMENT, parameters_of(EmbeddingShardingPlanner.__init__)),
        (contract.ARGUMENT, parameters_of(ShardPlanner.__init__)),
        (contract.TOPOLOGY, parameters_of(Topology.__init__)),
        (contract.CONSTRAINT, {f.name for f in dataclasses.fields(ParameterConstraints)}),
        (contract.CACHE, {f.name for f in dataclasses.fields(CacheParams)}),
        (contract.SHARDER, {"sharding_types", "compute_kernels", "shardable_parameters"}),
        (contract.SHARDER, {"qcomm_codecs_registry", "storage_usage"}),
        (contract.MODULE, {s.module_type.__name__ for s in SHARDERS if "Quant" not in str(s)}),
    ],
)
def test_every_setting_has_a_row(place: str, fields: set[str]) -> None:
    assert fields <= contract.names(place)


def test_no_row_is_silent_and_none_is_there_twice() -> None:
    assert len(contract.rows()) > 100
    assert {r.verdict for r in contract.rows()} == {"honoured", "refused", "warned"}
    assert all(r.what and r.name for r in contract.rows())
    keys = [(r.place, r.name) for r in contract.rows()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("row", contract.rows(), ids=lambda r: r.name)
def test_the_test_of_a_row_exists(row: contract.Row) -> None:
    file, function = row.test.split("::")
    assert function in _tests_of(file)


@functools.cache
def _tests_of(file: str) -> frozenset[str]:
    """Names of the functions of a test file."""
    (path,) = (ROOT / "tests" / "integration").rglob(file)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))


# ------------------------------------------------------------------ tests of single rows


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("proposer", GreedyProposer()),
        ("partitioner", GreedyPerfPartitioner()),
        ("performance_model", NoopPerfModel(torchrec_topology(2, 2))),
    ],
)
def test_replaced_parts_are_warned_of(name: str, value: object) -> None:
    with pytest.warns(UserWarning, match=f"does not use {name}: "):
        planner = made(**{name: value})
    kept = (*planner._proposers, planner._partitioner, planner._perf_model)
    assert any(part is value for part in kept)


@pytest.mark.parametrize("debug", [True, False])
def test_debug_reaches_the_statistics(debug: bool) -> None:
    seen: list[Any] = []

    class Kept(Stats):
        def log(self, **arguments: Any) -> None:
            seen.append(arguments["debug"])

    made(stats=Kept(), debug=debug).plan(bags([("a", 50, 64)]), SHARDERS)
    assert seen == [debug]


def test_a_full_ssd_is_refused() -> None:
    limit = ParameterConstraints(
        compute_kernels=["key_value"],
        sharding_types=["table_wise"],
        key_value_params=KeyValueParams(max_l1_cache_size=1),
    )
    small = Topology(2, "cuda", ssd_cap=1000)
    with pytest.raises(ShardPlannerError, match="of SSD for its key_value tables") as caught:
        made(topology=small, constraints={"a": limit}).plan(bags([("a", 5000, 64)]), SHARDERS)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


def test_bandwidths_by_collective_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Measured(GeneralizedCommsBandwidth):
        @property
        def inter_host_bw(self) -> float:
            return 1e7

        @property
        def intra_host_bw(self) -> float:
            return 1e8

        def get_bw(self, *_: Any, **__: Any) -> float:
            return 1e7

    topology = Topology(2, "cuda", generalized_comms_bandwidths=Measured())
    made(topology=topology).plan(bags([("a", 50, 64)]), SHARDERS)
    assert "of Measured only intra_host_bw and inter_host_bw are used" in caplog.text


def test_a_topology_made_by_hand_is_planned_alike() -> None:
    """The bandwidths of both are TorchRec's defaults."""
    tables = [("a", 50, 64), ("b", 5000, 32)]
    hand = Topology(2, "cuda", hbm_cap=2**30, ddr_cap=2**33, local_world_size=2)
    plans = [made(topology=t).plan(bags(tables), SHARDERS) for t in (hand, torchrec_topology(2, 2))]
    assert str(plans[0]) == str(plans[1])


def test_settings_of_kernels_reach_the_plan() -> None:
    params = KeyValueParams(l2_cache_size=3)
    limit = ParameterConstraints(
        enforce_hbm=True,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.FATAL,
        key_value_params=params,
    )
    sharding = made(constraints={"a": limit}).plan(bags([("a", 50, 64)]), SHARDERS).plan[""]["a"]
    assert sharding.enforce_hbm is True
    assert sharding.stochastic_rounding is False
    assert sharding.bounds_check_mode is BoundsCheckMode.FATAL
    assert sharding.key_value_params == params


def test_settings_of_a_cache_reach_the_plan() -> None:
    params = CacheParams(
        algorithm=CacheAlgorithm.LFU,
        load_factor=0.3,
        reserved_memory=2.0,
        precision=DataType.FP16,
        prefetch_pipeline=True,
        multipass_prefetch_config=MultiPassPrefetchConfig(num_passes=3),
    )
    limit = ParameterConstraints(
        sharding_types=["table_wise"],
        compute_kernels=["fused_uvm_caching"],
        cache_params=params,
    )
    plan = made(constraints={"a": limit}).plan(bags([("a", 5000, 64)]), SHARDERS)
    assert plan.plan[""]["a"].cache_params == params


def test_a_virtual_table_in_name_only_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    limit = ParameterConstraints(use_virtual_table=True)
    made(constraints={"a": limit}).plan(bags([("a", 50, 64)]), SHARDERS)
    assert "use_virtual_table is set for tables whose configuration says otherwise" in caplog.text


def test_only_shardable_parameters_are_planned() -> None:
    class OnlyA(EmbeddingBagCollectionSharder):
        def shardable_parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
            found = super().shardable_parameters(module)
            return {name: weights for name, weights in found.items() if name == "a"}

    plan = made().plan(Model(bags([("a", 50, 64)]), bags([("b", 50, 64)])), [OnlyA()])
    assert {n for module in plan.plan.values() for n in module} == {"a"}


def test_a_memory_count_of_a_sharder_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    class Counted(EmbeddingBagCollectionSharder):
        def storage_usage(
            self, tensor: torch.Tensor, compute_device_type: str, compute_kernel: str
        ) -> dict[str, int]:
            return super().storage_usage(tensor, compute_device_type, compute_kernel)

    made().plan(bags([("a", 50, 64)]), [Counted()])
    assert "storage_usage of sharders is not read" in caplog.text
    assert "['Counted']" in caplog.text
    caplog.clear()
    made().plan(bags([("a", 50, 64)]), SHARDERS)
    assert "storage_usage" not in caplog.text


# ------------------------------------------------------------------ modules


def collision(rows: int) -> MCHManagedCollisionModule:
    return MCHManagedCollisionModule(
        zch_size=rows,
        device=META,
        input_hash_size=1000,
        eviction_interval=2,
        eviction_policy=DistanceLFU_EvictionPolicy(),
    )


def collided(kind: type[nn.Module], inner: nn.Module, configs: Any) -> nn.Module:
    return kind(inner, ManagedCollisionCollection({"a": collision(500)}, configs))


def prioritized(inner: nn.Module) -> nn.Module:
    from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection  # torchrec 1.9

    return PECEmbeddingCollection(inner)


def module_of(name: str) -> nn.Module:
    shapes = [("a", 500, 64)]
    pooled, unpooled = bags(shapes), sequences(shapes)
    kinds: dict[str, Callable[[], nn.Module]] = {
        "EmbeddingBagCollection": lambda: pooled,
        "EmbeddingCollection": lambda: unpooled,
        "FusedEmbeddingBagCollection": lambda: FusedEmbeddingBagCollection(
            tables=pooled.embedding_bag_configs(),
            optimizer_type=RowWiseAdagrad,
            optimizer_kwargs={"lr": 0.1},
            device=META,
        ),
        "FeatureProcessedEmbeddingBagCollection": lambda: FeatureProcessedEmbeddingBagCollection(
            bags(shapes, is_weighted=True),
            PositionWeightedModuleCollection(max_feature_lengths={"f_a": 4}, device=META),
        ),
        "ManagedCollisionEmbeddingBagCollection": lambda: collided(
            ManagedCollisionEmbeddingBagCollection, pooled, pooled.embedding_bag_configs()
        ),
        "ManagedCollisionEmbeddingCollection": lambda: collided(
            ManagedCollisionEmbeddingCollection, unpooled, unpooled.embedding_configs()
        ),
        "PECEmbeddingCollection": lambda: prioritized(unpooled),
    }
    return kinds[name]()


@pytest.mark.parametrize(
    "name", sorted(s.module_type.__name__ for s in SHARDERS if "Quant" not in type(s).__name__)
)
def test_every_kind_of_module_is_planned(name: str) -> None:
    planner = made()
    plan = planner.plan(Model(module_of(name)), SHARDERS)
    assert set(plan.plan["sparse.bags"]) == {"a"}
    assert planner.result is not None
    fused = name.startswith("Fused")
    assert (planner.result.problem.workload.optimizer.value == "rowwise_adagrad") is fused


def test_a_module_of_unknown_kind_is_refused() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(10, 8, device=META))

    class OwnSharder(ModuleSharder[Own]):
        def shard(self, *arguments: Any, **more: Any) -> Any:
            raise NotImplementedError

        @property
        def module_type(self) -> type[Own]:
            return Own

        def shardable_parameters(self, module: Own) -> dict[str, nn.Parameter]:
            return {"weight": module.weight}

    with pytest.raises(ShardPlannerError, match="of type Own has tables that cannot be planned"):
        made().plan(Model(Own()), [OwnSharder()])
