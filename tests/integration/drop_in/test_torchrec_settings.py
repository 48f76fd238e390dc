"""What a user of TorchRec set is honoured, refused by name, or warned of: a test per setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, EmbeddingBagSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import (
    CustomTopologyData,
    ParameterConstraints,
    Topology,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheAlgorithm, CacheParams, ModuleSharder, ShardingPlan
from torchrec.modules.embedding_configs import DataType as TorchrecDataType
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection

from costmodels.sharding import ShardingType
from costmodels.workload import DataType
from planner.errors import InvalidInputError
from planner.integrations.torchrec_cache import DistributionStatistics
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_topology import topology_warnings
from planner.integrations.torchrec_workload import ModelDescription, describe_model
from planner.integrations.translate.constraints import offered_pairs
from planner.integrations.translate.settings import ShardPlannerError
from tests.integration.models import META, Model, bags, torchrec_topology
from tests.strategies import make_table

pytestmark = pytest.mark.torchrec

SHARDERS = get_default_sharders()
Given = Mapping[str, ParameterConstraints]


def described(
    model: nn.Module,
    constraints: Given | None = None,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    **more: Any,
) -> ModelDescription:
    found = describe_model(model, sharders, batch_size=32, constraints=constraints, **more)
    assert found is not None
    return found


def planned(
    model: nn.Module,
    constraints: Given | None = None,
    sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
    topology: Topology | None = None,
    **more: Any,
) -> ShardingPlan:
    made = ShardPlanner(
        topology or torchrec_topology(4, 2),
        64,
        stats=[],
        constraints=None if constraints is None else dict(constraints),
        **{"max_evaluations": 20, **more},
    )
    return made.plan(model, list(SHARDERS if sharders is None else sharders))


def text_of(found: ModelDescription) -> str:
    return "\n".join(found.warnings)


# ------------------------------------------------------------------ caches

CACHED = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused_uvm_caching"])


def test_the_cache_size_of_a_sharder_is_kept() -> None:
    sharder = EmbeddingBagCollectionSharder(fused_params={"cache_load_factor": 0.05})
    plan = planned(bags([("a", 5000, 64)]), {"a": CACHED}, [sharder])
    params = plan.plan[""]["a"].cache_params
    assert params is not None
    assert params.load_factor == 0.05


def test_the_cache_size_of_a_constraint_goes_before_that_of_the_sharder() -> None:
    sharder = EmbeddingBagCollectionSharder(fused_params={"cache_load_factor": 0.05})
    own = ParameterConstraints(
        sharding_types=["table_wise"],
        compute_kernels=["fused_uvm_caching"],
        cache_params=CacheParams(load_factor=0.07),
    )
    params = planned(bags([("a", 5000, 64)]), {"a": own}, [sharder]).plan[""]["a"].cache_params
    assert params is not None
    assert params.load_factor == 0.07


def test_a_cache_of_all_rows_is_planned() -> None:
    own = ParameterConstraints(
        sharding_types=["table_wise"],
        compute_kernels=["fused_uvm_caching"],
        cache_params=CacheParams(load_factor=1.2),
    )
    plan = planned(bags([("a", 5000, 64), ("b", 900, 64)]), {"a": own})
    params = plan.plan[""]["a"].cache_params
    assert params is not None
    assert params.load_factor == pytest.approx(1.0, abs=1e-5)


def test_a_cache_size_that_is_none_is_refused() -> None:
    sharder = EmbeddingBagCollectionSharder(fused_params={"cache_load_factor": 0.0})
    with pytest.raises(InvalidInputError, match=r"fused_params\['cache_load_factor'\] must be"):
        described(bags([("a", 50, 64)]), sharders=[sharder])


def test_a_missing_cache_size_is_said() -> None:
    own = ParameterConstraints(cache_params=CacheParams(algorithm=CacheAlgorithm.LFU))
    warned = "cache_params without a load_factor; the search chooses it if it caches them: ['a']"
    model = bags([("a", 50, 64), ("b", 50, 64)])
    assert warned in text_of(described(model, {"a": own}))
    sharder = EmbeddingBagCollectionSharder(fused_params={"cache_load_factor": 0.1})
    assert "without a load_factor" not in text_of(described(model, {"a": own}, [sharder]))


def test_statistics_of_a_cache_are_warned_of() -> None:
    stats = DistributionStatistics(make_table("a").distribution, 10.0)
    own = ParameterConstraints(cache_params=CacheParams(load_factor=0.1, stats=stats))
    assert "cache_params.stats of 1 tables" in text_of(described(bags([("a", 50, 64)]), {"a": own}))


# ------------------------------------------------------------------ pairs of type and kernel


class Pairs(EmbeddingBagCollectionSharder):
    """Rows only behind a cache, whole tables only on the device."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["row_wise", "table_wise"]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused_uvm_caching"] if sharding_type == "row_wise" else ["fused"]


