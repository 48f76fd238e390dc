"""Memory of a plan: what fills each device and each host."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from costmodels.batch_shares import batch_ratios, with_batch
from costmodels.datatypes import FloatArray
from costmodels.dense.base import activation_bytes, dense_layers, dense_parameters
from costmodels.estimates import HostMemory, MemoryLedger, RankMemory
from costmodels.shard_work.deduplication import kept_bytes
from costmodels.shard_work.work import MEMORY, Memory
from costmodels.topology import Topology
from costmodels.workload import DataType, DenseParallelism, Pooling, Workload

_ON_DEVICE = [int(m) for m in Memory if m is not Memory.HOST]
"""The columns of memory that are on the device."""


def dense_bytes(workload: Workload, topology: Topology | None = None) -> float:
    """Device bytes of the dense part: the sum of :func:`dense_parts`."""
    return sum(dense_parts(workload, topology).values())


def dense_parts(workload: Workload, topology: Topology | None = None) -> dict[str, float]:
    """Device bytes of the dense part, by what they hold.

    The parts are: parameters in fp32 with gradients, optimizer states and communication buckets;
    activations; and the looked-up vectors that a rank receives, with their gradients. Where
    products take types of two bytes, Adam and LAMB keep weights of two bytes beside those in fp32.
    A rank holds only its share of the parameters of a sharded dense part (FSDP), with gradients and
    states. In place of the buckets it holds the gathered parameters and gradients of two layers.

    Args:
        workload: what is trained.
        topology: its ranks share a sharded dense part; None for a single rank.
    """
    outputs = sum(
        t.embedding_dim * (len(t.features) if t.pooling is not Pooling.NONE else t.pooling_factor)
        for t in workload.tables
    )
    return {
        "parameters with gradients and state": _parameter_bytes(workload, topology),
        "activations": activation_bytes(workload),
        "looked-up vectors": 2.0
        * workload.local_batch_size
        * outputs
        * workload.output_dtype.num_bytes
        + kept_bytes(workload),
    }


def _parameter_bytes(workload: Workload, topology: Topology | None) -> float:
    """Bytes of the parameters with all that is kept beside them.

    In fp32 (4 bytes each): the parameter, its gradient, its states, and its place in a bucket.
    """
    count, element = dense_parameters(workload), workload.dense.dtype.num_bytes
    states = workload.dense_optimizer.num_states
    ranks = topology.trainers.world_size // workload.tensor_parallel if topology else 1
    if workload.dense_parallelism is DenseParallelism.FSDP and ranks > 1:
        gathered = max(element, DataType.BF16.num_bytes) + workload.gradient_dtype.num_bytes
        return 4.0 * (2 + states) * count / ranks + gathered * 2.0 * _largest_layer(workload)
    copies = element < DataType.FP32.num_bytes and states > 1
    return (4.0 * (3 + states) + (2.0 if copies else 0.0)) * count


def _largest_layer(workload: Workload) -> int:
    """Parameters of the largest unit that FSDP gathers: a layer, or one of the repeating blocks."""
    layers = dense_layers(workload)
    operators = [(x, o) for x in (*layers.bottom, *layers.top) for o in x.operators]
    units = groupby(
        operators, key=lambda of: (of[1].num_repeats, of[1].num_repeats > 1 or of[0].name)
    )
    return max((sum(o.num_parameters for _, o in unit) for _, unit in units), default=0)


def device_bytes(work: FloatArray) -> FloatArray:
    """Device bytes of tables on each rank, ``[..., W]``, from work ``[..., W, columns]``."""
    return np.asarray(work[..., [MEMORY + m for m in _ON_DEVICE]].sum(axis=-1))


def host_bytes(work: FloatArray, topology: Topology) -> FloatArray:
    """Bytes of tables in the memory of each host, ``[..., H]``."""
    per_rank = work[..., MEMORY + Memory.HOST]
    shape = (*per_rank.shape[:-1], topology.num_hosts, topology.local_world_size)
    return np.asarray(per_rank.reshape(shape).sum(axis=-1))


def device_limits(workload: Workload, topology: Topology) -> FloatArray:
    """Device bytes left for tables on each rank, ``[W]``; negative where the rest does not fit."""
    return topology.hbm_capacities() - workload.reserved_bytes - _dense_by_rank(workload, topology)


def _dense_by_rank(workload: Workload, topology: Topology) -> FloatArray:
    """Device bytes of the dense part on each rank, ``[W]``."""
    ratios = batch_ratios(workload, topology)
    if ratios is None:
        return np.full(topology.world_size, dense_bytes(workload, topology))
    return np.array([dense_bytes(with_batch(workload, ratio), topology) for ratio in ratios])


def host_limits(topology: Topology) -> FloatArray:
    """Bytes for tables in the memory of each host, ``[H]``."""
    return topology.ddr_capacities()


def ledger(work: FloatArray, workload: Workload, topology: Topology) -> MemoryLedger:
    """The ledger of a plan, from its work ``[W, columns]``."""
    columns = work[:, MEMORY:]
    dense = _dense_by_rank(workload, topology)
    capacity = topology.hbm_capacities()
    ranks = tuple(
        RankMemory(
            rank=rank,
            weights_bytes=float(row[Memory.WEIGHTS]),
            optimizer_bytes=float(row[Memory.OPTIMIZER]),
            gradients_bytes=float(row[Memory.GRADIENTS]),
            cache_bytes=float(row[Memory.CACHE]),
            buffers_bytes=float(row[Memory.BUFFERS]),
            dense_bytes=float(dense[rank]),
            reserved_bytes=workload.reserved_bytes,
            capacity_bytes=float(capacity[rank]),
            host_bytes=float(row[Memory.HOST]),
        )
        for rank, row in enumerate(columns)
    )
    used = host_bytes(work, topology)
    hosts = tuple(
        HostMemory(host=i, used_bytes=float(b), capacity_bytes=float(most))
        for i, (b, most) in enumerate(zip(used, topology.ddr_capacities(), strict=True))
    )
    return MemoryLedger(ranks=ranks, hosts=hosts)
