"""Traced dense parts: FLOP, parameters and saved tensors against PyTorch's own counts."""

from __future__ import annotations

import functools
import warnings
from dataclasses import astuple, replace
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from costmodels.dense.base import activation_bytes, dense_operators, dense_parameters
from costmodels.dense.roofline import DenseRoofline
from costmodels.layers.transformer import Transformer as TransformerLayer
from costmodels.operators import Operator, OperatorKind
from costmodels.workload import DataType, DenseArch, OperatorList, Workload
from planner.errors import InvalidInputError
from planner.integrations.dense import recorder
from planner.integrations.dense.trace import DenseTrace, folded, lookups_of, trace_dense
from planner.integrations.torchrec_workload import describe_model
from tests.integration.dense.counting import Counted, total
from tests.integration.dense.dense_modules import BATCH, LARGE, PLAIN, WITH_TABLES
from tests.strategies import make_device, make_topology

pytestmark = pytest.mark.torchrec


def traced(name: str, **how: Any) -> tuple[nn.Module, DenseTrace]:
    """A module on the meta device and its trace."""
    module, found = counted_trace(name, **how)
    return module, found.trace


@functools.cache
def counted_trace(
    name: str, *, inputs_need_gradients: bool = True, autocast: torch.dtype | None = None
) -> tuple[nn.Module, Counted]:
    """The same with PyTorch's count of the trace."""
    build, give = (PLAIN | WITH_TABLES)[name]
    with torch.device("meta"):
        module = build()
    found = Counted(
        module,
        give(BATCH),
        batch_size=BATCH,
        inputs_need_gradients=inputs_need_gradients,
        autocast=autocast,
    )
    return module, found


def dense_only(module: nn.Module) -> list[nn.Parameter]:
    """Parameters but those of tables."""
    paths = tuple(f"{path}." for path in lookups_of(module))
    return [p for name, p in module.named_parameters() if not (paths and name.startswith(paths))]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "BERT base" else [])
        for name in (*PLAIN, *WITH_TABLES)
    ],
)
def test_flop_and_parameters_are_exact(name: str) -> None:
    module, found = counted_trace(name)
    trace = found.trace
    assert trace.remarks == ()
    assert total(trace, "forward_flop") == found.forward_flop > 0
    assert total(trace, "backward_flop") == found.backward_flop > 0
    parameters = dense_only(module)
    assert total(trace, "num_parameters") == sum(p.numel() for p in parameters)
    assert total(trace, "parameter_bytes") == sum(p.numel() * p.element_size() for p in parameters)