OFFERED = {("row_wise", "fused_uvm_caching"), ("table_wise", "fused")}


def test_only_pairs_that_a_sharder_offers_are_searched() -> None:
    (limit,) = described(bags([("a", 50, 64)]), sharders=[Pairs()]).constraints.tables
    assert {(str(t), str(k)) for t, k in limit.pairs} == OFFERED
    tables = [(f"t{i}", 5000 * (i + 1), 64) for i in range(6)]
    for objective in ("iteration", "torchrec"):
        plan = planned(bags(tables), sharders=[Pairs()], objective=objective).plan[""]
        assert {(p.sharding_type, p.compute_kernel) for p in plan.values()} <= OFFERED


@pytest.mark.parametrize("wanted", sorted(OFFERED))
def test_both_pairs_can_be_planned(wanted: tuple[str, str]) -> None:
    own = ParameterConstraints(sharding_types=[wanted[0]])
    sharding = planned(bags([("a", 5000, 64)]), {"a": own}, [Pairs()]).plan[""]["a"]
    assert (sharding.sharding_type, sharding.compute_kernel) == wanted


class UnlikeNames(EmbeddingBagCollectionSharder):
    """Whole tables on the device by one name, and in host memory by another."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["column_wise", "table_wise"]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused_uvm"] if sharding_type == "column_wise" else ["fused"]


def test_one_name_does_not_stand_for_another_with_other_kernels() -> None:
    often = {"a": ParameterConstraints(pooling_factors=[200.0])}
    plan = planned(bags([("a", 100_000, 64)]), often, [UnlikeNames()], torchrec_topology(1, 1))
    sharding = plan.plan[""]["a"]
    assert (sharding.sharding_type, sharding.compute_kernel) == ("table_wise", "fused")


def test_pairs_of_an_enumerator_are_obeyed() -> None:
    class Paired(EmbeddingEnumerator):
        def enumerate(self, module: nn.Module, sharders: Any) -> Any:
            found = super().enumerate(module, sharders)
            return [o for o in found if (o.sharding_type, o.compute_kernel) == dear]

    dear = ("column_wise", "fused_uvm")  # nobody takes that unasked: there is room
    topology = torchrec_topology(4, 2)
    tables = bags([(f"t{i}", 5000 * (i + 1), 64) for i in range(4)])
    often = {f"t{i}": ParameterConstraints(pooling_factors=[200.0]) for i in range(4)}
    enumerator = Paired(topology, batch_size=64, constraints=often)
    plan = planned(tables, often, topology=topology, enumerator=enumerator).plan[""]
    assert {(p.sharding_type, p.compute_kernel) for p in plan.values()} == {dear}
    plan = planned(tables, often, topology=topology).plan[""]
    assert dear not in {(p.sharding_type, p.compute_kernel) for p in plan.values()}


class ByDevice(EmbeddingBagCollectionSharder):
    """Offers another type on each device."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise"] if compute_device_type == "cpu" else ["row_wise"]


def test_a_sharder_is_asked_for_the_device_that_is_planned() -> None:
    for device, kind in (("cpu", "table_wise"), ("cuda", "row_wise")):
        assert {t for t, _ in offered_pairs(ByDevice(), device)} == {kind}
        plan = planned(
            bags([("a", 500, 64)]), sharders=[ByDevice()], topology=torchrec_topology(2, 2, device)
        )
        assert plan.plan[""]["a"].sharding_type == kind
    types = {t for t, _ in offered_pairs(EmbeddingBagCollectionSharder(), "cpu")}
    assert {"row_wise", "table_row_wise", "table_wise"} <= types


