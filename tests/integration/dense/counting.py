"""Counts the FLOP of a traced module as PyTorch does, beside the operators that the trace lists."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.flop_counter import (
    FlopCounterMode,
    conv_flop_count,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from planner.integrations.dense.trace import DenseTrace, trace_dense


def total(trace: DenseTrace, name: str) -> float:
    """The sum of a figure over all operators of a trace."""
    return float(sum(o.num_repeats * getattr(o, name) for o in trace.all_operators))


class Counted:
    """A trace, and the FLOP that PyTorch counts forward and backward while it is made."""

    def __init__(self, module: nn.Module, inputs: Any, **arguments: Any) -> None:
        forward, backward = (
            FlopCounterMode(display=False, custom_mapping=own_counters()) for _ in range(2)
        )
        run = torch.autograd.backward

        def counted(*given: Any) -> None:
            """Older checkpoints run a backward pass inside this one."""
            with backward, mock.patch.object(torch.autograd, "backward", run):
                run(*given)

        hooks = [
            module.register_forward_pre_hook(lambda *_: forward.__enter__() and None),
            module.register_forward_hook(lambda *_: forward.__exit__(None, None, None)),
        ]
        with mock.patch.object(torch.autograd, "backward", counted):
            self.trace: DenseTrace = trace_dense(module, inputs, **arguments)
        for hook in hooks:
            hook.remove()
        self.forward_flop = float(forward.get_total_flops())
        self.backward_flop = float(backward.get_total_flops())


def own_counters() -> dict[Any, Any]:
    """Functions to count the FLOP of operators that PyTorch's registry leaves out or miscounts.

    It leaves out the fused attention of the CPU. For filters in groups, it counts the gradient as
    if each group had the channels of all groups.
    """
    aten = torch.ops.aten

    def forward(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
        del rest, named
        return int(sdpa_flop_count(query, key, value))

    def backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
        del rest, named
        return int(sdpa_backward_flop_count(gradient, query, key, value))

    def filters(gradient: Any, given: Any, weight: Any, *rest: Any, **named: Any) -> int:
        del named
        is_transposed, needed = rest[4], rest[7]
        each = conv_flop_count(given, weight, gradient, transposed=is_transposed)
        return int(each) * sum(needed[:2])

    return {
        aten.convolution_backward: filters,
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