def counted(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[float, float, float]:
    """FLOP forward and backward and saved bytes of a real step on the CPU.

    The fused attention of the CPU is not in PyTorch's registry, so the plain one runs.
    """
    own = {int(p.untyped_storage()._cdata) for p in module.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if int(storage._cdata) not in own:
            saved[int(storage._cdata)] = storage.nbytes()
        kept.append(tensor)
        return tensor

    kept: list[torch.Tensor] = []
    whole, forward = FlopCounterMode(display=False), FlopCounterMode(display=False)
    given = tuple(x.requires_grad_() if x.is_floating_point() else x for x in inputs)
    with whole:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), forward:
            output = module(*given)
        outputs = output if isinstance(output, list) else [output]
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
    first = float(forward.get_total_flops())
    return first, float(whole.get_total_flops()) - first, float(sum(saved.values()))


WITHOUT_ATTENTION = ("DeepFM", "DIN", "MMoE", "two-tower", "HSTU", "HSTU, causal", "MoE")


@pytest.mark.parametrize("name", [n for n in PLAIN if n not in LARGE])
def test_a_real_step_keeps_and_computes_what_the_trace_says(name: str) -> None:
    build, give = PLAIN[name]
    _, trace = traced(name)
    module = build()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    forward, backward, saved = counted(module, give(BATCH))
    if name in WITHOUT_ATTENTION:
        assert (total(trace, "forward_flop"), total(trace, "backward_flop")) == (forward, backward)
    assert total(trace, "saved_bytes") == pytest.approx(saved, rel=0.02)
    listed = sum(o.num_repeats * o.saved_bytes for o in trace.all_operators)
    assert listed == pytest.approx(saved, rel=0.02)


def test_gradients_of_inputs_are_left_out_where_nobody_needs_them() -> None:
    _, all_of_them = traced("MMoE")
    _, found = counted_trace("MMoE", inputs_need_gradients=False)
    fewer = found.trace
    assert fewer.remarks == ()
    assert (
        total(fewer, "backward_flop") == found.backward_flop < total(all_of_them, "backward_flop")
    )


@pytest.mark.parametrize("name", ["DLRM", "DCNv2"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_traced_dlrm_has_the_price_of_its_keys_and_layers(
    name: str, autocast: torch.dtype | None
) -> None:
    """Its dense features need no gradient. Under autocast, a gradient of one input is cast too."""
    module, trace = traced(name, inputs_need_gradients=False, autocast=autocast)
    described = describe_model(module, batch_size=BATCH)
    assert described is not None
    dtype = DataType.BF16 if autocast else DataType.FP32
    workload = replace(described.workload, dense=replace(described.workload.dense, dtype=dtype))
    assert workload.dense.top_mlp == (512, 256, 1)
    listed = replace(workload, dense=DenseArch(operators=trace.operators))
    for multiprocessors in (0, 108):
        topology = make_topology(device=make_device(num_multiprocessors=multiprocessors))
        by_keys, by_trace = (
            astuple(DenseRoofline().times(w, topology)) for w in (workload, listed)
        )
        assert by_trace == pytest.approx(by_keys, rel=2e-2 if autocast else 1e-12)
    assert dense_parameters(listed) == dense_parameters(workload)


def test_tables_split_what_runs_before_them() -> None:
    _, trace = traced("DLRM")
    assert {o.name.split(".")[0] for o in trace.operators.before_tables} == {"dense_arch"}
    assert any(o.name.startswith("over_arch") for o in trace.operators.after_tables)


def test_a_layer_lists_what_tracing_its_module_gives() -> None:
    """GPT-2 small: FLOP and parameters exact, saved bytes and price to a few per cent."""
    _, trace = traced("GPT-2 small")
    layer = TransformerLayer(
        layers=12,
        hidden=768,
        heads=12,
        ffn=3072,
        seq=1024,
        vocabulary=50257,
        causal=True,
        composed=False,
    )
    by_trace, by_layer = (
        Workload(name="w", tables=(), batch_size_per_rank=BATCH, dense=dense)
        for dense in (DenseArch(operators=trace.operators), DenseArch(layers=(layer,)))
    )
    listed = dense_operators(by_layer)[1]
    assert sum(o.num_repeats * o.forward_flop for o in listed) == total(trace, "forward_flop")
    assert sum(o.num_repeats * o.backward_flop for o in listed) == total(trace, "backward_flop")
    assert dense_parameters(by_layer) == total(trace, "num_parameters")
    assert activation_bytes(by_layer) == pytest.approx(total(trace, "saved_bytes"), rel=0.01)
    topology = make_topology(device=make_device(num_multiprocessors=108))
    ours, theirs = (astuple(DenseRoofline().times(w, topology)) for w in (by_layer, by_trace))
    assert ours == pytest.approx(theirs, rel=0.02)


def test_repeated_blocks_are_folded() -> None:
    _, trace = traced("GPT-2 small")
    assert len(trace.all_operators) < 25
    blocks = [o for o in trace.all_operators if o.num_repeats > 1]
    assert {o.num_repeats for o in blocks} == {12}
    assert {o.kind for o in blocks} >= {
        OperatorKind.MATMUL, OperatorKind.ATTENTION, OperatorKind.NORM,
    }  # fmt: skip


def test_folding_changes_no_sum() -> None:
    """Random lists with repeats of random blocks, some of them too short to fold."""
    rng = torch.Generator().manual_seed(3)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=rng))

    for _ in range(50):
        operators: list[Operator] = []
        for part in range(draw(1, 5)):
            block = [
                Operator(name=f"p{part}.*.{i}", kind=OperatorKind.OTHER, shape=(draw(1, 4),))
                for i in range(draw(1, 7))
            ]
            for repeat in range(draw(1, 6)):
                operators += [replace(o, name=o.name.replace("*", str(repeat))) for o in block]
        short = folded(operators)
        assert sum(o.num_repeats for o in short) == len(operators)
        assert sum(o.num_repeats * o.shape[0] for o in short) == sum(o.shape[0] for o in operators)


class Odd(nn.Module):
    """Runs an operator that no list knows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3)
        self.rest = nn.Parameter(torch.empty(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def test_unknown_operators_and_unused_parameters_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "CONVOLUTION", "none")
    trace = trace_dense(Odd(), torch.zeros(2, 4, 10), batch_size=2)
    words = "; ".join(trace.remarks)
    assert "aten.convolution is not known: it counts as the bytes it moves" in words
    assert "3.07e+03 FLOP of it are not counted" in words
    assert "5 trained elements take no part" in words
    assert total(trace, "num_parameters") == 8 * 4 * 3 + 8 + 5


class Curious(nn.Module):
    """Looks at values, which fake tensors do not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if bool((x > 0).all()) else x


def test_what_cannot_be_traced_is_refused_in_one_line() -> None:
    with pytest.raises(InvalidInputError, match="Curious cannot be traced on fake tensors") as got:
        trace_dense(Curious(), torch.zeros(3), batch_size=3)
    assert len(got.value.problems) == 1


def test_the_module_is_left_as_it_was() -> None:
    build, give = WITH_TABLES["DLRM"]
    module = build()
    before = {name: id(p) for name, p in module.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace_dense(module, give(2), batch_size=2)
    assert {name: id(p) for name, p in module.named_parameters()} == before
    assert not any("forward" in vars(m) for m in module.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_autocast_computes_products_in_its_type() -> None:
    build, give = PLAIN["SASRec"]
    with torch.device("meta"):
        module = build()
    trace = trace_dense(module, give(2), batch_size=2, autocast=torch.bfloat16)
    products = [o for o in trace.all_operators if o.product or o.kind is OperatorKind.ATTENTION]
    assert {o.dtype.value for o in products} == {"bf16"}
    norms = [o for o in trace.all_operators if o.kind is OperatorKind.NORM]
    assert {o.dtype.value for o in norms} == {"fp32"}
    assert total(trace, "parameter_bytes") == 4 * total(trace, "num_parameters")


def test_lists_of_traces_are_for_their_batch() -> None:
    _, trace = traced("DIN")
    assert trace.operators == OperatorList(
        batch_size_per_rank=BATCH, after_tables=trace.operators.after_tables
    )
