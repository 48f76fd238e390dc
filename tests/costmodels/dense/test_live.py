"""What is live at the peak of a step, counted by hand and by laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.dense.base import activation_bytes, live_bytes, looked_up_bytes
from costmodels.layers.mlp import Mlp
from costmodels.layers.transformer import Transformer
from costmodels.workload import DataType, DenseArch, Pipeline, Workload
from tests.strategies import make_table, make_workload


def mlp(*sizes: int, batch: int = 100, width: int = 7) -> Workload:
    dense = DenseArch(num_dense_features=width, layers=(Mlp(sizes=sizes),))
    return Workload(
        name="mlp", tables=(), batch_size_per_rank=batch, dense=dense, pipeline=Pipeline.NONE
    )


def test_the_peak_of_an_mlp_is_at_its_widest_activation() -> None:
    """Kept: input, 50 and 90 elements; beside them the gradients of the 90 before and after."""
    assert live_bytes(mlp(50, 90, 1)).peak_bytes == 4 * 100 * (7 + 50 + 90 + 90 + 90)


def test_vectors_are_held_until_the_forward_pass_or_the_pipeline_ends() -> None:
    table = make_table()
    bare = make_workload(table, dense=DenseArch(), pipeline=Pipeline.NONE)
    vectors = looked_up_bytes(bare)
    assert vectors == 4 * 512 * 64
    assert live_bytes(bare).peak_bytes == live_bytes(bare).beside_lookups_bytes == 2 * vectors
    for pipeline in (Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST):
        held = live_bytes(replace(bare, pipeline=pipeline))
        assert held.peak_bytes == held.beside_lookups_bytes == 3 * vectors


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(1, 300), st.integers(1, 50)
)
def test_a_peak_grows_with_the_batch_and_is_above_what_is_kept(
    sizes: list[int], width: int, batch: int
) -> None:
    one, two = (mlp(*sizes, batch=b * batch, width=width) for b in (1, 2))
    assert live_bytes(two).peak_bytes == pytest.approx(2 * live_bytes(one).peak_bytes)
    assert live_bytes(one).peak_bytes > activation_bytes(one)


def test_blocks_keep_their_activations_and_checkpoints_free_them() -> None:
    def peak(layers: int, checkpoint: str = "none") -> float:
        layer = Transformer(
            layers=layers, hidden=64, heads=4, ffn=256, seq=32, checkpoint=checkpoint
        )
        dense = DenseArch(num_dense_features=64 * 32, layers=(layer,), dtype=DataType.BF16)
        made = Workload(name="blocks", tables=(), batch_size_per_rank=8, dense=dense)
        return live_bytes(made).peak_bytes

    assert peak(4) - peak(3) == pytest.approx(peak(3) - peak(2))
    assert peak(40, "full") < 0.5 * peak(40)
