"""Operators of a DLRM: shapes, FLOPs and parameters against hand counts and published figures."""

from __future__ import annotations

import pytest

from costmodels.dense.base import (
    Product,
    activation_bytes,
    dense_layers,
    dense_parameters,
)
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.workload import DataType, DenseArch, Feature, Interaction, Pooling, Workload
from tests.strategies import make_dense, make_placement, make_table, make_topology, make_workload

MLPERF_POOLING = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1),
    *(6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)


def mlperf_dcnv2(batch_size_per_rank: int = 8192) -> Workload:
    """The dense part of MLPerf's DLRM-DCNv2; tables are small, dimension and count are real."""
    tables = tuple(
        make_table(
            f"t{i}",
            num_embeddings=100,
            embedding_dim=128,
            features=(Feature(name=f"f{i}", pooling_factor=p),),
        )
        for i, p in enumerate(MLPERF_POOLING)
    )
    arch = DenseArch(
        num_dense_features=13,
        bottom_mlp=(512, 256, 128),
        top_mlp=(1024, 1024, 512, 256, 1),
        interaction=Interaction.DCN,
        dcn_num_layers=3,
        dcn_low_rank_dim=512,
        dtype=DataType.FP16,
    )
    return make_workload(*tables, dense=arch, batch_size_per_rank=batch_size_per_rank)


def test_mlperf_dcnv2_has_the_published_flops_and_parameters() -> None:
    """96.2 MFLOP per sample forward and backward (three times forward), 16.0 M parameters."""
    workload = mlperf_dcnv2()
    layers = dense_layers(workload)
    forward = sum(x.flops for x in (*layers.bottom, *layers.top)) / workload.batch_size_per_rank
    assert 3 * forward == pytest.approx(96.2e6, rel=0.02)
    assert dense_parameters(workload) == pytest.approx(16.0e6, rel=0.02)
    assert dense_parameters(workload) == sum(layers.num_parameters)


def test_mlperf_dcnv2_by_hand() -> None:
    """27 vectors of 128 make 3456 elements, so a cross layer has 2 * 3456 * 512 + 3456."""
    layers = dense_layers(mlperf_dcnv2())
    assert layers.num_parameters[0] == (13 * 512 + 512) + (512 * 256 + 256) + (256 * 128 + 128)
    assert [x.name for x in layers.top[:4]] == ["concat", "cross.0", "cross.1", "cross.2"]
    assert layers.top[1].num_parameters == 2 * 3456 * 512 + 3456
    assert layers.top[4].num_parameters == 3456 * 1024 + 1024


def test_dot_interaction_by_hand() -> None:
    """Bottom output and two tables with three features: 4 vectors of 64, so 6 pairs."""
    features = tuple(Feature(name=f"f{i}", pooling_factor=1.0) for i in range(2))
    tables = (make_table("t0", features=features), make_table("t1"))
    arch = DenseArch(num_dense_features=13, bottom_mlp=(32, 64), top_mlp=(16, 1))
    layers = dense_layers(make_workload(*tables, dense=arch, batch_size_per_rank=10))
    concat, dot, pairs, first, last = layers.top
    # The three looked-up vectors are joined, and then the dense vector with them.
    assert [o.moved_bytes for o in concat.operators] == [2 * 4 * 10 * n * 64 for n in (3, 4)]
    assert [o.num_joined for o in concat.operators] == [3, 0]
    assert sum(o.moved_bytes for o in pairs.operators) == 2 * 4 * 10 * (6 + 64)
    assert dot.products == (Product(m=4, k=64, n=4, count=10, aligned=4),)
    assert first.products == (Product(m=10, k=6 + 64, n=16, aligned=2),)
    assert last.num_parameters == 16 + 1
    assert layers.bottom[0].flops == 2 * 10 * 13 * 32


def test_concatenation_keeps_all_elements() -> None:
    arch = DenseArch(
        num_dense_features=5, bottom_mlp=(8,), top_mlp=(1,), interaction=Interaction.CAT
    )
    layers = dense_layers(make_workload(make_table("t0"), dense=arch))
    assert layers.top[1].products[0].k == 64 + 8


def test_a_dense_part_without_dense_features() -> None:
    arch = DenseArch(bottom_mlp=(8,), top_mlp=(4, 1), interaction=Interaction.CAT)
    layers = dense_layers(make_workload(make_table("t0"), dense=arch))
    assert layers.bottom == ()
    assert dense_parameters(make_workload(dense=DenseArch())) == 0


def test_a_sequence_counts_as_one_vector_per_table() -> None:
    arch = DenseArch(top_mlp=(1,), interaction=Interaction.CAT)
    table = make_table("t0", pooling=Pooling.NONE)
    assert dense_layers(make_workload(table, dense=arch)).top[1].products[0].k == 64


def test_activations_of_one_layer_by_hand() -> None:
    """Input 13 and output 8 of a batch of 100 in fp16, and in fp8 too: it is kept in 2 bytes."""
    arch = DenseArch(num_dense_features=13, bottom_mlp=(8,), dtype=DataType.FP16)
    assert activation_bytes(make_workload(dense=arch, batch_size_per_rank=100)) == 2 * 100 * 21
    short = DenseArch(num_dense_features=13, bottom_mlp=(8,), dtype=DataType.FP8)
    assert activation_bytes(make_workload(dense=short, batch_size_per_rank=100)) == 2 * 100 * 21


def test_a_product_counts_its_elements() -> None:
    product = Product(m=2, k=3, n=5, count=7)
    assert product.flops == 2 * 7 * 30
    assert product.num_elements == 7 * (6 + 15 + 10)


@pytest.mark.parametrize(
    ("dtype", "is_named"),
    [(DataType.FP8, True), (DataType.INT8, True), (DataType.TF32, False), (DataType.FP16, False)],
)
def test_a_rate_that_the_device_does_not_list_is_named(dtype: DataType, is_named: bool) -> None:
    topology = make_topology()
    table = make_table("t0")
    workload = make_workload(table, batch_size_per_rank=65536, dense=make_dense(dtype=dtype))
    whole = make_placement(table, ShardingType.TABLE_WISE, topology, where=(0,))
    told = CostPipeline(workload, topology).estimate(Plan(placements=(whole,))).warnings
    words = f"lists no rate for products in {dtype}: the dense part is priced at that of fp16"
    assert any(words in text for text in told) is is_named
