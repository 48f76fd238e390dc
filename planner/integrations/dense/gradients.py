"""Finds which operators have a backward pass, and which ones a backward pass computes again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch.autograd.graph import _engine_run_backward
from torch.utils import checkpoint

_ENGINE: Final = _engine_run_backward.__code__


def is_differentiable(made: Iterable[torch.Tensor]) -> bool:
    """Whether results can have a gradient; whole numbers have none."""
    return any(x.is_floating_point() or x.is_complex() for x in made)


def is_in_own_function() -> bool:
    """Whether the forward pass of a ``torch.autograd.Function`` runs now.

    It runs without gradients, but has a backward pass of its own.
    """
    if torch.is_grad_enabled():
        return False
    own = {code for kind in _below(torch.autograd.Function) if (code := _code(kind)) is not None}
    return any(frame.f_code in own for frame in _frames())


def newest_node() -> int:
    """The number of the newest node of autograd's graph.

    This is the node of the operator that runs now, or of the ``torch.autograd.Function`` around it.
    """
    return int(torch.autograd._get_sequence_nr()) - 1


def reached_nodes(outputs: Iterable[torch.Tensor]) -> frozenset[int]:
    """The numbers of the nodes through which the gradients of ``outputs`` pass."""
    waiting: list[Any] = [x.grad_fn for x in outputs if x.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return frozenset(int(node._sequence_nr()) for node in seen)


def is_computed_again() -> bool:
    """Whether an operator that runs now, in a backward pass, belongs to the forward pass.

    Gradients themselves are computed with gradients switched off. What a checkpoint computes again
    runs with gradients switched on or, in parts that are not trained, is called by a function of
    PyTorch's checkpoints.
    """
    if torch.is_grad_enabled():
        return True
    for frame in _frames():
        if frame.f_code is _ENGINE:
            return False
        if frame.f_code.co_filename == checkpoint.__file__:
            return True
    return False


def _frames() -> Iterator[FrameType]:
    """The frames of the callers, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _below(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _below(child)


def _code(kind: type) -> CodeType | None:
    return getattr(getattr(kind, "forward", None), "__code__", None)