def test_a_kernel_that_the_sharder_lacks_is_refused() -> None:
    own = ParameterConstraints(compute_kernels=["quant"])
    with pytest.raises(InvalidInputError, match=r"no sharding option is left.*\['quant'\]"):
        described(bags([("a", 50, 64)]), {"a": own})


def test_grid_shard_is_used_only_if_asked_for() -> None:
    asked = ParameterConstraints(sharding_types=["grid_shard"])
    limits = described(bags([("a", 50, 64), ("b", 50, 64)]), {"b": asked}).constraints.tables
    assert ShardingType.GRID_SHARD not in limits[0].sharding_types
    assert limits[1].sharding_types == (ShardingType.GRID_SHARD,)


def test_names_that_do_not_exist_are_said() -> None:
    own = ParameterConstraints(sharding_types=["table_wise", "tabel_wise"])
    assert "do not exist: ['tabel_wise']" in text_of(described(bags([("a", 50, 64)]), {"a": own}))


# ------------------------------------------------------------------ what is priced


def test_weights_of_a_constraint_are_priced() -> None:
    own = ParameterConstraints(is_weighted=True)
    found = described(bags([("a", 50, 64), ("b", 50, 64)]), {"a": own})
    assert [t.is_weighted for t in found.workload.tables] == [True, False]
    assert "is_weighted is set for tables of modules without weights" in text_of(found)


def test_the_widest_output_type_is_priced_and_said() -> None:
    half = ParameterConstraints(output_dtype=TorchrecDataType.FP16)
    model = bags([("a", 50, 64), ("b", 50, 64)])
    found = described(model, {"a": half})
    assert found.workload.output_dtype is DataType.FP32
    assert "outputs of several types, all are priced as fp32: ['fp16', 'fp32']" in text_of(found)
    found = described(model, {"a": half, "b": half})
    assert found.workload.output_dtype is DataType.FP16
    assert "outputs of several types" not in text_of(found)


def test_the_output_type_of_a_sharder_is_priced() -> None:
    from fbgemm_gpu.split_embedding_configs import SparseType

    sharder = EmbeddingBagCollectionSharder(fused_params={"output_dtype": SparseType.BF16})
    found = described(bags([("a", 50, 64)]), sharders=[sharder])
    assert found.workload.output_dtype is DataType.BF16


def test_feature_names_of_a_constraint_are_compared() -> None:
    model = bags([("a", 50, 64)])
    same, other = (ParameterConstraints(feature_names=[n]) for n in ("f_a", "x"))
    assert "feature_names" not in text_of(described(model, {"a": same}))
    assert "feature_names of constraints differ" in text_of(described(model, {"a": other}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bwd_compute_multiplier", 3.0),
        ("weighted_feature_bwd_compute_multiplier", 3.0),
        ("uneven_sharding_perf_multiplier", 2.0),
        ("ssd_mem_bw", 1.0),
    ],
)
def test_factors_of_a_topology_are_warned_of(name: str, value: float) -> None:
    changed = Topology(2, "cuda", **{name: value})
    (said,) = topology_warnings(changed, rates_from_base=False)
    assert f"{name}={value}" in said
    assert topology_warnings(Topology(2, "cuda"), rates_from_base=False) == []


@pytest.mark.parametrize(("device", "kind"), [("cuda", "hbm_cap"), ("cpu", "ddr_cap")])
def test_equal_blocks_on_unlike_memories_are_warned_of(device: str, kind: str) -> None:
    """TorchRec's planner gives a rank with twice the memory twice the rows; ours does not."""
    said = []
    for caps in ([2**33, 2**34], [2**33, 2**33]):
        custom = CustomTopologyData(data={kind: caps}, world_size=2)
        topology = Topology(2, device, custom_topology_data=custom)
        said.append(topology_warnings(topology, rates_from_base=False))
    assert [len(lines) for lines in said] == [1, 0]
    assert "row_wise tables are cut into equal blocks" in said[0][0]


# ------------------------------------------------------------------ device groups


