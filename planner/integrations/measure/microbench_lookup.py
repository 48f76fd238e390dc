"""Times FBGEMM's table-batched lookups, forward and backward, table by table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from costmodels.calibration.points import LookupPoint
from costmodels.cpu.features import CpuKernel
from costmodels.distribution.zipf import Zipf
from planner.integrations.measure.microbench_clock import DeviceClock
from planner.integrations.measure.pace import Pace
from planner.integrations.measure.synthetic_indices import IndexSampler, bag_lengths

_NUM_BATCHES = 4
_GRADIENT = 1e-3
_BETWEEN_BYTES = 32 * 1024**2
"""Bytes that are touched between forward and backward, as by the dense part of a model."""


@dataclass(slots=True)
class _Resident:
    """A table in memory with batches of indices."""

    call: Callable[..., torch.Tensor]
    batches: list[tuple[torch.Tensor, torch.Tensor]]
    parameters: list[Any]


def measure_lookups(
    cases: Sequence[LookupPoint], pace: Pace, *, repeats: int, seed: int, device: torch.device
) -> list[LookupPoint]:
    """Measure all cases, which are in memory together and take turns.

    By taking turns, the rows of a table are as cold in caches as in a model with other tables. A
    tiny table comes first and last, because the first call after other work takes longer. Times are
    medians over ``repeats`` rounds, after one round to warm up.
    """
    rng = np.random.default_rng(seed)
    first = [replace(case, num_embeddings=64, num_bags=8) for case in cases[:1]]
    tables = [_resident(case, rng, device) for case in (*first, *cases)]
    clock = DeviceClock(device)
    between = torch.zeros(_BETWEEN_BYTES // 4, device=device)
    forward, backward = np.zeros((2, len(tables), repeats + 1))
    for i in range(repeats + 1):
        outputs = []
        pace.read()
        for k, table in enumerate(tables):
            indices, offsets = table.batches[i % _NUM_BATCHES]
            start = clock.now()
            outputs.append(table.call(indices, offsets))
            forward[k, i] = clock.now() - start
        gradients = [torch.full_like(output, _GRADIENT) for output in outputs]
        between += 1.0
        for k in (0, *reversed(range(1, len(tables)))):
            start = clock.now()
            outputs[k].backward(gradients[k])
            backward[k, i] = clock.now() - start
            for parameter in tables[k].parameters:
                parameter.grad = None
    return [
        replace(
            case,
            forward_s=float(np.median(forward[k, 1:])),
            backward_s=float(np.median(backward[k, 1:])),
        )
        for k, case in enumerate(cases, len(first))
    ]


def _resident(case: LookupPoint, rng: np.random.Generator, device: torch.device) -> _Resident:
    law = Zipf(num_embeddings=case.num_embeddings, exponent=case.exponent)
    sampler = IndexSampler(law, rng)
    batches = []
    for _ in range(_NUM_BATCHES):
        lengths = bag_lengths(case.pooling_factor, case.num_bags, rng)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        indices = sampler.draw(int(lengths.sum()))
        batches.append((torch.from_numpy(indices).to(device), torch.from_numpy(offsets).to(device)))
    shape = (case.num_embeddings, case.embedding_dim)
    module: Any
    if case.kernel is CpuKernel.DENSE:
        module = DenseTableBatchedEmbeddingBagsCodegen(
            [shape], pooling_mode=PoolingMode.SUM, use_cpu=device.type == "cpu"
        )
        module.weights.data.uniform_(-0.01, 0.01)
        parameters = [module.weights]
    else:
        is_sequence = case.kernel is CpuKernel.SEQUENCE
        pooling = PoolingMode.NONE if is_sequence else PoolingMode.SUM
        module = _fused([shape], device, pooling)
        parameters = []
    return _Resident(call=module, batches=batches, parameters=parameters)


def _fused(
    shapes: list[tuple[int, int]], device: torch.device, pooling: PoolingMode
) -> SplitTableBatchedEmbeddingBagsCodegen:
    on_cpu = device.type == "cpu"
    location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
    compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, location, compute) for rows, dim in shapes],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        eps=1e-8,
        pooling_mode=pooling,
        device=device,
    )
    for weights in module.split_embedding_weights():
        weights.uniform_(-0.01, 0.01)
    return module
