"""Modules of which only parts have a backward pass, and checkpoints in and around such parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from planner.integrations.dense.trace import trace_dense
from tests.integration.dense.counting import total
from tests.integration.dense.test_dense_trace import counted
from tests.integration.dense.test_unusual_modules import BATCH, Feed, counted_trace, traced

pytestmark = pytest.mark.torchrec


class Around(nn.Module):
    """A product, then what a test wants, then a product."""

    def __init__(self, run: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(32, 32), Feed(), nn.Linear(32, 1)
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.run(self.inner, self.first(x)))


class OfSteps(torch.autograd.Function):
    """An own function of several operators."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        flat = x.transpose(0, 1).contiguous()
        ctx.save_for_backward(flat, weight)
        return (flat.flatten(0, 1) @ weight).unflatten(0, flat.shape[:2]).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat, weight = ctx.saved_tensors
        given = gradients[0].transpose(0, 1).contiguous().flatten(0, 1)
        return (given @ weight.t()).view_as(flat).transpose(0, 1), flat.flatten(0, 1).t() @ given


def without(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The inner part has no gradient."""
    with torch.no_grad():
        return inner(x)


def inferred(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The inner part runs in inference mode."""
    with torch.inference_mode():
        y = inner(x.detach())
    return x + y.clone()


def checkpointed(inner: nn.Module, x: torch.Tensor, *, is_reentrant: bool) -> torch.Tensor:
    """The inner part is computed again."""
    made = checkpoint(inner, x, use_reentrant=is_reentrant)
    assert isinstance(made, torch.Tensor)
    return made


def without_then_with(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What is computed again has a part without gradients."""
    return without(inner, x) * x.sin()


def by_weights(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Products that no module runs."""
    assert isinstance(inner, Feed)
    wide = functional.gelu(functional.linear(x, inner.inner.weight, inner.inner.bias))
    return inner.outer(functional.gelu(wide))


def own(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """An own function."""
    assert isinstance(inner, Feed)
    return inner.outer(OfSteps.apply(x, inner.inner.weight.t()))


RUNS: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "cut off behind": lambda inner, x: x + inner(x).detach(),
    "cut off in front": lambda inner, x: inner(x.detach()),
    "not read": lambda inner, x: (inner(x), x)[1],
    "inference mode": inferred,
    "checkpoint without gradients": lambda inner, x: (
        x + without(lambda y: checkpointed(inner, y, is_reentrant=False), x)
    ),
    "old checkpoint without gradients": lambda inner, x: (
        x + without(lambda y: checkpointed(inner, y, is_reentrant=True), x)
    ),
    "without gradients in a checkpoint": lambda inner, x: checkpointed(
        lambda y: without_then_with(inner, y), x, is_reentrant=False
    ),
    "cut off in a checkpoint": lambda inner, x: checkpointed(
        lambda y: y.sin() + inner(y).detach(), x, is_reentrant=False
    ),
    "weights in a checkpoint": lambda inner, x: checkpointed(
        lambda y: by_weights(inner, y), x, is_reentrant=False
    ),
    "own function": own,
    "own function in a checkpoint": lambda inner, x: checkpointed(
        lambda y: own(inner, y.cos()), x, is_reentrant=False
    ),
    "own function in an old checkpoint": lambda inner, x: checkpointed(
        lambda y: own(inner, y.cos()), x, is_reentrant=True
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_real_step_computes_what_the_trace_says(name: str) -> None:
    trace = traced(lambda: Around(RUNS[name]), 5, 32)
    forward, backward, saved = counted(Around(RUNS[name]), (torch.zeros(BATCH, 5, 32),))
    assert (total(trace, "forward_flop"), total(trace, "backward_flop")) == (forward, backward)
    listed = sum(o.num_repeats * o.saved_bytes for o in trace.all_operators)
    assert listed == pytest.approx(saved, rel=0.02)
    assert [r for r in trace.remarks if "take no part" not in r] == []


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_an_equal_layer_outside_of_a_checkpoint_keeps_its_own_gradients(
    is_reentrant: bool,
) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front, self.inside, self.last = Feed(), Feed(), nn.Linear(32, 1)
            self.front.requires_grad_(requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpointed(self.inside, self.front(x), is_reentrant=is_reentrant))

    trace = traced(Half, 5, 32)
    _, backward, _ = counted(Half(), (torch.zeros(BATCH, 5, 32),))
    assert total(trace, "backward_flop") == backward
    again = {o.name for o in trace.all_operators if o.is_recomputed}
    assert again <= {"inside", "inside.norm", "inside.inner", "inside.outer"}
    assert "inside.inner" in again


def test_a_frozen_part_that_reads_what_needs_no_gradient_has_no_backward_pass() -> None:
    class Encoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = Feed(), nn.Linear(32, 1)
            self.encoder.requires_grad_(requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(x))

    inputs = (torch.zeros(BATCH, 5, 32),)
    trace = trace_dense(Encoded(), inputs, batch_size=BATCH, inputs_need_gradients=False)
    inside = [o for o in trace.all_operators if o.name.startswith("encoder")]
    assert inside
    assert not any(o.has_gradient for o in inside)


def test_a_checkpoint_inside_another_is_told() -> None:
    def twice(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpointed(
            lambda y: checkpointed(inner, y, is_reentrant=False).sin(), x, is_reentrant=False
        )

    found = counted_trace(lambda: Around(twice), 5, 32)
    trace = found.trace
    assert any("checkpoint inside another" in remark for remark in trace.remarks)
    assert total(trace, "backward_flop") < found.backward_flop


def test_a_module_without_a_result_that_has_a_gradient_is_told() -> None:
    trace = traced(lambda: Around(lambda inner, x: inner(x).detach()), 5, 32)
    assert total(trace, "backward_flop") > 0
    chosen = traced(lambda: nn.Sequential(nn.Linear(32, 8), Largest()), 32)
    assert total(chosen, "backward_flop") == 0
    assert chosen.remarks == ("no result of the module has a gradient: no backward pass is listed",)


class Largest(nn.Module):
    """Which element is the largest."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax(-1)


@pytest.mark.parametrize("groups", [2, 8])
def test_filters_in_groups_have_gradients_of_their_own_channels(groups: int) -> None:
    trace = traced(lambda: nn.Conv1d(8, 16, 3, groups=groups), 8, 20)
    assert trace.remarks == ()
    assert total(trace, "forward_flop") == 2 * BATCH * 18 * 16 * 3 * 8 / groups
    assert total(trace, "backward_flop") == 2 * total(trace, "forward_flop")
