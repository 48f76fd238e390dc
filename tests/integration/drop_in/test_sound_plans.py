"""No plan changes what a module computes, or fails in training where another one does not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchrec", reason="plans models of torchrec, which is not installed")

from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    ParameterConstraints,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.modules.embedding_configs import DataType as TorchrecDataType
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DataType, Feature, Pooling, Table
from planner.integrations.drop_in import uneven_outputs
from planner.integrations.torchrec_planner import ShardPlanner
from planner.options.torchrec_rules import pooling_problems
from tests.integration.builders import make_table, placed
from tests.integration.models import META, Model, Shape, bags, sequences
from tests.strategies import make_workload

pytestmark = pytest.mark.torchrec

SHARDERS = [EmbeddingBagCollectionSharder()]
BY_ROWS = {"row_wise", "table_row_wise"}
SMALL: Sequence[Shape] = (("a", 37, 128), ("b", 73, 32), ("c", 3, 20))
SHAPES: Sequence[Shape] = (("a", 50000, 64), ("b", 400, 16), ("c", 9000, 128))


def means(*, is_weighted: bool = False, shapes: Sequence[Shape] = SHAPES) -> nn.Module:
    tables = [
        EmbeddingBagConfig(
            name=n,
            num_embeddings=r,
            embedding_dim=d,
            feature_names=[f"f_{n}"],
            pooling=PoolingType.SUM if n == "s" else PoolingType.MEAN,
        )
        for n, r, d in shapes
    ]
    return Model(EmbeddingBagCollection(tables, device=META, is_weighted=is_weighted))


def types_of(module: nn.Module, topology: Topology, **forced: str) -> dict[str, str]:
    limits = {
        t: ParameterConstraints(sharding_types=forced.get(t, "").split(), pooling_factors=[20.0])
        for t in "abcs"
    }
    planner = ShardPlanner(topology, 64, constraints=limits, stats=[], max_evaluations=20)
    plan = planner.plan(module, SHARDERS).plan["sparse.bags"]
    return {name: sharding.sharding_type for name, sharding in plan.items()}


def topology(world: int = 4, device: str = "cuda", hbm: int = 2**33) -> Topology:
    return TopologyFactory.create_topology(
        trainer_config=TrainerConfig(world_size=world, local_world_size=world),
        hardware_config=HardwareConfig(hbm_cap_bytes=hbm, ddr_cap_bytes=2**36),
        kernel_config=KernelConfig(compute_device=device),
    )


# ------------------------------------------------------------------ what changes a module


def table(name: str, pooling: Pooling = Pooling.MEAN, **more: object) -> Table:
    return make_table(name, pooling=pooling, **more)


RW, TWRW, TW = ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.TABLE_WISE
GRID, DP = ShardingType.GRID_SHARD, ShardingType.DATA_PARALLEL
SUM = table("s", Pooling.SUM)
SHARED = (Feature(name="shared", pooling_factor=2.0),)


def said_of(chosen: list[tuple[Table, ShardingType]]) -> str:
    """What is said of a module whose tables have these types."""
    placed = [SimpleNamespace(table=t.name, sharding_type=kind) for t, kind in chosen]
    plan: Any = SimpleNamespace(placements=placed)
    workload: Any = SimpleNamespace(tables=[t for t, _ in chosen])
    return "".join(pooling_problems(plan, workload))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([(table("a"), RW), (table("b"), TWRW), (SUM, RW)], ""),
        ([(table("a"), TW), (table("b"), DP), (SUM, RW)], ""),
        ([(SUM, RW), (table("s2", Pooling.SUM), TW)], ""),
        ([(table("a"), RW), (table("b"), TW)], "['a'] are cut by rows, and tables ['b']"),
        ([(table("a"), TWRW), (SUM, DP)], "['a'] are cut by rows, and tables ['s']"),
        ([(table("a"), GRID)], "['a'] are cut by rows, and tables ['a']"),
        ([(table("a", is_weighted=True), RW)], "['a'] are cut by rows, and have weights"),
        ([(table("a", dtype=DataType.INT8), RW)], "['a'] are cut by rows, and quantized"),
        (
            [(table("a", features=SHARED), RW), (table("s", Pooling.SUM, features=SHARED), RW)],
            "['a'] are cut by rows, and sum-pooled tables of the same module share features",
        ),
        (
            [
                (table("a"), RW),
                (table("s", Pooling.SUM, features=SHARED), RW),
                (table("s2", Pooling.SUM, features=SHARED), RW),
            ],
            "share features ['shared'] with others",
        ),
        ([(table("a", features=SHARED), RW), (table("b", features=SHARED), RW), (SUM, RW)], ""),
        ([(table("a", features=SHARED), TW), (table("s", Pooling.SUM, features=SHARED), RW)], ""),
    ],
)
def test_plans_that_change_a_module_are_known(
    chosen: list[tuple[Table, ShardingType]], message: str
) -> None:
    found = said_of(chosen)
    assert message in found
    assert bool(found) == bool(message)


# ------------------------------------------------------------------ what is planned instead


def test_means_are_cut_by_rows_all_together_or_not_at_all() -> None:
    """Without the rule two tables are cut by rows beside a replicated one."""
    shapes = (("a", 1525726, 256), ("b", 14, 128), ("c", 185255, 16), ("s", 37098, 16))
    types = types_of(means(shapes=shapes), topology(8, "cpu", 2**31))
    kinds = [
        (table(n, Pooling.SUM if n == "s" else Pooling.MEAN), ShardingType(kind))
        for n, kind in types.items()
    ]
    assert said_of(kinds) == ""


def test_weighted_means_are_not_cut_by_rows() -> None:
    shapes = (("a", 4000, 64), ("b", 9, 16), ("c", 100, 128))
    types = types_of(means(is_weighted=True, shapes=shapes), topology(2, "cpu"))
    assert not BY_ROWS & set(types.values())


@pytest.mark.parametrize("is_shared", [False, True])
def test_means_beside_sums_of_shared_features_are_not_cut_by_rows(is_shared: bool) -> None:
    """Means of a module that is cheapest cut by rows, unless a sum reads a feature of another."""
    tables = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=3_000_000,
            embedding_dim=4,
            feature_names=["f" if is_shared else f"f_{name}"],
            pooling=pooling,
        )
        for name, pooling in (("a", PoolingType.MEAN), ("s", PoolingType.SUM))
    ]
    module = Model(EmbeddingBagCollection(tables, device=META))
    types = types_of(module, topology(hbm=64 * 2**20), s="row_wise", a="row_wise table_wise")
    assert types["a"] == ("table_wise" if is_shared else "row_wise")


def test_means_that_fit_by_rows_alone_are_cut_by_rows() -> None:
    shapes = (("a", 3_000_000, 4), ("b", 900, 16))
    types = types_of(means(shapes=shapes), topology(hbm=40 * 2**20), a="row_wise table_wise")
    assert set(types.values()) <= BY_ROWS


def test_means_are_not_cut_by_rows_over_hosts_that_ranks_do_not_fill() -> None:
    """Cut by rows, table a has only a type that needs whole hosts: that way is left out."""
    shapes = (("a", 5000, 64), ("b", 900, 16))
    hosts = Topology(12, "cuda", local_world_size=8)
    types = types_of(means(shapes=shapes), hosts, a="table_row_wise table_wise")
    assert types["a"] == "table_wise"


def test_a_request_that_changes_the_module_is_obeyed_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    types = types_of(means(), topology(), a="row_wise", b="data_parallel")
    assert (types["a"], types["b"]) == ("row_wise", "data_parallel")
    assert "TorchRec computes another model" in caplog.text
    assert "divides by the number of indices too often" in caplog.text


# ------------------------------------------------------------------ ranks without rows


def test_no_rank_of_a_cpu_job_is_left_without_rows(caplog: pytest.LogCaptureFixture) -> None:
    module = Model(bags([("a", 5, 64)]))
    limit = "row_wise table_wise"
    assert types_of(module, topology(device="cpu"), a=limit) == {"a": "table_wise"}
    assert "training will fail" not in caplog.text
    assert types_of(module, topology(device="cpu"), a="row_wise") == {"a": "row_wise"}
    assert "training will fail on cpu: 1 tables" in caplog.text
    assert "['a (row_wise)']" in caplog.text


def test_fused_modules_are_not_replicated_on_cpu() -> None:
    """Without the rule all three are."""
    tables = bags(SMALL).embedding_bag_configs()
    module = FusedEmbeddingBagCollection(tables, RowWiseAdagrad, {"lr": 0.1}, device=META)
    limits = {t.name: ParameterConstraints(pooling_factors=[20.0]) for t in tables}
    planner = ShardPlanner(topology(2, "cpu"), 64, constraints=limits, stats=[], max_evaluations=20)
    plan = planner.plan(Model(module), [FusedEmbeddingBagCollectionSharder()])
    assert "data_parallel" not in {s.sharding_type for s in plan.plan["sparse.bags"].values()}


# ------------------------------------------------------------------ unpooled tables


def widths_of(
    shapes: Sequence[Shape],
    often: Sequence[float],
    where: Topology,
    types: str = "column_wise",
) -> set[int]:
    """Widths of the ``column_wise`` pieces of unpooled tables that may have these types."""
    limits = {
        name: ParameterConstraints(
            sharding_types=types.split(), compute_kernels=["fused"], pooling_factors=[factor]
        )
        for (name, *_), factor in zip(shapes, often, strict=True)
    }
    planner = ShardPlanner(where, 64, constraints=limits, stats=[], max_evaluations=20)
    plan = planner.plan(Model(unpooled=sequences(shapes)), [EmbeddingCollectionSharder()])
    found = [p for p in plan.plan["history"].values() if p.sharding_type == "column_wise"]
    return {s.shard_sizes[1] for p in found for s in p.sharding_spec.shards}


def test_unpooled_tables_are_cut_into_pieces_of_one_width() -> None:
    """Without the rule the first is cut in four, the second in two, and the third not at all."""
    shapes = (("a", 1000, 16), ("b", 5_000_000, 16), ("c", 100, 16))
    assert len(widths_of(shapes, (200.0, 1.0, 1.0), topology(4))) == 1


@pytest.mark.parametrize(
    "shapes",
    [
        (("a", 4_000_000, 64), ("b", 10_000, 64)),
        (("a", 8_000_000, 64), ("b", 4_000_000, 64), ("c", 10_000, 64)),
    ],
)
def test_where_whole_tables_do_not_fit_only_the_others_are_cut_and_all_alike(
    shapes: Sequence[Shape], caplog: pytest.LogCaptureFixture
) -> None:
    """A table that stays whole is called table_wise, which has a lookup and exchange of its own."""
    often = (200.0, 100.0, 1.0)[: len(shapes)]
    found = widths_of(shapes, often, topology(4, hbm=2**30), "column_wise table_wise")
    assert len(found) == 1
    assert max(found) < 64
    assert "training will fail" not in caplog.text


def test_pieces_of_several_widths_are_warned_of_where_whole_tables_do_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With ``column_wise`` alone a table that stays whole has a piece too, of its own width."""
    shapes = (("a", 4_000_000, 64), ("b", 10_000, 64))
    assert widths_of(shapes, (200.0, 1.0), topology(3, hbm=2**30)) == {32, 64}
    assert "training will fail: unpooled tables of module 'history'" in caplog.text


