"""Each kind of layer lists what tracing a module of its paper gives."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import FlopCounterMode

import costmodels.layers as kinds
from costmodels import discovery
from costmodels.dense.base import dense_operators
from costmodels.dense.roofline import DenseRoofline
from costmodels.operators import Operator, OperatorKind
from costmodels.workload import DataType, DenseArch, OperatorList, Workload
from planner.io.documents import Document
from planner.io.workload.workload_schema import layers_of
from tests.integration.dense.dense_modules import BATCH, Block
from tests.integration.dense.test_dense_trace import traced
from tests.strategies import make_device, make_table, make_topology

pytestmark = pytest.mark.torchrec

LAYERS: dict[str, tuple[list[dict[str, Any]], int, int]] = {
    "DeepFM": ([{"kind": "deepfm", "sizes": [64, 32]}], 0, 6),
    "MMoE": (
        [{"kind": "mmoe", "experts": 4, "tasks": 2, "expert_sizes": [64, 32],
          "tower_sizes": [16, 1]}], 64, 0,
    ),
    "MoE": ([{"kind": "moe", "experts": 4, "top": 2, "ffn": 64}], 32, 0),
    "two-tower": ([{"kind": "two_tower", "sizes": [128, 32]}], 128, 0),
    "HSTU": ([{"kind": "hstu", "layers": 3, "hidden": 64, "heads": 4, "seq": 50}], 3200, 0),
    "HSTU, causal": (
        [{"kind": "hstu", "layers": 2, "hidden": 96, "heads": 4, "seq": 60, "input_width": 24,
          "qk_width": 16, "value_width": 40, "causal": True}], 1440, 0,
    ),
    "DIN": (
        [{"kind": "attention_pooling", "seq": 50, "width": 32, "sizes": [80, 40]},
         {"kind": "mlp", "sizes": [32, 1]}], 1632, 0,
    ),
    "BERT4Rec": (
        [{"kind": "transformer", "layers": 2, "hidden": 64, "heads": 2, "ffn": 256, "seq": 50,
          "vocabulary": 1000}], 0, 0,
    ),
    "SASRec": (
        [{"kind": "transformer", "layers": 2, "hidden": 48, "heads": 1, "ffn": 48, "seq": 50,
          "vocabulary": 700, "causal": True, "composed": False}], 0, 0,
    ),
}  # fmt: skip
"""Entries of a file, dense features, and looked-up vectors of 16 elements."""
OF_FEATURES = ("MMoE", "MoE", "two-tower")
"""Models whose first products read dense features, which need no gradient."""


def listed(name: str) -> tuple[Operator, ...]:
    """Operators of the layers, without the copy of the vectors, which the module does not make."""
    entries, width, vectors = LAYERS[name]
    problems: list[str] = []
    layers = layers_of(entries, Document(None, {}, {}), problems)  # type: ignore[arg-type]
    assert not problems
    workload = Workload(
        name="w",
        tables=tuple(make_table(f"t{i}", embedding_dim=16) for i in range(vectors)),
        batch_size_per_rank=BATCH,
        dense=DenseArch(num_dense_features=width, layers=layers),
    )
    before, after = dense_operators(workload)
    assert not before
    return tuple(o for o in after if o.name != "concat")


def total(operators: tuple[Operator, ...], figure: str) -> float:
    """The sum of a figure over all operators and repeats."""
    return float(sum(o.num_repeats * getattr(o, figure) for o in operators))


@pytest.mark.parametrize("name", LAYERS)
def test_flop_and_parameters_are_exact_and_the_rest_is_near(name: str) -> None:
    """The largest differences measured: 4 % of the price, 1 % of what is kept."""
    _, trace = traced(name, inputs_need_gradients=name not in OF_FEATURES)
    ours = listed(name)
    assert total(ours, "forward_flop") == total(trace.all_operators, "forward_flop")
    assert total(ours, "backward_flop") == total(trace.all_operators, "backward_flop")
    assert total(ours, "num_parameters") == total(trace.all_operators, "num_parameters")
    assert total(ours, "parameter_bytes") == total(trace.all_operators, "parameter_bytes")
    assert total(ours, "saved_bytes") == pytest.approx(
        total(trace.all_operators, "saved_bytes"), rel=0.1
    )
    topology = make_topology(device=make_device(num_multiprocessors=108))
    prices = []
    for operators in (ours, trace.operators.after_tables):
        arch = DenseArch(operators=OperatorList(batch_size_per_rank=BATCH, after_tables=operators))
        workload = Workload(name="w", tables=(), batch_size_per_rank=BATCH, dense=arch)
        times = DenseRoofline().times(workload, topology)
        prices.append(times.top_forward_s + times.top_backward_s)
    assert prices[0] == pytest.approx(prices[1], rel=0.1)


@pytest.mark.parametrize("checkpoint", ["none", "full", "reentrant"])
def test_a_checkpoint_computes_again_what_pytorch_does(checkpoint: str) -> None:
    """PyTorch's checkpoint stops early, before the last product, unless it is the old one.

    The counter knows no kernel of fused attention on a CPU, so that only products are compared.
    """
    block = Block(64, 4, 128, causal=True)
    x = torch.randn(BATCH, 16, 64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        if checkpoint == "none":
            block(x).sum().backward()
        else:
            torch_checkpoint(block, x, use_reentrant=checkpoint == "reentrant").sum().backward()
    layer = kinds.transformer.Transformer(
        layers=1, hidden=64, heads=4, ffn=128, seq=16, causal=True, checkpoint=checkpoint
    )
    dense = DenseArch(num_dense_features=16 * 64, layers=(layer,))
    workload = Workload(name="w", tables=(), batch_size_per_rank=BATCH, dense=dense)
    ours = tuple(o for o in dense_operators(workload)[1] if o.product is not None)
    asked = total(ours, "forward_flop") + total(ours, "backward_flop")
    assert asked == counter.get_total_flops()


def test_every_kind_is_tried_here_or_with_the_dlrm() -> None:
    with_tables = {"dot", "dcn", "dlrm"}
    tried = {entry["kind"] for entries, _, _ in LAYERS.values() for entry in entries}
    assert tried | with_tables == set(discovery.names(kinds))


def _is_loss(operator: Operator) -> bool:
    """A loss, which is computed in fp32 in every type."""
    return operator.name.endswith("head") and operator.kind is OperatorKind.SOFTMAX


@pytest.mark.parametrize("name", LAYERS)
def test_half_the_element_size_moves_half_the_bytes(name: str) -> None:
    """But for what joins looked-up vectors: TorchRec's lookups give fp32 in every type."""
    entries, width, vectors = LAYERS[name]
    problems: list[str] = []
    layers = layers_of(entries, Document(None, {}, {}), problems)  # type: ignore[arg-type]
    moved = []
    for dtype in (DataType.FP32, DataType.BF16):
        workload = Workload(
            name="w",
            tables=tuple(make_table(f"t{i}", embedding_dim=16) for i in range(vectors)),
            batch_size_per_rank=BATCH,
            dense=DenseArch(num_dense_features=width, layers=layers, dtype=dtype),
        )
        operators = tuple(
            o for o in dense_operators(workload)[1] if not _is_loss(o) and o.name != "concat"
        )
        assert {o.dtype for o in operators} == {dtype}
        moved.append(total(operators, "moved_bytes"))
    assert moved[1] == pytest.approx(moved[0] / 2, rel=0.03)
