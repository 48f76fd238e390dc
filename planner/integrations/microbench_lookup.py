"""Times FBGEMM's table-batched lookups, forward and backward, table by table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch.distributed._shard.sharded_tensor import ShardedTensorMetadata
from torch.distributed._shard.sharding_spec import ShardMetadata
from torchrec.distributed.embedding_lookup import GroupedPooledEmbeddingsLookup
from torchrec.distributed.embedding_types import (
    EmbeddingComputeKernel,
    GroupedEmbeddingConfig,
    ShardedEmbeddingTable,
)
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from costmodels.calibration.points import CallPoint, GroupPoint, LookupPoint
from costmodels.distribution.zipf import Zipf
from planner.integrations.microbench_clock import DeviceClock
from planner.integrations.synthetic_indices import IndexSampler, bag_lengths

_NUM_BATCHES = 4
_FEW_BAGS = 8
_BETWEEN_BYTES = 32 * 1024**2
"""Memory touched between forward and backward, as the dense part of a model does."""


@dataclass(slots=True)
class _Resident:
    """A table in memory with batches of indices."""

    call: Callable[..., torch.Tensor]
    batches: list[tuple[torch.Tensor, torch.Tensor]]
    gradient: torch.Tensor
    parameters: list[Any]


def measure_lookups(
    cases: Sequence[LookupPoint], *, repeats: int, seed: int, device: torch.device
) -> list[LookupPoint]:
    """Times of all cases, which stay resident together and take turns.

    Turns leave every table's rows as cold as the other tables of a model would. A tiny table goes
    first and last, for the first call after other work pays for more than itself. Medians
    over ``repeats`` rounds after one warm-up.
    """
    rng = np.random.default_rng(seed)
    first = [replace(case, num_embeddings=64, num_bags=8) for case in cases[:1]]
    tables = [_resident(case, rng, device) for case in (*first, *cases)]
    clock = DeviceClock(device)
    between = torch.zeros(_BETWEEN_BYTES // 4, device=device)
    forward, backward = np.zeros((2, len(tables), repeats + 1))
    for i in range(repeats + 1):
        outputs = []
        for k, table in enumerate(tables):
            indices, offsets = table.batches[i % _NUM_BATCHES]
            start = clock.now()
            outputs.append(table.call(indices, offsets))
            forward[k, i] = clock.now() - start
        between += 1.0
        for k in (0, *reversed(range(1, len(tables)))):
            start = clock.now()
            outputs[k].backward(tables[k].gradient)
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


def measure_groups(
    cases: Sequence[GroupPoint], *, repeats: int, seed: int, device: torch.device
) -> list[GroupPoint]:
    """Times of fused calls on several tables, one call after the other.

    Medians over ``repeats`` rounds after one warm-up.
    """
    rng = np.random.default_rng(seed)
    groups = [_resident_group(case.tables, rng, device) for case in cases]
    clock = DeviceClock(device)
    between = torch.zeros(_BETWEEN_BYTES // 4, device=device)
    times = np.zeros((len(cases), repeats + 1, 2))
    for i in range(repeats + 1):
        for k, group in enumerate(groups):
            indices, offsets = group.batches[i % _NUM_BATCHES]
            between += 1.0
            start = clock.now()
            output = group.call(indices, offsets)
            times[k, i, 0] = clock.now() - start
            between += 1.0
            start = clock.now()
            output.backward(group.gradient)
            times[k, i, 1] = clock.now() - start
    quiet = np.median(times[:, 1:], axis=1)
    return [
        replace(case, forward_s=float(q[0]), backward_s=float(q[1]))
        for case, q in zip(cases, quiet, strict=True)
    ]


def _resident_group(
    tables: Sequence[LookupPoint], rng: np.random.Generator, device: torch.device
) -> _Resident:
    samplers = [
        IndexSampler(Zipf(num_embeddings=t.num_embeddings, exponent=t.exponent), rng)
        for t in tables
    ]
    batches = []
    for _ in range(_NUM_BATCHES):
        lengths = [bag_lengths(t.pooling_factor, t.num_bags, rng) for t in tables]
        drawn = [s.draw(int(x.sum())) for s, x in zip(samplers, lengths, strict=True)]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        indices = torch.from_numpy(np.concatenate(drawn)).to(device)
        batches.append((indices, torch.from_numpy(offsets).to(device)))
    columns = sum(t.embedding_dim for t in tables)
    module = _fused([(t.num_embeddings, t.embedding_dim) for t in tables], device)
    gradient = torch.full((tables[0].num_bags, columns), 1e-3, device=device)
    return _Resident(call=module, batches=batches, gradient=gradient, parameters=[])


def measure_calls(counts: Sequence[int], *, repeats: int) -> list[CallPoint]:
    """Times of TorchRec's lookup module on tiny tables: what a call costs by itself."""
    device = torch.device("cpu")
    clock = DeviceClock(device)
    between = torch.zeros(_BETWEEN_BYTES // 4)
    modules = [_lookup_module(count) for count in counts]
    times = np.zeros((len(counts), repeats + 3, 2))
    for i in range(repeats + 3):
        for k, count in enumerate(counts):
            features = KeyedJaggedTensor(
                keys=[f"f{t}" for t in range(count)],
                values=torch.zeros(count * _FEW_BAGS, dtype=torch.long),
                lengths=torch.ones(count * _FEW_BAGS, dtype=torch.int32),
            )
            between += 1.0
            start = clock.now()
            output = modules[k](features)
            times[k, i, 0] = clock.now() - start
            gradient = torch.full(tuple(output.shape), 1e-3)
            between += 1.0
            start = clock.now()
            output.backward(gradient)
            times[k, i, 1] = clock.now() - start
    quiet = np.median(times[:, 3:], axis=1)
    return [
        CallPoint(num_tables=count, forward_s=float(q[0]), backward_s=float(q[1]))
        for count, q in zip(counts, quiet, strict=True)
    ]


def _lookup_module(count: int) -> GroupedPooledEmbeddingsLookup:
    rank = dist.get_rank()
    shard = ShardMetadata(shard_offsets=[0, 0], shard_sizes=[64, 4], placement=f"rank:{rank}/cpu")
    tables = [
        ShardedEmbeddingTable(
            num_embeddings=64,
            embedding_dim=4,
            name=f"t{t}",
            embedding_names=[f"f{t}"],
            feature_names=[f"f{t}"],
            pooling=PoolingType.SUM,
            local_rows=64,
            local_cols=4,
            compute_kernel=EmbeddingComputeKernel.FUSED,
            local_metadata=shard,
            global_metadata=ShardedTensorMetadata(
                shards_metadata=[shard], size=torch.Size([64, 4])
            ),
        )
        for t in range(count)
    ]
    group = GroupedEmbeddingConfig(
        data_type=DataType.FP32,
        pooling=PoolingType.SUM,
        is_weighted=False,
        has_feature_processor=False,
        compute_kernel=EmbeddingComputeKernel.FUSED,
        embedding_tables=tables,
        fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.01},
    )
    return GroupedPooledEmbeddingsLookup([group], device=torch.device("cpu"), pg=dist.group.WORLD)


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
    if case.kernel == "dense":
        module = DenseTableBatchedEmbeddingBagsCodegen(
            [shape], pooling_mode=PoolingMode.SUM, use_cpu=device.type == "cpu"
        )
        module.weights.data.uniform_(-0.01, 0.01)
        parameters = [module.weights]
    else:
        module = _fused([shape], device)
        parameters = []
    gradient = torch.full((case.num_bags, case.embedding_dim), 1e-3, device=device)
    return _Resident(call=module, batches=batches, gradient=gradient, parameters=parameters)


def _fused(
    shapes: list[tuple[int, int]], device: torch.device
) -> SplitTableBatchedEmbeddingBagsCodegen:
    on_cpu = device.type == "cpu"
    location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
    compute = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, location, compute) for rows, dim in shapes],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        eps=1e-8,
        pooling_mode=PoolingMode.SUM,
        device=device,
    )
    for weights in module.split_embedding_weights():
        weights.uniform_(-0.01, 0.01)
    return module
