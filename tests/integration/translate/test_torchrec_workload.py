"""What the planner reads off a TorchRec model."""

from __future__ import annotations

import pytest

pytest.importorskip("torchrec")

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams
from torchrec.models.dlrm import DLRM, DLRM_DCN
from torchrec.modules.embedding_configs import DataType as TorchrecDataType
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import DataType, DenseArch, Interaction, Optimizer, Pooling
from planner.errors import InvalidInputError
from planner.integrations.torchrec_workload import (
    ModelDescription,
    WorkloadHints,
    describe_model,
)
from planner.integrations.translate.reading import uses_index_dedup
from planner.problem import TableConstraint
from tests.integration.models import META, Model, bags, sequences

pytestmark = pytest.mark.torchrec

UNGUARDED = set(ShardingType) - {ShardingType.GRID_SHARD}
"""Types of a table whose constraint names none: TorchRec's enumerator keeps grid_shard back."""


def describe(model: nn.Module, **arguments: object) -> ModelDescription:
    described = describe_model(model, batch_size=32, **arguments)
    assert described is not None
    return described


def limit_of(described: ModelDescription, table: str) -> TableConstraint:
    (found,) = described.constraints.for_table(table)
    return found


def test_tables_of_both_kinds_at_any_depth() -> None:
    model = Model(bags([("a", 10, 8), ("b", 20, 4)]), sequences([("c", 30, 12)]))
    workload = describe(model).workload
    seen = [
        (t.name, t.module, t.num_embeddings, t.embedding_dim, t.pooling) for t in workload.tables
    ]
    assert seen == [
        ("a", "sparse.bags", 10, 8, Pooling.SUM),
        ("b", "sparse.bags", 20, 4, Pooling.SUM),
        ("c", "history", 30, 12, Pooling.NONE),
    ]
    assert workload.batch_size_per_rank == 32
    assert [f.name for f in workload.table("a").features] == ["f_a"]


def test_a_collection_as_root_has_the_empty_path() -> None:
    assert describe(bags([("a", 10, 8)])).workload.table("a").module == ""


def test_a_model_without_tables() -> None:
    assert describe_model(nn.Linear(2, 2), batch_size=4) is None
    only_others = Model(bags([("a", 10, 8)]))
    assert describe_model(only_others, [], batch_size=4) is None


def test_types_pooling_weights_and_features() -> None:
    tables = EmbeddingBagCollection(
        device=META,
        is_weighted=True,
        tables=[
            EmbeddingBagConfig(
                name="a",
                num_embeddings=10,
                embedding_dim=8,
                feature_names=["x", "y"],
                pooling=PoolingType.MEAN,
                data_type=TorchrecDataType.FP16,
            )
        ],
    )
    given = {"a": ParameterConstraints(pooling_factors=[3.0, 5.0], num_poolings=[1.0, 2.0])}
    table = describe(tables, constraints=given).workload.table("a")
    assert table.is_weighted
    assert table.dtype is DataType.FP16
    assert table.pooling is Pooling.MEAN
    assert [(f.name, f.pooling_factor) for f in table.features] == [("x", 3.0), ("y", 10.0)]


def test_a_constraint_that_is_none_is_no_constraint() -> None:
    """TorchRec takes it so too."""
    module = bags([("a", 10, 8)])
    without, bare = describe(module, constraints={"a": None}), describe(module)
    assert (without.workload, without.constraints) == (bare.workload, bare.constraints)
    assert without.warnings == bare.warnings


def test_one_pooling_factor_holds_for_each_feature() -> None:
    config = EmbeddingBagConfig(
        name="a", num_embeddings=10, embedding_dim=8, feature_names=["x", "y"]
    )
    tables = EmbeddingBagCollection(device=META, tables=[config])
    given = {"a": ParameterConstraints(pooling_factors=[4.0])}
    table = describe(tables, constraints=given).workload.table("a")
    assert [f.pooling_factor for f in table.features] == [4.0, 4.0]


def test_batch_sizes_of_features_scale_their_indices() -> None:
    given = {"a": ParameterConstraints(pooling_factors=[4.0], batch_sizes=[8])}
    table = describe(bags([("a", 10, 8)]), constraints=given).workload.table("a")
    assert table.pooling_factor == 1.0


def test_a_wrong_number_of_pooling_factors_is_spread_and_said() -> None:
    given = {"a": ParameterConstraints(pooling_factors=[4.0, 2.0], num_poolings=[1.0, 3.0])}
    described = describe(bags([("a", 10, 8)]), constraints=given)
    assert [f.pooling_factor for f in described.workload.tables[0].features] == [10.0]
    assert any("sum is spread evenly: ['a']" in line for line in described.warnings)


def test_lists_of_a_constraint_that_differ_in_length_are_refused() -> None:
    given = {"a": ParameterConstraints(pooling_factors=[4.0, 2.0], num_poolings=[1.0] * 3)}
    with pytest.raises(InvalidInputError, match="pooling_factors has 2 values for 3 inputs"):
        describe(bags([("a", 10, 8)]), constraints=given)


