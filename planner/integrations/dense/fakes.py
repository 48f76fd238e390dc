"""Replaces the tensors of a module and of its inputs by fake tensors on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from planner.errors import InvalidInputError
from planner.integrations.dense.nested import mapped

_OWN = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a module that ``torch.func.functional_call`` replaces."""


def refuse_lazy(module: nn.Module) -> None:
    """Refuse lazy layers, whose sizes are known only after they have run.

    Raises:
        InvalidInputError: there is such a layer.
    """
    found = [
        f"{path or 'the model itself'} ({type(child).__name__})"
        for path, child in module.named_modules()
        if any(map(is_lazy, (*child._parameters.values(), *child._buffers.values())))
    ]
    if found:
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        message = (
            f"{type(module).__name__} has lazy layers that have not run, so that their sizes are "
            f"not known: {', '.join(found[:5])}{more}; give their sizes, such as nn.Linear(in, "
            "out), or run the model once before you return it"
        )
        raise InvalidInputError(message)


def module_tensors(
    module: nn.Module, fake: FakeTensorMode, without: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """Parameters and buffers as fake tensors, without those of tables."""
    prefixes = tuple(f"{path}." for path in without)
    made: dict[str, torch.Tensor] = {}
    with fake:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name.startswith(prefixes) and prefixes:
                continue
            like = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
            is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            made[name] = like.requires_grad_() if is_trained else like
    return made


@contextlib.contextmanager
def attributes(module: nn.Module, fake: FakeTensorMode) -> Iterator[None]:
    """A context in which tensors that modules keep as plain attributes are fake tensors.

    A model that is built on the meta device has such tensors there, but its inputs are on the CPU.
    """
    changed: list[tuple[nn.Module, str, Any]] = []
    try:
        for owner in module.modules():
            for name, value in list(vars(owner).items()):
                if name not in _OWN and _holds_tensor(value):
                    changed.append((owner, name, value))
                    vars(owner)[name] = mapped(value, lambda item: _faked(item, fake))
        yield
    finally:
        for owner, name, value in changed:
            vars(owner)[name] = value


def arguments(
    inputs: Any, fake: FakeTensorMode, *, needs_gradients: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``forward`` with fake tensors: a tuple, a mapping, or a single argument."""

    def faked(value: Any) -> Any:
        made = _faked(value, fake)
        if made is value:
            return value
        return made.requires_grad_(needs_gradients and made.is_floating_point())

    if isinstance(inputs, Mapping):
        return (), {str(key): mapped(value, faked) for key, value in inputs.items()}
    given = inputs if type(inputs) is tuple else (inputs,)
    return tuple(mapped(value, faked) for value in given), {}


def _faked(value: Any, fake: FakeTensorMode) -> Any:
    """A tensor as a fake tensor on the CPU; parameters and other values as they are."""
    if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
        return value
    if value.is_meta:
        with fake:
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device="cpu"
            )
    return fake.from_tensor(value.detach().to("cpu"))


def _holds_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or a container with one inside.

    Parameters in a list, as in recurrent layers, do not count: they are replaced with all others.
    """
    if isinstance(value, torch.Tensor):
        return not isinstance(value, nn.Parameter)
    if not isinstance(value, list | tuple | dict) or not value:
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds_tensor(item) for item in items)
