"""Virtual tables and tables on SSD: planned where their type or a constraint demands it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchrec")

import json

import torch
from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    ParameterConstraints,
    PlannerErrorType,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import KeyValueParams, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from costmodels.distribution.uniform import Uniform
from planner.errors import InvalidInputError
from planner.integrations.torchrec_2d import group_choices
from planner.integrations.torchrec_planner import ShardPlanner
from planner.integrations.torchrec_workload import WorkloadHints, describe_model, import_module
from planner.integrations.translate.settings import ShardPlannerError
from planner.io import save_plan
from tests.integration.builders import make_topology

pytestmark = pytest.mark.torchrec

IDS = 2**50 + 5 * 2**20
DIM = 64
BATCH = 64
SHARDERS = get_default_sharders()
MIB = 2**20
PARAMS = KeyValueParams(l2_cache_size=64, max_l1_cache_size=128)
VIRTUAL = ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["dram_virtual_table"])
ON_SSD = ParameterConstraints(compute_kernels=["key_value"], key_value_params=PARAMS)


class Tables(nn.Module):
    """One unpooled collection: a virtual table ``v`` and an ordinary one ``t``."""

    def __init__(
        self, rows: int = IDS, buckets: int | None = None, *, virtual: bool = True
    ) -> None:
        super().__init__()
        ids = EmbeddingConfig(
            name="v",
            num_embeddings=rows,
            embedding_dim=DIM,
            feature_names=["v"],
            use_virtual_table=virtual,
            total_num_buckets=buckets,
        )
        plain = EmbeddingConfig(
            name="t", num_embeddings=1000, embedding_dim=DIM, feature_names=["t"]
        )
        self.tables = EmbeddingCollection(device=torch.device("meta"), tables=[ids, plain])


def cluster(world: int = 2, device: str = "cuda", ssd_bytes: int = 0) -> Topology:
    return TopologyFactory.create_topology(
        trainer_config=TrainerConfig(world_size=world, local_world_size=world),
        hardware_config=HardwareConfig(
            hbm_cap_bytes=2**31, ddr_cap_bytes=2**33, ssd_cap_bytes=ssd_bytes
        ),
        kernel_config=KernelConfig(compute_device=device),
    )


def planner_for(constraint: ParameterConstraints | None, **arguments: Any) -> ShardPlanner:
    arguments.setdefault("topology", cluster())
    constraints = {} if constraint is None else {"v": constraint}
    search = {} if "plan_file" in arguments else {"max_evaluations": 20}
    return ShardPlanner(batch_size=BATCH, constraints=constraints, stats=[], **search, **arguments)


def table(plan: ShardingPlan, name: str = "v") -> ParameterSharding:
    return plan.plan["tables"][name]


def rows_of(sharding: ParameterSharding) -> list[int]:
    assert sharding.sharding_spec is not None
    return [s.shard_sizes[0] for s in sharding.sharding_spec.shards]


def test_a_virtual_table_keeps_its_kernel_rows_and_parameters() -> None:
    given = ParameterConstraints(
        sharding_types=["row_wise"],
        compute_kernels=["ssd_virtual_table"],
        key_value_params=PARAMS,
    )
    made = planner_for(given)
    plan = made.plan(Tables(), SHARDERS)
    sharding = table(plan)
    assert (sharding.sharding_type, sharding.compute_kernel) == ("row_wise", "ssd_virtual_table")
    assert rows_of(sharding) == [IDS // 2, IDS // 2]
    assert sharding.key_value_params == PARAMS
    assert sharding.cache_params is None
    assert table(plan, "t").compute_kernel in ("fused", "dense")


def test_its_device_memory_is_torchrecs_and_its_host_memory_is_not_counted() -> None:
    made = planner_for(
        ParameterConstraints(compute_kernels=["dram_virtual_table"], key_value_params=PARAMS)
    )
    made.plan(Tables(), SHARDERS)
    assert made.result is not None
    assert made.result.best.memory is not None
    ranks = made.result.best.memory.ranks
    assert [r.cache_bytes for r in ranks] == [128 * MIB, 128 * MIB]
    assert [r.host_bytes for r in ranks] == [0.0, 0.0]
    (option,) = (o for o in made.get_selected_options() if o.name == "v")
    held = [s.storage.hbm for s in option.shards if s.storage is not None]
    assert all(128 * MIB <= bytes_ < 129 * MIB for bytes_ in held)


def test_whole_buckets_lie_on_a_rank() -> None:
    made = planner_for(VIRTUAL, topology=cluster(4))
    assert rows_of(table(made.plan(Tables(1000, 10), SHARDERS))) == [300, 300, 200, 200]


def test_the_interval_reaches_from_all_cached_to_none_cached() -> None:
    def interval(kernel: str, ids: int) -> tuple[float, float, float]:
        given = ParameterConstraints(compute_kernels=[kernel], pooling_factors=[2000.0])
        law = WorkloadHints(distributions={"v": Uniform(num_embeddings=ids)})
        made = planner_for(given, hints=law)
        made.plan(Tables(), SHARDERS)
        assert made.result is not None
        time = made.result.estimate.time
        return time.low_s, time.time_s, time.high_s

    low, time, high = interval("dram_virtual_table", 10**9)
    assert low < time < high
    _, longer, slowest = interval("ssd_virtual_table", 10**9)
    assert longer > time
    assert slowest > 10 * high
    _, few, _ = interval("dram_virtual_table", 1000)
    assert few < time


def test_a_virtual_table_needs_no_constraint() -> None:
    assert table(planner_for(None).plan(Tables(), SHARDERS)).compute_kernel == "dram_virtual_table"


def test_an_enumerator_may_list_a_virtual_table() -> None:
    topology = cluster()
    enumerator = EmbeddingEnumerator(topology, batch_size=BATCH, constraints={"v": VIRTUAL})
    made = planner_for(VIRTUAL, topology=topology, enumerator=enumerator)
    assert table(made.plan(Tables(1000), SHARDERS)).compute_kernel == "dram_virtual_table"


def test_a_table_on_ssd() -> None:
    made = planner_for(ON_SSD, topology=cluster(ssd_bytes=2**36))
    sharding = table(made.plan(Tables(10**7, virtual=False), SHARDERS))
    assert sharding.compute_kernel == "key_value"
    assert sharding.key_value_params == PARAMS
    assert sum(rows_of(sharding)) % 10**7 == 0


def test_an_ordinary_kernel_is_preferred_to_ssd() -> None:
    given = ParameterConstraints(compute_kernels=["fused", "key_value"])
    made = planner_for(given, topology=cluster(ssd_bytes=2**36))
    assert table(made.plan(Tables(1000, virtual=False), SHARDERS)).compute_kernel == "fused"


@pytest.mark.parametrize(
    ("given", "tables", "arguments", "message"),
    [
        (
            ON_SSD,
            Tables(10**6, virtual=False),
            {},
            "MiB of SSD for its key_value tables and the topology gives it 0 B",
        ),
        (VIRTUAL, Tables(1000, virtual=False), {}, "any other key_value"),
        (ON_SSD, Tables(), {}, "a virtual table needs one of dram_virtual_table"),
        (VIRTUAL, Tables(), {"topology": cluster(device="cpu")}, "exists on cuda only"),
        (VIRTUAL, Tables(1001, 10), {}, "1001 is no multiple of total_num_buckets 10"),
        (VIRTUAL, Tables(1000, 2), {"topology": cluster(4)}, "buckets"),
        (VIRTUAL, Tables(), {"objective": "torchrec"}, "cannot rate key-value tables"),
        (
            ParameterConstraints(sharding_types=["table_wise"]),
            Tables(),
            {},
            r"row_wise only, got sharding_types \['table_wise'\]",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(
    given: ParameterConstraints, tables: Tables, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShardPlannerError, match=message) as caught:
        planner_for(given, **arguments).plan(tables, SHARDERS)
    assert caught.value.error_type in (
        PlannerErrorType.STRICT_CONSTRAINTS,
        PlannerErrorType.INSUFFICIENT_STORAGE,
    )


def test_a_saved_result_is_planned_again(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made = planner_for(VIRTUAL)
    plan = made.plan(Tables(), SHARDERS)
    assert made.result is not None
    save_plan(path, made.result)
    again = planner_for(VIRTUAL, plan_file=path).plan(Tables(), SHARDERS)
    assert again._serialize() == plan._serialize()


def test_a_saved_plan_with_their_kernels_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = planner_for(VIRTUAL).plan(Tables(1000, 10), SHARDERS)
    path.write_text(json.dumps(plan._serialize()), encoding="utf-8")
    with pytest.raises(ShardPlannerError, match=r"v\.compute_kernel: .*dram_virtual_table"):
        planner_for(VIRTUAL, plan_file=path).plan(Tables(1000, 10), SHARDERS)


def test_where_only_a_stand_in_would_be_left_it_is_refused() -> None:
    described = describe_model(Tables(), SHARDERS, batch_size=BATCH)
    assert described is not None
    with pytest.raises(InvalidInputError, match="cannot hold key-value tables"):
        group_choices(described, make_topology(), sync_interval=1)
    with pytest.raises(InvalidInputError, match="a workload file cannot hold key-value tables"):
        import_module(f"{__name__}:Tables", batch_size=BATCH)
