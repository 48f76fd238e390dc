"""Dense parts that are compiled as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodels.dense.base import activation_bytes, dense_operators, dense_parameters
from costmodels.errors import InvalidValueError
from costmodels.layers.mlp import Mlp
from costmodels.layers.transformer import Transformer
from costmodels.operators import Operator
from costmodels.workload import DenseArch, Interaction, InteractionKernel, Pipeline, Workload
from tests.strategies import make_table, make_workload

DCN = DenseArch(
    num_dense_features=13,
    bottom_mlp=(32, 64),
    top_mlp=(16, 1),
    interaction=Interaction.DCN,
    dcn_num_layers=2,
    dcn_low_rank_dim=8,
)


def pair(arch: DenseArch) -> tuple[Workload, Workload]:
    """The workload with two tables as PyTorch runs it, and compiled."""
    eager = make_workload(make_table("t0"), make_table("t1"), dense=arch)
    return eager, replace(eager, dense=replace(arch, compiled=True))


def operators(workload: Workload) -> list[Operator]:
    return [o for part in dense_operators(workload) for o in part]


def test_products_parameters_and_kept_bytes_stay_and_bytes_fall() -> None:
    eager, joined = pair(DCN)
    products = [[o.product for o in operators(w) if o.product] for w in (eager, joined)]
    assert products[0] == products[1]
    assert dense_parameters(eager) == dense_parameters(joined)
    assert activation_bytes(eager) == pytest.approx(activation_bytes(joined))
    moved = [sum(o.moved_bytes + o.backward_moved_bytes for o in operators(w)) for w in pair(DCN)]
    assert moved[1] < moved[0]


def test_a_cross_layer_is_one_kernel_that_reads_three_tensors_and_writes_one() -> None:
    _, joined = pair(DCN)
    terms = [o for o in operators(joined) if o.name.startswith("cross.") and not o.product]
    size = 4.0 * terms[0].num_elements
    assert [(o.num_kernels, o.read_bytes, o.written_bytes) for o in terms] == [
        (1, 3 * size, size)
    ] * 2


def test_the_interaction_is_compiled_unless_it_says_otherwise() -> None:
    arch = DenseArch(num_dense_features=13, bottom_mlp=(64,), top_mlp=(4, 1), compiled=True)
    sorted_: list[int] = []
    for kernel in (None, InteractionKernel.EAGER):
        workload = pair(replace(arch, interaction_kernel=kernel))[1]
        sorted_.append(sum(o.num_sorted for o in operators(workload)))
    assert sorted_[0] == 0
    assert sorted_[1] > 0


def test_layers_that_can_be_compiled_are() -> None:
    """A transformer joins its own kernels; what is joined already stays as it is."""
    layer = Transformer(layers=1, hidden=64, heads=4, ffn=128, seq=16)
    arch = DenseArch(num_dense_features=16 * 64, layers=(layer,))
    alone = DenseArch(num_dense_features=16 * 64, layers=(replace(layer, compiled=True),))
    whole = Workload(name="w", tables=(), batch_size_per_rank=8, dense=replace(arch, compiled=True))
    assert operators(whole) == operators(replace(whole, dense=alone))


def test_hugectr_compiles_nothing() -> None:
    arch = DenseArch(num_dense_features=8, layers=(Mlp(sizes=(4,)),), compiled=True)
    with pytest.raises(InvalidValueError, match=r"dense\.compiled contradicts pipeline hugectr"):
        make_workload(dense=arch, pipeline=Pipeline.HUGECTR)