# ------------------------------------------------------------------ outputs that are not fp32


@pytest.mark.parametrize(
    ("places", "uneven"),
    [
        ({"a": (TW, 0), "b": (TW, 1)}, ["m"]),
        ({"a": (TW, 0), "b": (TW, 0)}, []),
        ({"a": (RW, 0), "b": (TW, 1)}, []),
        ({"a": (DP, 0), "b": (TW, 1)}, []),
    ],
)
def test_exchanges_of_uneven_outputs_are_known(
    places: dict[str, tuple[ShardingType, int]], uneven: list[str]
) -> None:
    """The outputs of a are fp16."""
    tables = {n: table(n, Pooling.SUM, module="m") for n in places}
    plan = Plan(
        placements=tuple(
            placed(kind, (rank,) if kind is TW else (), table=tables[n], world=2, local=2)
            for n, (kind, rank) in places.items()
        )
    )
    workload = make_workload(*tables.values())
    assert uneven_outputs(plan, workload, {"a": DataType.FP16}, 2) == uneven


@pytest.mark.parametrize(
    ("types", "is_warned"), [("row_wise table_wise", False), ("table_wise", True)]
)
def test_modules_with_uneven_outputs_get_types_of_every_rank(
    caplog: pytest.LogCaptureFixture, types: str, is_warned: bool
) -> None:
    limits = {
        "b": ParameterConstraints(sharding_types=types.split(), output_dtype=TorchrecDataType.FP16),
        "c": ParameterConstraints(sharding_types=["column_wise"]),
    }
    planner = ShardPlanner(topology(2, "cpu"), 8, constraints=limits, stats=[], max_evaluations=20)
    plan = planner.plan(Model(bags(SMALL)), SHARDERS).plan["sparse.bags"]
    assert plan["b"].sharding_type == types.split()[0]
    assert ("training may fail" in caplog.text) is is_warned
