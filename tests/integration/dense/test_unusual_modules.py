"""Modules with convolutions, recurrent layers, checkpoints, frozen parts, own functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from costmodels.dense.roofline import DenseRoofline
from costmodels.operators import OperatorKind
from costmodels.workload import DenseArch, OperatorList, Workload
from planner.integrations.dense.trace import DenseTrace
from tests.integration.dense.counting import Counted, total
from tests.integration.dense.dense_modules import Block
from tests.integration.dense.test_dense_trace import counted
from tests.strategies import make_topology

pytestmark = pytest.mark.torchrec

BATCH = 16


class Crossing(nn.Module):
    """Compressed interactions of xDeepFM (Lian et al. 2018): convolutions of width 1."""

    def __init__(self, fields: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        wide = (fields, *sizes)
        self.layers = nn.ModuleList(
            nn.Conv1d(fields * given, made, 1) for given, made in zip(wide, sizes, strict=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        met, seen = x, []
        for layer in self.layers:
            pairs = torch.einsum("bhd,bmd->bhmd", met, x).flatten(1, 2)
            met = functional.relu(layer(pairs))
            seen.append(met.sum(-1))
        return torch.cat(seen, dim=1)


class Convolutions(nn.Module):
    """One of each number of axes, and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.back = (
            nn.Conv1d(8, 16, 3, padding=1),
            nn.ConvTranspose1d(16, 4, 4, stride=2),
        )
        self.plane = nn.Conv2d(1, 3, (4, 5), stride=(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.back(functional.relu(self.line(x)))
        return functional.max_pool2d(self.plane(wide.unsqueeze(1)), (1, 2))


class Checkpointed(nn.Module):
    """Blocks of which every ``every``-th keeps only what comes in."""

    def __init__(self, *, is_reentrant: bool, every: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Feed() for _ in range(4))
        self.is_reentrant, self.every = is_reentrant, every

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            if i % self.every == self.every - 1:
                x = checkpoint(block, x, use_reentrant=self.is_reentrant)
            else:
                x = block(x)
        return x


class Feed(nn.Module):
    """A feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(functional.gelu(self.inner(self.norm(x))))


class Frozen(nn.Module):
    """An encoder that is not trained in front of a head that is."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(16, 64), nn.GELU()), nn.Linear(64, 4)
        self.encoder.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.encoder(x)
        return self.head(x)


class Doubled(torch.autograd.Function):
    """A product with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.t(), x.t() @ gradients[0]


class OwnFunction(nn.Module):
    """Calls a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x, self.weight)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "crossing": (lambda: Crossing(6, (8, 4)), (6, 16)),
    "convolutions": (Convolutions, (8, 20)),
    "GRU": (lambda: nn.GRU(8, 16, 2, batch_first=True), (10, 8)),
    "checkpoints": (lambda: Checkpointed(is_reentrant=False, every=1), (5, 32)),
    "some checkpoints": (lambda: Checkpointed(is_reentrant=False, every=3), (5, 32)),
    "old checkpoints": (lambda: Checkpointed(is_reentrant=True, every=1), (5, 32)),
    "some old checkpoints": (lambda: Checkpointed(is_reentrant=True, every=3), (5, 32)),
    "frozen": (Frozen, (16,)),
    "own function": (OwnFunction, (16,)),
}


def traced(build: Callable[[], nn.Module], *shape: int) -> DenseTrace:
    """The trace of a module on the meta device."""
    return counted_trace(build, *shape).trace


def counted_trace(build: Callable[[], nn.Module], *shape: int) -> Counted:
    """The same with PyTorch's count of the trace."""
    with torch.device("meta"):
        module = build()
    return Counted(module, (torch.zeros(BATCH, *shape),), batch_size=BATCH)


@pytest.mark.parametrize("name", MODULES)
def test_a_real_step_computes_and_keeps_what_the_trace_says(name: str) -> None:
    build, shape = MODULES[name]
    trace = traced(build, *shape)
    forward, backward, saved = counted(Flat(build()), (torch.zeros(BATCH, *shape),))
    assert (total(trace, "forward_flop"), total(trace, "backward_flop")) == (forward, backward)
    listed = sum(o.num_repeats * o.saved_bytes for o in trace.all_operators)
    assert listed == pytest.approx(saved, rel=0.02)
    assert trace.remarks == ()


class Flat(nn.Module):
    """Gives all results as a list."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        made = self.module(x)
        return list(made) if isinstance(made, tuple) else [made]


def test_a_checkpoint_computes_its_block_again_and_keeps_what_comes_in() -> None:
    plain, again = (
        traced(lambda every=every: Checkpointed(is_reentrant=False, every=every), 5, 32)
        for every in (9, 1)
    )
    assert total(again, "forward_flop") == total(plain, "forward_flop")
    assert (
        total(plain, "backward_flop")
        < total(again, "backward_flop")
        < 1.5 * total(plain, "backward_flop")
    )
    assert total(again, "saved_bytes") < 0.3 * total(plain, "saved_bytes")
    products = [o for o in again.all_operators if o.product]
    assert {o.is_recomputed for o in products if o.shape[3] == 64} == {True}
    assert not any(o.is_recomputed for o in plain.all_operators)


def test_what_runs_without_gradients_has_no_backward_pass() -> None:
    trace = traced(Frozen, 16)
    active = next(o for o in trace.all_operators if o.function == "gelu")
    assert active.backward_bytes == 0.0
    assert total(trace, "num_parameters") == 64 * 4 + 4


def test_a_frozen_attention_has_no_backward_pass() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = Block(32, 2, 64, causal=True), nn.Linear(32, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = self.block(x)
            return self.head(x)

    found = counted_trace(Reader, 12, 32)
    trace = found.trace
    (attention,) = (o for o in trace.all_operators if o.kind is OperatorKind.ATTENTION)
    assert attention.gradient_flop == 0 < attention.forward_flop
    assert total(trace, "backward_flop") == found.backward_flop
    model = DenseRoofline()
    arch = DenseArch(operators=OperatorList(batch_size_per_rank=BATCH, after_tables=(attention,)))
    workload = Workload(name="w", tables=(), batch_size_per_rank=BATCH, dense=arch)
    times = model.times(workload, make_topology())
    assert times.top_backward_s < times.top_forward_s


def test_an_lstm_is_made_of_products() -> None:
    trace = traced(lambda: nn.LSTM(8, 16, 1, batch_first=True), 10, 8)
    assert trace.remarks == ()
    assert total(trace, "forward_flop") == 2 * BATCH * 10 * (8 + 16) * 4 * 16


def test_results_in_a_dataclass_have_gradients() -> None:
    @dataclass
    class Result:
        score: torch.Tensor

    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Result:
            return Result(self.linear(x))

    trace = traced(Told, 8)
    assert trace.remarks == ()
    assert total(trace, "backward_flop") == 2 * total(trace, "forward_flop") > 0


def test_blocks_with_fused_attention_are_checkpointed_too() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block(32, 2, 64, causal=True) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    counted_deep = counted_trace(Deep, 12, 32)
    trace = counted_deep.trace
    assert total(trace, "backward_flop") == counted_deep.backward_flop
    found = [o for o in trace.all_operators if o.kind is OperatorKind.ATTENTION]
    assert all(o.is_recomputed for o in found)
    assert sum(o.num_repeats for o in found) == 6


def test_oneDNN_is_as_it_was() -> None:  # noqa: N802 - its name
    before = torch.backends.mkldnn.enabled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced(Frozen, 16)
    assert torch.backends.mkldnn.enabled == before
