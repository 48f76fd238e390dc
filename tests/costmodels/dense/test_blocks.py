"""What each key of a transformer changes: products, bytes, parameters, what is kept, its pace."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodels.dense.base import dense_operators
from costmodels.dense.roofline import DenseRoofline, slowest_sigmas
from costmodels.errors import InvalidValueError
from costmodels.layers.hstu import Hstu
from costmodels.layers.mlp import Mlp
from costmodels.layers.transformer import Transformer
from costmodels.operators import Operator, OperatorKind
from costmodels.sustained import (
    SHARES,
    UNMEASURED,
    Shares,
    group_of,
    shares_of,
    softmax_works,
)
from costmodels.workload import DataType, DenseArch, HostProfile, Pooling, Workload
from tests.strategies import make_device, make_table, make_topology, make_workload

BLOCK = Transformer(layers=1, hidden=64, heads=4, ffn=512, seq=32, vocabulary=100)
ROWS = 8 * 32


def operators(
    layer: Transformer | Hstu | Mlp, dtype: DataType = DataType.BF16, **changes: object
) -> tuple[Operator, ...]:
    """Of a batch of 8."""
    arch = DenseArch(layers=(layer,), dtype=dtype, num_dense_features=0)
    values: dict[str, object] = {"name": "w", "tables": (), "batch_size_per_rank": 8, "dense": arch}
    return dense_operators(Workload(**{**values, **changes}))[1]  # type: ignore[arg-type]


def total(found: tuple[Operator, ...], figure: str) -> float:
    """Over all repeats."""
    return float(sum(o.num_repeats * getattr(o, figure) for o in found))


def moved(found: tuple[Operator, ...]) -> float:
    """Bytes of all operators that are no products and no fused attention, both ways."""
    return sum(
        o.num_repeats * (o.moved_bytes + o.backward_moved_bytes)
        for o in found
        if o.product is None and o.kind is not OperatorKind.ATTENTION
    )


def test_parameters_are_those_of_published_models() -> None:
    """Llama 3.1 8B and MPT-125m as their authors print them."""
    llama = Transformer(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, seq=8, vocabulary=128256,
        gated=True, bias=False, rotary=True, tied=False,
    )  # fmt: skip
    assert total(operators(llama), "num_parameters") == 8_030_261_248
    mpt = Transformer(layers=12, hidden=768, heads=12, ffn=3072, seq=65536, vocabulary=50368)
    assert total(operators(mpt), "num_parameters") == 174_070_272


def test_dropout_reads_and_writes_each_tensor_and_a_byte_of_mask() -> None:
    """After attention, feed-forward and tokens; 2 + 2 + 1 bytes forward and backward each."""
    more = moved(operators(replace(BLOCK, dropout=True))) - moved(operators(BLOCK))
    assert more == 3 * ROWS * 64 * 2 * 5


def test_autocast_casts_weights_and_keeps_residuals_in_fp32() -> None:
    plain, cast = (operators(replace(BLOCK, autocast=a)) for a in (False, True))
    weights = 4 * 64 * 64 + 2 * 64 * 512 + 100 * 64
    casts = {o.shape for o in cast} - {o.shape for o in plain}
    assert casts == {(64, 192), (64, 64), (64, 512), (512, 64), (64, 100)}
    assert moved(cast) > moved(plain) + 12 * weights
    assert total(cast, "forward_flop") == total(plain, "forward_flop")
    in_fp32 = (operators(replace(BLOCK, autocast=a), DataType.FP32) for a in (False, True))
    assert len({tuple(o.moved_bytes for o in found) for found in in_fp32}) == 1


def test_a_compiler_moves_less_and_launches_less() -> None:
    for key in ({}, {"autocast": True}, {"dropout": True}, {"fused_attention": False}):
        eager = operators(replace(BLOCK, **key))  # type: ignore[arg-type]
        joined = operators(replace(BLOCK, compiled=True, **key))  # type: ignore[arg-type]
        assert moved(joined) < moved(eager)
        assert total(joined, "num_kernels") <= total(eager, "num_kernels")
        assert total(joined, "forward_flop") == total(eager, "forward_flop")


def test_the_loss_is_in_fp32_unless_it_is_fused() -> None:
    """Per logit of two bytes: cast, log-softmax, filled gradient, its own, and cast back."""
    (loss,) = (o for o in operators(BLOCK) if o.kind is OperatorKind.SOFTMAX)
    assert loss.moved_bytes == 18 * ROWS * 100
    assert loss.backward_moved_bytes == 26 * ROWS * 100
    (fused,) = (
        o for o in operators(replace(BLOCK, fused_loss=True)) if o.kind is OperatorKind.SOFTMAX
    )
    assert fused.moved_bytes + fused.backward_moved_bytes == 6 * ROWS * 100
    (some,) = (o for o in operators(replace(BLOCK, predicted=5)) if o.kind is OperatorKind.SOFTMAX)
    assert some.shape == (8 * 5, 100)


def test_scores_that_are_written_are_copied_scaled_masked_and_dropped() -> None:
    """Pairs of positions: scale, mask, causal mask, softmax, dropout; 2 bytes each way."""
    wide = replace(
        BLOCK, fused_attention=False, masked=True, causal=True, dropout=True, vocabulary=0
    )
    with pytest.raises(InvalidValueError, match="needs 32 positions"):
        operators(wide)
    found = [o for o in operators(replace(wide, vocabulary=100)) if o.shape == (32, 32, 32)]
    assert [(o.moved_bytes / 32**3, o.backward_moved_bytes / 32**3) for o in found] == [
        (4, 4), (4, 0), (4, 4), (4, 6), (5, 5),
    ]  # fmt: skip


def test_old_pytorch_adds_each_bias_in_a_kernel() -> None:
    new, old = (
        operators(BLOCK, host_profile=p) for p in (HostProfile.EAGER, HostProfile.EAGER_2021)
    )
    assert moved(old) - moved(new) == 4 * ROWS * (192 + 64 + 512 + 64)


def test_checkpoints_trade_memory_for_a_second_forward_pass() -> None:
    none, some, full, whole = (
        operators(replace(BLOCK, layers=6, checkpoint=c))
        for c in ("none", "selective", "full", "reentrant")
    )
    block = [o for o in none if o.num_repeats == 6]
    forward = total(tuple(block), "forward_flop")
    last = [o for o in block if o.product is not None][-1].forward_flop * 6
    assert total(full, "backward_flop") == total(none, "backward_flop") + forward - last
    assert total(whole, "backward_flop") == total(none, "backward_flop") + forward
    assert total(some, "backward_flop") == total(none, "backward_flop")
    kept = [total(found, "saved_bytes") for found in (none, some, full, whole)]
    assert kept[0] > kept[1] > kept[2] == kept[3]
    first = block[0].saved_bytes
    assert kept[0] - kept[2] == 6 * (sum(o.saved_bytes for o in block) - first)
    topology = make_topology()
    times = [
        DenseRoofline().times(
            Workload(
                name="w", tables=(), batch_size_per_rank=8,
                dense=DenseArch(layers=(replace(BLOCK, checkpoint=c),), dtype=DataType.FP16),
            ),
            topology,
        ).top_backward_s
        for c in ("none", "selective", "full", "reentrant")
    ]  # fmt: skip
    assert times == sorted(times)


def test_bytes_of_one_are_those_of_linear_layers_alone() -> None:
    found = operators(BLOCK, DataType.FP8)
    assert {o.dtype for o in found if o.kind is OperatorKind.ATTENTION} == {DataType.BF16}
    products = [o for o in found if o.kind is OperatorKind.MATMUL]
    assert [o.dtype for o in products] == [DataType.FP8] * 4 + [DataType.BF16]
    weights = 4 * 64 * 64 + 2 * 64 * 512
    inputs, gradients = ROWS * (64 + 64 + 64 + 512), ROWS * (192 + 64 + 512 + 64)
    assert moved(found) - moved(operators(BLOCK)) == 6 * (weights + inputs + gradients)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "heads must be a multiple of kv_heads, got 4 and 3"),
        ({"predicted": 33}, "predicted must be 0..seq positions, got 33 of 32"),
        (
            {"checkpoint": "all"},
            "checkpoint must be one of none, selective, full, reentrant, got 'all'",
        ),
        ({"lengths": (0, 4)}, r"lengths must be 1..seq \(32\), got \[0\]"),
        ({"lengths": (4,), "fused_attention": False}, "counts only with fused_attention"),
        ({"flash": 4}, "flash_version must be 1..3, got 4"),
        ({"flash": 1, "fused_attention": False}, "flash 1 counts only with fused_attention"),
        ({"masked": True}, "masked needs fused_attention: false"),
        ({"vocabulary": 0, "predicted": 4}, "predicted 4 counts only with vocabulary"),
        ({"vocabulary": 0, "tied": False}, "tied False counts only with vocabulary"),
        ({"vocabulary": 0, "fused_loss": True}, "fused_loss True counts only with vocabulary"),
        ({"vocabulary": 0, "head_transform": True}, "head_transform True counts only with voc"),
    ],
)
def test_keys_out_of_range_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        operators(replace(BLOCK, **changes))  # type: ignore[arg-type]


# ------------------------------------------------------------------ sequences of all lengths

LENGTHS = (1, 2, 4, 8, 16, 32)


def test_attention_follows_the_squares_and_all_else_the_lengths() -> None:
    """Mean 10.5, mean square 227.5: 21.7 positions seen by each, not 10.5 and not 32."""
    found = operators(replace(BLOCK, lengths=LENGTHS))
    (attention,) = (o for o in found if o.kind is OperatorKind.ATTENTION)
    squares = 8 * sum(n * n for n in LENGTHS) / 6
    assert attention.forward_flop == pytest.approx(4 * 4 * squares * 16, rel=0.02)
    assert total(found, "forward_flop") - attention.forward_flop == pytest.approx(
        8 * 10.5 * 2 * (4 * 64 * 64 + 2 * 64 * 512 + 64 * 100)
    )
    padded = operators(replace(BLOCK, lengths=(32,)))
    for figure in ("forward_flop", "backward_flop", "read_bytes", "saved_bytes"):
        assert total(padded, figure) == total(operators(BLOCK), figure)


def test_a_history_of_a_table_is_as_long_as_its_lengths() -> None:
    feature = replace(make_table().features[0], pooling_factor=10.5)
    table = make_table(pooling=Pooling.NONE, embedding_dim=64, features=(feature,))
    for layer in (replace(BLOCK, vocabulary=0), Hstu(layers=1, hidden=64, heads=4, seq=32)):
        arch = DenseArch(layers=(replace(layer, lengths=LENGTHS),))
        found = dense_operators(make_workload(table, dense=arch, batch_size_per_rank=8))[1]
        rows = {o.shape[1] for o in found if o.kind is OperatorKind.MATMUL}
        assert rows == {84}
        pairs = [
            o for o in found if o.kind in (OperatorKind.ATTENTION, OperatorKind.BATCHED_MATMUL)
        ]
        squares = 8 * sum(n * n for n in LENGTHS) / 6
        flop = sum(o.forward_flop for o in pairs)
        assert flop == pytest.approx(4 * 64 * squares, rel=0.02)


def test_the_rank_with_the_longest_sequences_sets_the_pace() -> None:
    """Against draws: 16 ranks of 64 sequences each, by length and by its square."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(LENGTHS, size=(4000, 16, 64)).astype(float)
    linear, squared = (
        float((x.sum(axis=-1).max(axis=-1) / (64 * x.mean())).mean()) for x in (drawn, drawn**2)
    )
    found = dense_operators(
        Workload(
            name="w", tables=(), batch_size_per_rank=64,
            dense=DenseArch(layers=(replace(BLOCK, lengths=LENGTHS),)),
        )
    )[1]  # fmt: skip
    sigmas = slowest_sigmas(16)
    for o in found:
        expected = squared if o.kind is OperatorKind.ATTENTION else linear
        assert 1 + sigmas * o.deviation_ratio == pytest.approx(expected, rel=0.03)
    workload = Workload(
        name="w", tables=(), batch_size_per_rank=64,
        dense=DenseArch(layers=(replace(BLOCK, lengths=LENGTHS),)),
    )  # fmt: skip
    alone, many = (
        DenseRoofline().times(workload, make_topology(num_hosts=hosts)).top_forward_s
        for hosts in (1, 8)
    )
    assert many > alone
    assert slowest_sigmas(1) == 0.0