def test_tables_of_another_device_group_are_planned_apart() -> None:
    model = Model(bags([("a", 500, 64), ("b", 500, 64)]))
    groups = {n: ParameterConstraints(device_group=g) for n, g in (("a", "cuda"), ("b", "cpu"))}
    sides = {
        device: planned(model, groups, topology=torchrec_topology(2, 2, device))
        for device in ("cuda", "cpu")
    }
    assert set(sides["cuda"].plan["sparse.bags"]) == {"a"}
    assert set(sides["cpu"].plan["sparse.bags"]) == {"b"}


def test_a_module_of_another_group_is_left_out_whole() -> None:
    model = Model(bags([("a", 500, 64)]), bags([("b", 500, 64)]))
    plan = planned(model, {"b": ParameterConstraints(device_group="cpu")})
    assert set(plan.plan) == {"sparse.bags"}
    assert planned(bags([("b", 5, 64)]), {"b": ParameterConstraints(device_group="cpu")}).plan == {}


# ------------------------------------------------------------------ modules


def collisions(rows: int, buckets: int) -> ManagedCollisionEmbeddingBagCollection:
    module = HashZchManagedCollisionModule(
        zch_size=rows, device=META, total_num_buckets=buckets, input_hash_size=1000
    )
    table = bags([("a", rows, 64)])
    return ManagedCollisionEmbeddingBagCollection(
        table,
        ManagedCollisionCollection({"a": module}, table.embedding_bag_configs()),
    )


MANAGED = [ManagedCollisionEmbeddingBagCollectionSharder()]


def test_rows_are_not_cut_inside_a_bucket() -> None:
    with pytest.raises(ShardPlannerError, match="96 rows in 4 buckets cannot be cut for 3 ranks"):
        planned(collisions(96, 4), sharders=MANAGED, topology=torchrec_topology(3, 3))


def test_whole_buckets_on_every_rank_are_planned() -> None:
    plan = planned(collisions(96, 4), sharders=MANAGED, topology=torchrec_topology(2, 2))
    assert plan.plan[""]["a"].sharding_type == "row_wise"


def test_a_plain_embedding_bag_is_planned() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(500, 64, mode="sum", device=META)

    sharders = [EmbeddingBagSharder()]
    plan = planned(Plain(), sharders=sharders)
    theirs = EmbeddingShardingPlanner(
        topology=torchrec_topology(4, 2), batch_size=64, stats=[]
    ).plan(Plain(), sharders)
    assert {p: set(m) for p, m in plan.plan.items()} == {p: set(m) for p, m in theirs.plan.items()}


# ------------------------------------------------------------------ machines


def test_ranks_that_do_not_fill_hosts_are_planned(caplog: pytest.LogCaptureFixture) -> None:
    tables = bags([(f"t{i}", 5000, 64) for i in range(6)])
    plan = planned(tables, topology=torchrec_topology(12, 8)).plan[""]
    assert not {p.sharding_type for p in plan.values()} & {"table_row_wise", "grid_shard"}
    assert "12 ranks do not fill hosts of 8: planned and priced as hosts of 4" in caplog.text
    whole = {"t0": ParameterConstraints(sharding_types=["table_row_wise"])}
    with pytest.raises(ShardPlannerError, match=r"'t0'.*12 ranks do not fill hosts of 8"):
        planned(tables, whole, topology=torchrec_topology(12, 8))


def test_types_that_need_whole_hosts_are_refused_without_them() -> None:
    own = {"a": ParameterConstraints(sharding_types=["table_row_wise"])}
    model = bags([("a", 5000, 64)])
    with pytest.raises(ShardPlannerError, match=r"'a'.*table_row_wise.* do not fill hosts of 8"):
        planned(model, own, topology=torchrec_topology(12, 8))
    plan = planned(model, own, topology=torchrec_topology(16, 8))
    assert plan.plan[""]["a"].sharding_type == "table_row_wise"


def test_mtia_is_planned_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    plan = planned(bags([("a", 500, 64)]), topology=torchrec_topology(2, 2, "mtia")).plan[""]
    assert plan["a"].sharding_type != "data_parallel"
    spec = plan["a"].sharding_spec
    assert all("mtia" in str(s.placement) for s in spec.shards)
    assert "mtia has no cost model of its own" in caplog.text
