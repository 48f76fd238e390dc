"""Draws batches of indices, and times FBGEMM's table-batched lookups, table by table."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from costmodels.calibration.points import LookupPoint, zipf_table
from costmodels.datatypes import IntArray
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.measured.cpu_constants import CpuKernel
from planner.integrations.measure.pace import Pace

_NUM_BATCHES = 4
_REPEATS = 3
"""How often a lookup is measured at one place in memory."""
_GRADIENT = 1e-3
_BETWEEN_BYTES = 32 * 1024**2
"""Bytes that are touched between forward and backward, as by the dense part of a model."""
_PLACES = {
    "hbm": EmbeddingLocation.DEVICE,
    "uvm": EmbeddingLocation.MANAGED,
    "uvm_caching": EmbeddingLocation.MANAGED_CACHING,
}
_OPTIMIZERS = {"rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "sgd": EmbOptimType.EXACT_SGD}


def measure_lookups(cases: Sequence[LookupPoint], pace: Pace, seed: int) -> list[LookupPoint]:
    """Measure all cases, which are in memory together and take turns.

    By taking turns, the rows of a table are as cold in caches as in a model with other tables. A
    tiny table comes first and last, because the first call after other work takes longer. Times are
    medians over some rounds, after one round to warm up.
    """
    rng = np.random.default_rng(seed)
    tiny = zipf_table(0, 64, cases[0].table.embedding_dim, 1.0, 0.0)
    first = replace(cases[0], table=tiny, num_bags=8)
    tables = [_resident(case, rng) for case in (first, *cases)]
    between = torch.zeros(_BETWEEN_BYTES // 4)
    forward, backward = times = np.zeros((2, len(tables), _REPEATS + 1))
    for i in range(_REPEATS + 1):
        outputs = []
        pace.read()
        for k, (module, batches) in enumerate(tables):
            indices, offsets = batches[i % _NUM_BATCHES]
            start = time.thread_time()
            outputs.append(module(indices, offsets))
            forward[k, i] = time.thread_time() - start
        gradients = [torch.full_like(output, _GRADIENT) for output in outputs]
        between += 1.0
        for k in (0, *reversed(range(1, len(tables)))):
            start = time.thread_time()
            outputs[k].backward(gradients[k])
            backward[k, i] = time.thread_time() - start
            tables[k][0].zero_grad(set_to_none=True)
    medians = np.median(times[..., 1:], axis=-1)[:, 1:].tolist()
    found = zip(cases, *medians, strict=True)
    return [replace(case, forward_s=f, backward_s=b) for case, f, b in found]


def _resident(case: LookupPoint, rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """A table in memory, and batches of indices."""
    table, sampler = case.table, IndexSampler(case.table.distribution, rng)
    batches = []
    for _ in range(_NUM_BATCHES):
        lengths = bag_lengths(table.pooling_factor, case.num_bags, rng)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        indices = sampler.draw(int(lengths.sum()), rng)
        batches.append((torch.from_numpy(indices), torch.from_numpy(offsets)))
    shape = (table.num_embeddings, table.embedding_dim)
    module: Any
    if case.kernel is CpuKernel.DENSE:
        module = DenseTableBatchedEmbeddingBagsCodegen(
            [shape], pooling_mode=PoolingMode.SUM, use_cpu=True
        )
        module.weights.data.uniform_(-0.01, 0.01)
    else:
        is_pooled = case.kernel is not CpuKernel.SEQUENCE
        module = fused_tables([shape], torch.device("cpu"), is_pooled=is_pooled)
    return module, batches


def fused_tables(
    shapes: Sequence[tuple[int, int]],
    device: torch.device,
    *,
    is_pooled: bool,
    place: str = "hbm",
    is_half: bool = False,
    optimizer: str = "rowwise_adagrad",
    load_factor: float = 1.0,
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """FBGEMM's fused lookup of tables, with small random weights.

    Args:
        shapes: rows and columns of each table.
        device: where it runs; on CPU cores tables are in the host's memory whatever ``place`` is.
        is_pooled: whether the vectors of a bag are added up.
        place: ``hbm``, ``uvm`` or ``uvm_caching``.
        is_half: whether weights are fp16.
        optimizer: ``rowwise_adagrad`` or ``sgd``.
        load_factor: share of the rows in the cache of ``uvm_caching``.
    """
    on_cpu = device.type == "cpu"
    location = EmbeddingLocation.HOST if on_cpu else _PLACES[place]
    compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    cached = {"cache_load_factor": load_factor} if location is _PLACES["uvm_caching"] else {}
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, location, compute) for rows, dim in shapes],
        optimizer=_OPTIMIZERS[optimizer],
        learning_rate=0.01,
        eps=1e-8,
        weights_precision=SparseType.FP16 if is_half else SparseType.FP32,
        output_dtype=SparseType.FP32,
        pooling_mode=PoolingMode.SUM if is_pooled else PoolingMode.NONE,
        device=device,
        **cached,
    )
    for weights in module.split_embedding_weights():
        weights.uniform_(-0.01, 0.01)
    if cached:
        module.reset_cache_states()
    return module


# ------------------ batches of indices


class IndexSampler:
    """Draws row ids from a law, which says whether hot rows are scattered or come first."""

    def __init__(self, law: AbstractIndexDistribution, rng: np.random.Generator) -> None:
        """Prepare the inverse distribution function over bins."""
        rows, probability = law.frequency_bins()
        mass = np.cumsum(rows * probability)
        self._mass = mass / mass[-1]
        self._starts = np.concatenate([[0.0], np.cumsum(rows)])
        self._ids = rng.permutation(law.num_embeddings) if law.scattered else None
        self._last = law.num_embeddings - 1

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """``count`` independent ids."""
        bins = np.searchsorted(self._mass, rng.random(count), side="right")
        bins = np.minimum(bins, len(self._mass) - 1)
        start, end = self._starts[bins], self._starts[bins + 1]
        ranks = (start + rng.random(count) * (end - start)).astype(np.int64)
        ranks = np.minimum(ranks, self._last)
        return ranks if self._ids is None else np.asarray(self._ids[ranks], dtype=np.int64)


def bag_lengths(pooling_factor: float, num_bags: int, rng: np.random.Generator) -> IntArray:
    """Indices per bag: constant if the mean is a whole number below 2, otherwise Poisson."""
    if pooling_factor == 1.0:
        return np.ones(num_bags, dtype=np.int64)
    return rng.poisson(pooling_factor, num_bags).astype(np.int64)