# ------------------------------------------------------------------ shares of the rates


def test_half_the_shares_take_twice_as_long() -> None:
    """Gaps between kernels and the least time of a kernel stay."""
    big = replace(BLOCK, layers=2, hidden=4096, ffn=16384, seq=2048)
    workload = Workload(
        name="w", tables=(), batch_size_per_rank=8,
        dense=DenseArch(layers=(big,), dtype=DataType.FP16),
    )  # fmt: skip
    times = [
        DenseRoofline(shares=Shares(product_ratio=s, memory_ratio=s)).times(
            workload, make_topology()
        )
        for s in (1.0, 0.5)
    ]
    assert times[1].top_forward_s == pytest.approx(2 * times[0].top_forward_s, rel=0.1)
    assert times[1].optimizer_s == pytest.approx(2 * times[0].optimizer_s, rel=0.1)


def test_devices_find_their_shares_by_generation() -> None:
    def device(name: str) -> str:
        return group_of(make_device(name=name), DataType.BF16)

    assert device("A100-SXM4-40GB") == device("A800-PCIe") == "A100 half"
    assert device("H200-SXM") == "H100 half"
    assert device("GB200") == "B200 half"
    assert device("L40S") == "L40S half"
    assert shares_of(make_device(name="A100"), DataType.FP16) == SHARES["A100 half"]
    assert shares_of(make_device(name="mine"), DataType.FP16) == UNMEASURED


def test_attention_kernels_get_faster_by_version() -> None:
    for name in ("A100", "H100"):
        works = [softmax_works(v, make_device(name=name), UNMEASURED) for v in (1, 2, 3)]
        for width in (64, 128, 256):
            times = [
                [math.hypot(4 * width / w.product_ratio, w.score_flops) for w in both]
                for both in works
            ]
            assert times == sorted(times, reverse=True)