def test_all_problems_are_reported_at_once() -> None:
    tables = EmbeddingBagCollection(
        device=META,
        tables=[
            EmbeddingBagConfig(
                name=n,
                num_embeddings=10,
                embedding_dim=8,
                feature_names=[n],
                data_type=TorchrecDataType.INT64,
            )
            for n in ("a", "b")
        ],
    )
    with pytest.raises(InvalidInputError) as caught:
        describe(tables)
    assert len(caught.value.problems) == 2
    assert (
        "table 'b' of module '': the data type must be a data type among"
        in caught.value.problems[1]
    )


@pytest.mark.parametrize("kind", [TorchrecDataType.INT8, TorchrecDataType.FP16])
def test_scales_of_rows_trained_in_int8_are_said_not_to_be_counted(kind: TorchrecDataType) -> None:
    config = EmbeddingBagConfig(
        name="a", num_embeddings=10, embedding_dim=8, feature_names=["x"], data_type=kind
    )
    found = describe(EmbeddingBagCollection(device=META, tables=[config])).warnings
    told = any("1 tables are trained in INT8" in line and "['a']" in line for line in found)
    assert told is (kind is TorchrecDataType.INT8)


# ------------------------------------------------------------------ optimizer


def test_the_optimizer_applied_in_backward_counts() -> None:
    tables = bags([("a", 10, 8)])
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": 0.1})
    assert describe(tables).workload.optimizer is Optimizer.ROWWISE_ADAGRAD


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (EmbOptimType.ADAM, Optimizer.ADAM),
        (EmbOptimType.EXACT_ROWWISE_ADAGRAD, Optimizer.ROWWISE_ADAGRAD),
        (EmbOptimType.PARTIAL_ROWWISE_ADAM, Optimizer.ROWWISE_ADAM),
        (None, Optimizer.SGD),
    ],
)
def test_the_optimizer_of_the_sharder_counts_next(
    chosen: EmbOptimType | None, expected: Optimizer
) -> None:
    sharder = EmbeddingBagCollectionSharder(fused_params={"optimizer": chosen} if chosen else None)
    assert describe(bags([("a", 10, 8)]), sharders=[sharder]).workload.optimizer is expected


def test_unknown_optimizers_are_a_warning() -> None:
    tables = bags([("a", 10, 8)])
    apply_optimizer_in_backward(torch.optim.Rprop, tables.parameters(), {})
    described = describe(tables)
    assert not described.knows_optimizer
    assert described.workload.optimizer is Optimizer.ADAGRAD
    assert any("['rprop'] of the tables have no known cost" in w for w in described.warnings)


@pytest.mark.parametrize("kind", list(EmbOptimType))
def test_every_optimizer_of_fbgemm_is_planned(kind: EmbOptimType) -> None:
    sharder = EmbeddingBagCollectionSharder(fused_params={"optimizer": kind})
    described = describe(bags([("a", 10, 8)]), sharders=[sharder])
    known = kind.name not in ("SHAMPOO", "SHAMPOO_V2", "MADGRAD", "ROWWISE_RMSPROP_AR")
    assert described.knows_optimizer is known
    assert any(kind.value in w for w in described.warnings) is not known


# ------------------------------------------------------------------ dense part


def dlrm(kind: type[DLRM] = DLRM, **arguments: object) -> DLRM:
    return kind(
        embedding_bag_collection=bags([("a", 10, 8), ("b", 20, 8)]),
        dense_in_features=13,
        dense_arch_layer_sizes=[32, 8],
        over_arch_layer_sizes=[16, 1],
        dense_device=META,
        **arguments,
    )


def test_the_layers_of_a_dlrm_are_read() -> None:
    workload = describe(dlrm()).workload
    assert workload.dense == DenseArch(
        num_dense_features=13, bottom_mlp=(32, 8), top_mlp=(16, 1), interaction=Interaction.DOT
    )
    assert workload.reserved_bytes == 0
    assert workload.tables[0].module == "sparse_arch.embedding_bag_collection"


def test_the_cross_network_of_a_dcn_is_read() -> None:
    dense = describe(dlrm(DLRM_DCN, dcn_num_layers=3, dcn_low_rank_dim=4)).workload.dense
    assert (dense.interaction, dense.dcn_num_layers, dense.dcn_low_rank_dim) == (
        Interaction.DCN,
        3,
        4,
    )


def test_an_unknown_dense_part_is_reserved() -> None:
    described = describe(Model(bags([("a", 10, 8)])))
    assert described.workload.dense == DenseArch()
    assert described.workload.reserved_bytes == 6 * 4 * (8 * 4 + 4)
    assert any("its time is not predicted" in w for w in described.warnings)


def test_hints_fill_in_what_a_model_does_not_say() -> None:
    dense = DenseArch(bottom_mlp=(4,), top_mlp=(1,))
    hints = WorkloadHints(
        name="mine",
        distributions={"a": Zipf(num_embeddings=10, exponent=1.0)},
        default_distribution=lambda rows: Zipf(num_embeddings=rows, exponent=0.5),
        dense=dense,
        reserved_bytes=5.0,
    )
    described = describe(Model(bags([("a", 10, 8), ("b", 20, 8)])), hints=hints)
    workload = described.workload
    assert (workload.name, workload.dense, workload.reserved_bytes) == ("mine", dense, 5.0)
    assert workload.table("a").distribution == Zipf(num_embeddings=10, exponent=1.0)
    assert workload.table("b").distribution == Zipf(num_embeddings=20, exponent=0.5)
    assert not any("distribution" in w for w in described.warnings)


