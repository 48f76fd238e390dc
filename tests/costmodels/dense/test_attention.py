"""Fused attention: what a layer of HSTU lists with it, and how long its kernels take."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.dense.base import dense_names, dense_operators, uneven_remark
from costmodels.dense.kernels import Gpu, attention_time, kernel_time
from costmodels.dense.roofline import DenseRoofline
from costmodels.errors import InvalidValueError
from costmodels.layers.base import Flow
from costmodels.layers.hstu import Hstu
from costmodels.layers.mlp import Mlp
from costmodels.operators import Operator, OperatorKind
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.sustained import POINTWISE, pointwise_works
from costmodels.units import GB
from costmodels.workload import DataType, DenseArch, OperatorList, Workload
from tests.strategies import make_device, make_topology

UNFUSED = Hstu(layers=2, hidden=256, heads=4, seq=2048)
FUSED = replace(UNFUSED, fused_attention=True)
H100 = make_device(
    name="H100-SXM5-80GB",
    num_multiprocessors=132,
    hbm_bandwidth_bytes_per_s=2970 * GB,
    flops_per_s=((DataType.BF16, 989e12), (DataType.FP16, 989e12)),
    flops_efficiency_ratio=0.8,
)


def workload(layer: Hstu) -> Workload:
    """A batch of 8 histories, without tables."""
    positions = round(fmean(layer.lengths or (layer.seq,)))
    features = positions * (layer.input_width or layer.hidden)
    dense = DenseArch(num_dense_features=features, layers=(layer,), dtype=DataType.BF16)
    return Workload(name="w", tables=(), batch_size_per_rank=8, dense=dense)


def operators(layer: Hstu) -> tuple[Operator, ...]:
    """Those of a batch of 8 histories."""
    return dense_operators(workload(layer))[1]


def total(layer: Hstu, figure: str) -> float:
    """Over all repeats."""
    return float(sum(o.num_repeats * getattr(o, figure) for o in operators(layer)))


def step_s(layer: Hstu, name: str = H100.name) -> float:
    """Forward and backward."""
    topology = make_topology(device=replace(H100, name=name))
    times = DenseRoofline().times(workload(layer), topology)
    return times.top_forward_s + times.top_backward_s


def attention(batch: int, length: int, width: int, *, is_causal: bool = True) -> Operator:
    """One head of ``batch`` sequences."""
    layer = Hstu(
        layers=1, hidden=width, heads=1, seq=length, causal=is_causal, fused_attention=True
    )
    flow = Flow(batch_size=batch, dtype=DataType.BF16, width=width, length=length)
    return next(o for o in layer.build(flow).after if o.kind is OperatorKind.ATTENTION)


def test_fused_layers_do_the_same_products_and_keep_no_scores() -> None:
    assert total(FUSED, "forward_flop") == total(UNFUSED, "forward_flop")
    assert total(FUSED, "num_parameters") == total(UNFUSED, "num_parameters")
    scores = 2 * 2 * 8 * 4 * 2048 * 2048
    assert total(UNFUSED, "saved_bytes") - total(FUSED, "saved_bytes") >= 2 * scores
    rows = 2 * 8 * 2048
    kept = 2 * (1 + 1 + 2 * 4 + 2) * 256 * rows  # input, normed, twice what is active, gate's both
    assert total(FUSED, "saved_bytes") == pytest.approx(kept, rel=0.07)  # and statistics of norms
    assert total(FUSED, "moved_bytes") < 0.1 * total(UNFUSED, "moved_bytes")


def test_what_a_layer_says_changes_its_time_as_it_should() -> None:
    causal = replace(FUSED, causal=True)
    assert step_s(causal) < step_s(FUSED) < step_s(UNFUSED) < step_s(replace(UNFUSED, causal=True))
    assert step_s(causal) < step_s(replace(causal, kernel="triton"))
    assert step_s(replace(causal, qk_width=128)) > step_s(causal)
    assert step_s(replace(causal, value_width=128)) > step_s(causal)
    assert step_s(replace(causal, input_width=8)) > step_s(causal)
    drawn = replace(causal, lengths=(64, 2048))
    assert step_s(replace(drawn, balanced=True)) < step_s(drawn) < step_s(causal)


def test_a_stu_has_the_flop_that_meta_counts() -> None:
    """DLRMv4: 315.7 GFLOP a sample at 4096 positions: causal, all passes, nothing recomputed."""
    layer = Hstu(
        layers=3, hidden=512, heads=4, seq=4096, causal=True, fused_attention=True, stu=True
    )
    found = operators(layer)
    flop = sum(
        o.num_repeats * (o.forward_flop + o.gradient_flop) / (2 if o.is_causal else 1)
        for o in found
    )
    assert flop / 8 == pytest.approx(315.7e9, rel=1e-3)
    plain = replace(layer, stu=False)
    assert total(layer, "saved_bytes") < 0.5 * total(plain, "saved_bytes")
    assert any(o.is_recomputed for o in found)
    assert not any(o.is_recomputed for o in operators(plain))


def test_contextual_positions_arrive_with_a_width_of_their_own() -> None:
    """DLRMv4: 8 contextual vectors of 512 before 20 positions of 1536."""
    layer = Hstu(
        layers=1, hidden=512, heads=4, seq=28, input_width=1536, contextual=8, contextual_width=512
    )
    built = layer.build(Flow(batch_size=2, width=20 * 1536 + 8 * 512))
    first, *_ = (o for o in built.after if o.kind is OperatorKind.MATMUL)
    assert first.shape == (1, 2 * 20, 1536, 512)
    assert (8, 2, 512, 512) in {o.shape for o in built.after}
    assert (1, 2 * 28, 512, 2048) in {o.shape for o in built.after}
    with pytest.raises(InvalidValueError, match="needs 20 positions of 1536 elements and 8 of 512"):
        layer.build(Flow(batch_size=2, width=28 * 1536))


def test_ranks_differ_more_if_samples_share_their_history() -> None:
    drawn = replace(FUSED, lengths=(64, 512, 2048))
    shared = replace(drawn, samples_per_history=4)
    one, four = (max(o.deviation_ratio for o in operators(x)) for x in (drawn, shared))
    assert four == pytest.approx(2 * one)
    ranks = make_topology(device=H100)
    drawn_s, even_s = (
        sum(DenseRoofline().times(workload(x), ranks))
        for x in (drawn, replace(drawn, balanced=True))
    )
    said = uneven_remark(workload(drawn), ranks, DenseRoofline())
    assert said is not None
    assert f"would save {(drawn_s - even_s) * 1e3:.3g} ms a step" in said
    for quiet in (FUSED, replace(drawn, balanced=True), replace(FUSED, lengths=(64,))):
        assert uneven_remark(workload(quiet), ranks, DenseRoofline()) is None


def test_a_device_that_was_not_measured_does_the_work_of_an_h100() -> None:
    own, known, other = (
        pointwise_works(2, replace(H100, name=name)) for name in ("some device", "H100", "B200-SXM")
    )
    assert own == known != other


@given(
    st.integers(1, 512), st.integers(1, 9000), st.sampled_from([32, 64, 128, 256]), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_no_kernel_beats_the_device_and_more_work_takes_longer(
    batch: int, length: int, width: int, is_backward: bool
) -> None:
    one = attention(batch, length, width)
    time_s = attention_time(one, Gpu(H100), is_backward=is_backward)
    flop = one.gradient_flop if is_backward else one.forward_flop
    assert time_s >= flop / 2 / (H100.matrix_rate(DataType.BF16) * H100.flops_efficiency_ratio)
    assert time_s >= one.moved_bytes / H100.hbm_bandwidth_bytes_per_s
    for more in (
        attention(2 * batch, length, width),
        attention(batch, 2 * length, width),
        attention(batch, length, 2 * width),
        replace(one, is_causal=False),
        replace(one, flash_version=1),
    ):
        assert attention_time(more, Gpu(H100), is_backward=is_backward) >= time_s
    for works in POINTWISE.values():
        named = kernel_time(one, Gpu(H100), works, is_backward=is_backward)
        assert named == time_s or works is not POINTWISE["H100"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_width": -1}, "qk_width must be 0..1e6, got -1"),
        ({"hidden": 10}, "hidden must be a multiple of heads, got 10 and 4; or give qk_width"),
        ({"balanced": True}, "balanced True counts only with lengths; leave balanced out"),
        ({"kernel": "cuda"}, "kernel must be one of cutlass, triton, got 'cuda'"),
        (
            {"contextual": 2048},
            "contextual must be 0..2047, fewer than the positions of each history",
        ),
        ({"contextual_width": 8}, "contextual_width 8 counts only with contextual; leave"),
        ({"samples_per_history": 2}, "samples_per_history 2 counts only with lengths; leave"),
        ({"samples_per_history": 0, "lengths": (4,)}, "samples_per_history must be 1..1e8, got 0"),
        (
            {"fused_attention": False, "stu": True},
            "stu True counts only with fused_attention; leave",
        ),
        (
            {"fused_attention": False, "kernel": "triton"},
            "kernel triton counts only with fused_attention",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        replace(FUSED, **changes)  # type: ignore[arg-type]


def test_widths_of_heads_need_no_hidden_elements_that_divide() -> None:
    layer = Hstu(layers=1, hidden=10, heads=4, seq=3, qk_width=2, value_width=3)
    assert layer.build(Flow(batch_size=2, width=30)).flow.width == 10


def test_only_attention_is_pointwise() -> None:
    with pytest.raises(InvalidValueError, match="is_pointwise belongs to kind attention"):
        Operator(name="a", kind=OperatorKind.NORM, shape=(2,), is_pointwise=True)


def test_steps_are_named_after_what_the_dense_part_is() -> None:
    def names(given: Workload) -> set[str]:
        estimate = CostPipeline(given, make_topology()).estimate(Plan(placements=()))
        return {stage.name for stage in estimate.stages if any(stage.duration_s)}

    own = workload(FUSED)
    assert {"dense part forward", "dense part backward"} <= names(own)
    first = replace(own.dense, layers=(Mlp(sizes=(4,), before_tables=True), FUSED))
    assert dense_names(replace(own, dense=first))[1] == "dense part after tables"
    dlrm = DenseArch(num_dense_features=4, bottom_mlp=(8,), top_mlp=(4,))
    assert dense_names(replace(own, dense=dlrm)) == ("bottom MLP", "interaction and top MLP")
    listed = OperatorList(batch_size_per_rank=8, after_tables=operators(FUSED))
    assert dense_names(replace(own, dense=DenseArch(operators=listed)))[1] == "dense part"


def test_written_scores_are_told_on_a_gpu() -> None:
    def warnings(layer: Hstu) -> str:
        estimate = CostPipeline(workload(layer), make_topology()).estimate(Plan(placements=()))
        return " ".join(estimate.warnings)

    assert "set fused_attention: true" in warnings(UNFUSED)
    assert "fused_attention" not in warnings(FUSED)


@given(
    heads=st.integers(1, 300),
    positions=st.integers(1, 700),
    is_causal=st.booleans(),
    is_pointwise=st.booleans(),
    is_backward=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_more_positions_never_take_less_time(
    heads: int, positions: int, *, is_causal: bool, is_pointwise: bool, is_backward: bool
) -> None:
    shorter, longer = (
        attention_time(
            replace(
                attention(heads, length, 64, is_causal=is_causal),
                is_pointwise=is_pointwise,
            ),
            Gpu(H100),
            is_backward=is_backward,
        )
        for length in (positions, positions + 1)
    )
    assert longer >= shorter * (1 - 1e-12)
