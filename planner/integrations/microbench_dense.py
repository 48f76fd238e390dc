"""Times the dense part of a model, and gradients that all ranks reduce."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from costmodels.calibration.points import DensePoint, GradientPoint
from planner.integrations.microbench_clock import DeviceClock, other_work, quiet_seconds
from planner.integrations.torchrec_model import mlp
from planner.integrations.virtual_clock import collective_log

_WARM_UP = 2


class Dense(nn.Module):
    """Bottom MLP, concatenation with pooled vectors, top MLP, logistic loss."""

    def __init__(self, case: DensePoint) -> None:
        """Random weights."""
        super().__init__()
        self.bottom = mlp((case.num_dense_features, *case.bottom_mlp), last_relu=True)
        joined = case.bottom_mlp[-1] + sum(case.embedding_dims)
        self.top = mlp((joined, *case.top_mlp), last_relu=False)
        self.loss = nn.BCEWithLogitsLoss()

    def forward(
        self, dense: torch.Tensor, pooled: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """The loss of a batch."""
        joined = torch.cat([self.bottom(dense), pooled], dim=1)
        loss: torch.Tensor = self.loss(self.top(joined).squeeze(-1), labels)
        return loss


def measure_dense(
    cases: Sequence[DensePoint], *, repeats: int, device: torch.device
) -> list[DensePoint]:
    """Medians over ``repeats`` rounds in which all cases take turns."""
    clock = DeviceClock(device)
    models = [Dense(case).to(device) for case in cases]
    between = [other_work(4.0 * c.local_batch_size * sum(c.embedding_dims), device) for c in cases]
    times = np.zeros((len(cases), repeats + _WARM_UP, 2))
    for i in range(repeats + _WARM_UP):
        for k, (case, model) in enumerate(zip(cases, models, strict=True)):
            size = case.local_batch_size
            dense = torch.rand(size, case.num_dense_features, device=device)
            pooled = torch.rand(size, sum(case.embedding_dims), device=device, requires_grad=True)
            labels = torch.ones(size, device=device)
            between[k] += 1.0
            start = clock.now()
            loss = model(dense, pooled, labels)
            middle = clock.now()
            loss.backward()
            times[k, i] = middle - start, clock.now() - middle
            model.zero_grad()
    quiet = np.median(times[:, _WARM_UP:], axis=1)
    return [
        replace(case, forward_s=float(m[0]), backward_s=float(m[1]))
        for case, m in zip(cases, quiet, strict=True)
    ]


class _Constant(torch.autograd.Function):
    """Gives every parameter a gradient of ones; making that tensor is off the clock."""

    making_s = 0.0

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(parameter)
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        start = time.thread_time()
        (parameter,) = ctx.saved_tensors
        gradient = torch.ones_like(parameter)
        _Constant.making_s += time.thread_time() - start
        return gradient


class _Replicated(nn.Module):
    def __init__(self, num_elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_elements))

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = _Constant.apply(self.weight)
        return loss


def measure_gradients(cases: Sequence[GradientPoint], *, repeats: int) -> list[GradientPoint]:
    """Zeroing, backward with all-reduce, and the optimizer step of one replicated tensor."""
    log = collective_log()
    models: list[Any] = [
        DistributedDataParallel(
            _Replicated(int(c.num_bytes) // 4), gradient_as_bucket_view=True, static_graph=True
        )
        for c in cases
    ]
    optimizers = []
    between = [other_work(c.num_bytes, torch.device("cpu")) for c in cases]
    for model in models:
        log.follow_gradients(model)
        optimizers.append(torch.optim.SGD(model.parameters(), lr=0.01))
    times = np.zeros((len(cases), repeats + _WARM_UP, 2))
    for i in range(repeats + _WARM_UP):
        for k, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            _Constant.making_s = 0.0
            between[k] += 1.0
            log.begin()
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            times[k, i] = log.now() - _Constant.making_s, log.network()
    quiet = quiet_seconds(times[:, _WARM_UP:])
    return [replace(case, time_s=float(m)) for case, m in zip(cases, quiet, strict=True)]
