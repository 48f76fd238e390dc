"""Times single operators and chains of them: forward, backward, and a step of the optimizer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from costmodels.calibration.designs import Effort
from costmodels.calibration.fit_operators import CHAIN
from costmodels.calibration.points import OperatorPoint
from planner.integrations.dense.trace import trace_dense
from planner.integrations.measure.pace import Pace
from planner.integrations.measure.snippets import Snippet, chain, single, single_names

_WARM_UP = 2
_REPEATS = 5
_LEARNING_RATE = 1e-6
_IN_A_ROW = 8
"""This many operators in a row are taken as measured at one moment."""


def operator_groups(effort: Effort) -> list[list[str]]:
    """The names of the operators to measure, every kind in turn, and of chains of them.

    A pass that measures every n-th group has operators of all kinds, and chains.
    """
    names = single_names()
    listed = [names[i % len(names)] for i in range(effort.num_operators)]
    listed += [CHAIN] * effort.num_chains
    return [listed[i : i + _IN_A_ROW] for i in range(0, len(listed), _IN_A_ROW)]


def measure_operators(
    names: Sequence[str], rng: np.random.Generator, pace: Pace
) -> list[OperatorPoint]:
    """Measure operators or chains with random sizes; those without an operator are left out.

    Args:
        names: of :func:`operator_groups`.
        rng: draws the sizes.
        pace: the pace of this rank, read after each operator.
    """
    found = []
    for name in names:
        found.append(_measured(name, chain(rng) if name == CHAIN else single(name, rng)))
        pace.read()
    return [point for point in found if point.operators]


def _measured(name: str, snippet: Snippet) -> OperatorPoint:
    gradients = any(x.requires_grad for x in snippet.inputs)
    trace = trace_dense(
        snippet.module, snippet.inputs, batch_size=1, inputs_need_gradients=gradients
    )
    forward_s, backward_s, update_s = timed_passes(snippet.module, snippet.inputs)
    return OperatorPoint(
        name=name,
        operators=tuple(o for o in trace.all_operators if o.name != "loss"),
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=update_s,
    )


def timed_passes(
    module: nn.Module, inputs: Sequence[Any], *, repeats: int = _REPEATS
) -> tuple[float, float, float]:
    """Median seconds of a forward pass, a backward pass and an update, after some to warm up.

    Args:
        module: a module with or without parameters.
        inputs: the arguments of ``forward``.
        repeats: how many passes are measured.

    Returns:
        Processor seconds of this thread; the last is 0 without parameters.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=_LEARNING_RATE) if parameters else None
    times = []
    for _ in range(_WARM_UP + repeats):
        for tensor in (*inputs, *parameters):
            tensor.grad = None
        start = time.thread_time()
        output = module(*inputs)
        forward = time.thread_time()
        found = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
        given = [torch.ones_like(x) for x in found]
        begun = time.thread_time()
        torch.autograd.backward(found, given)
        done = time.thread_time()
        if optimizer is not None:
            optimizer.step()
        times.append((forward - start, done - begun, time.thread_time() - done))
        del output, found, given
    forward_s, backward_s, update_s = np.median(times[_WARM_UP:], axis=0).tolist()
    return forward_s, backward_s, update_s if parameters else 0.0
