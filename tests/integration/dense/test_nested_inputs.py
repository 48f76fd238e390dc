"""What is given to a module in containers or on the meta device, and modules that wait."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn

from planner.errors import InvalidInputError
from planner.integrations.dense.trace import DenseTrace, trace_dense
from tests.integration.dense.counting import total
from tests.integration.dense.dense_modules import dlrm, indices

pytestmark = pytest.mark.torchrec

BATCH = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """Two values, whatever they are."""

    x: Any
    y: Any


class Named(NamedTuple):
    """Two tensors with names."""

    x: torch.Tensor
    y: torch.Tensor


class Adding(nn.Module):
    """Takes its two tensors out of what it is given."""

    def __init__(self, take: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.first, self.second, self.take = nn.Linear(8, 8), nn.Linear(8, 4), take

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        x, y = self.take(*args, **kwargs)
        return self.second(self.first(x) + y)


def some() -> torch.Tensor:
    return torch.zeros(BATCH, 8)


def unmade() -> torch.Tensor:
    return torch.zeros(BATCH, 8, device="meta")


GIVEN: dict[str, tuple[Any, Callable[..., Any]]] = {
    "a tuple": ((some(), some()), lambda x, y: (x, y)),
    "names": ({"x": some(), "y": some()}, lambda x, y: (x, y)),
    "a dataclass": (Pair(some(), some()), lambda b: (b.x, b.y)),
    "a named tuple": (Named(some(), some()), lambda b: (b.x, b.y)),
    "a named tuple in a tuple": ((Named(some(), some()),), lambda b: (b.x, b.y)),
    "an ordered dict": ((OrderedDict(x=some(), y=some()),), lambda b: (b["x"], b["y"])),
    "a mapping of another kind": ((UserDict(x=some(), y=some()),), lambda b: (b["x"], b["y"])),
    "nested": (
        ({"k": (Pair(some(), {"deep": [some()]}),)},),
        lambda b: (b["k"][0].x, b["k"][0].y["deep"][0]),
    ),
    "on the meta device": ((unmade(), Pair(unmade(), None)), lambda x, b: (x, b.x)),
}


def traced(module: nn.Module, inputs: Any) -> DenseTrace:
    return trace_dense(module, inputs, batch_size=BATCH)


@pytest.mark.parametrize("name", GIVEN)
def test_tensors_in_containers_count_as_those_that_are_given_alone(name: str) -> None:
    inputs, take = GIVEN[name]
    with torch.device("meta"):
        module = Adding(take)
    trace = traced(module, inputs)
    assert trace.remarks == ()
    assert total(trace, "forward_flop") == 2 * BATCH * (8 * 8 + 8 * 4)
    assert total(trace, "backward_flop") == 2 * total(
        trace, "forward_flop"
    )  # inputs need gradients too


def test_what_was_given_stays_as_it_was() -> None:
    given = Pair(some(), {"deep": [some()]})
    before = given.x, given.y["deep"][0]
    traced(Adding(lambda b: (b.x, b.y["deep"][0])), given)
    assert (given.x is before[0], given.y["deep"][0] is before[1]) == (True, True)
    assert not given.x.requires_grad


def test_jagged_inputs_in_a_dataclass_are_synchronized() -> None:
    given = Pair(indices(4), [indices(4)])
    traced(Adding(lambda _: (some(), some())), given)
    assert all(f._length_per_key is not None for f in (given.x, *given.y))


class Scaled(nn.Module):
    """Keeps tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale, self.more = nn.Linear(8, 8), torch.ones(8), [torch.ones(8)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale * self.more[0]


def test_tensors_that_are_no_parameters_are_on_the_meta_device_too() -> None:
    with torch.device("meta"):
        module = Scaled()
    before = module.scale, module.more
    assert traced(module, some()) == traced(Scaled(), some())
    assert (module.scale is before[0], module.more is before[1]) == (True, True)


def test_lazy_layers_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(4), nn.LazyBatchNorm1d())
    with pytest.raises(InvalidInputError, match=r"1 \(LazyLinear\), 2 \(LazyBatchNorm1d\)") as got:
        traced(module, some())
    assert len(got.value.problems) == 1
    module(some())
    assert total(traced(module, some()), "num_parameters") == 8 * 8 + 8 + 8 * 4 + 4 + 8


def test_products_of_two_types_are_refused() -> None:
    """Fake tensors let them pass, and a device does not."""
    module = nn.Sequential(nn.Linear(8, 8)).bfloat16()
    with pytest.raises(RuntimeError):
        module(some())
    with pytest.raises(InvalidInputError, match="0: PyTorch multiplies no float32 by bfloat16"):
        traced(module, some())
    trace = traced(module, some().bfloat16())
    assert {o.dtype.value for o in trace.all_operators} == {"bf16"}


def test_a_model_in_two_bytes_gets_vectors_of_its_type_from_its_tables() -> None:
    module = dlrm().bfloat16()
    trace = trace_dense(
        module,
        (torch.zeros(4, 13, dtype=torch.bfloat16), indices(4)),
        batch_size=4,
    )
    products = [o for o in trace.all_operators if o.product]
    assert products
    assert {o.dtype.value for o in products} == {"bf16"}