def test_assumptions_are_said() -> None:
    described = describe(
        bags([("a", 10, 8)]), constraints={"ghost": ParameterConstraints(min_partition=4)}
    )
    assert described.workload.table("a").distribution == Uniform(num_embeddings=10)
    text = "\n".join(described.warnings)
    assert "no pooling factor" in text
    assert "uniform assumed" in text
    assert "tables that the model does not have: ['ghost']" in text


# ------------------------------------------------------------------ constraints


def test_constraints_of_a_table() -> None:
    given = {
        "a": ParameterConstraints(
            sharding_types=["column_wise", "grid_shard"],
            compute_kernels=["fused_uvm_caching", "key_value"],
            min_partition=16,
            cache_params=CacheParams(load_factor=0.4),
        )
    }
    described = describe(bags([("a", 10, 64), ("b", 10, 64)]), constraints=given)
    limit = limit_of(described, "a")
    assert limit.sharding_types == (ShardingType.COLUMN_WISE, ShardingType.GRID_SHARD)
    assert limit.kernels == (ComputeKernel.FUSED_UVM_CACHING,)
    assert limit.min_column_width == 16
    assert limit.cache_load_factors == (0.4,)
    assert set(limit_of(described, "b").sharding_types) == UNGUARDED


def test_names_with_wildcards_match_only_themselves() -> None:
    described = describe(bags([("a*", 10, 8), ("ab", 10, 8), ("t[0]", 10, 8)]))
    for name in ("a*", "ab", "t[0]"):
        assert len(described.constraints.for_table(name)) == 1


def test_cpu_has_no_uvm_but_all_sharding_types() -> None:
    described = describe(bags([("a", 10, 8)]), compute_device="cpu")
    assert described.constraints.kernels == (ComputeKernel.DENSE, ComputeKernel.FUSED)
    assert set(limit_of(described, "a").sharding_types) == UNGUARDED


def test_a_sharder_limits_the_types() -> None:
    class OnlyTables(EmbeddingBagCollectionSharder):
        def sharding_types(self, compute_device_type: str) -> list[str]:
            return ["table_wise"]

    described = describe(bags([("a", 10, 8)]), sharders=[OnlyTables()])
    assert limit_of(described, "a").sharding_types == (ShardingType.TABLE_WISE,)


def test_feature_processed_modules_keep_rows_together_unless_asked() -> None:
    tables = bags([("a", 10, 8)], is_weighted=True)
    processor = PositionWeightedModuleCollection(max_feature_lengths={"f_a": 4}, device=META)
    model = Model(FeatureProcessedEmbeddingBagCollection(tables, processor))
    assert ShardingType.ROW_WISE not in limit_of(describe(model), "a").sharding_types
    given = {"a": ParameterConstraints(sharding_types=["row_wise"])}
    described = describe(model, constraints=given)
    assert limit_of(described, "a").sharding_types == (ShardingType.ROW_WISE,)


def test_constraints_that_leave_nothing_are_refused() -> None:
    given = {
        "a": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["dense"]),
        "c": ParameterConstraints(cache_params=CacheParams(load_factor=0.0)),
    }
    with pytest.raises(InvalidInputError) as caught:
        describe(bags([("a", 10, 8), ("b", 10, 8), ("c", 10, 8)]), constraints=given)
    assert "table 'a': no sharding option is left" in caught.value.problems[0]
    assert "table 'c': cache_params.load_factor must be above 0" in caught.value.problems[1]


def test_distinct_indices_of_a_sharder_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """``use_index_dedup`` of the sharder or of TorchRec as a whole, never for pooled tables."""
    model = Model(bags([("p", 500, 16)]), sequences([("s", 500, 16)]))

    def found(*, use_index_dedup: bool) -> dict[str, bool]:
        sharders = [
            EmbeddingBagCollectionSharder(),
            EmbeddingCollectionSharder(use_index_dedup=use_index_dedup),
        ]
        described = describe_model(model, sharders, batch_size=64)
        assert described is not None
        return {t.name: t.deduplicates_indices for t in described.workload.tables}

    assert found(use_index_dedup=False) == {"p": False, "s": False}
    assert found(use_index_dedup=True) == {"p": False, "s": True}
    inside = EmbeddingCollectionSharder(use_index_dedup=True)
    assert uses_index_dedup(ManagedCollisionEmbeddingCollectionSharder(ec_sharder=inside))
    assert not uses_index_dedup(ManagedCollisionEmbeddingCollectionSharder())
    monkeypatch.setattr("torchrec.distributed.embedding.EC_INDEX_DEDUP", True)
    assert found(use_index_dedup=False) == {"p": False, "s": True}
