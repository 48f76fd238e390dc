"""Memory of a plan: what fills each device and each host."""

from itertools import groupby
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import activation_bytes, dense_layers, dense_parameters, live_bytes
from costmodels.estimates import HostMemory, MemoryLedger, RankMemory
from costmodels.shard_work.wire import kept_bytes
from costmodels.shard_work.work import MEMORY, Memory
from costmodels.sustained import generation_of
from costmodels.topology import Topology, batch_ratios, with_batch
from costmodels.workload import DataType, DenseParallelism, Workload

ALLOCATOR_RATIO: Final = (0.0, 0.10, 0.37)
"""What PyTorch's allocator reserves beyond the peak of what it gives out, as a share of this peak:
the least, the median and the most of 36 steps on one H200 (``shardplan validate published --what
memory --json``)."""

_WORKSPACE_BYTES: Final = 2 * 32 * 1024.0**2
"""Workspace of matrix products on Hopper and later: PyTorch gives 32 MiB to each handle of cuBLAS,
and the threads of the forward and of the backward pass have one handle each
(aten/src/ATen/cuda/CUDABlas.cpp)."""
_EARLIER_WORKSPACE_BYTES: Final = 2 * 8.125 * 1024.0**2
"""The same on other GPUs."""


def dense_bytes(workload: Workload, topology: Topology | None = None) -> float:
    """Device bytes of the dense part: the sum of :func:`dense_parts`."""
    return sum(dense_parts(workload, topology).values())


def dense_parts(workload: Workload, topology: Topology | None = None) -> dict[str, float]:
    """Device bytes of the dense part at the peak of a step, by what they hold.

    The parts are: parameters in fp32 with gradients, optimizer states and communication buckets;
    activations that are kept for the backward pass; what else is there at the peak, which are
    gradients of activations and looked-up vectors (:mod:`costmodels.dense.base`); and on a GPU the
    workspace of matrix products. Where products take types of two bytes, there are weights of two
    bytes beside those in fp32. A rank holds only its share of the parameters of a sharded dense
    part (FSDP), with gradients and states. In place of the buckets it holds the gathered parameters
    and gradients of two layers.

    Args:
        workload: what is trained.
        topology: its ranks share a sharded dense part; None for a single rank of no known device.
    """
    activations, live = activation_bytes(workload), live_bytes(workload)
    parameters = _parameter_bytes(workload, topology)
    updated = dense_parameters(workload) / _sharers(workload, topology)
    peak = max(live.peak_bytes, 4.0 * workload.dense_optimizer.num_temporaries * updated)
    return {
        "parameters with gradients and state": parameters,
        "activations": activations,
        "gradients of activations and looked-up vectors": peak - activations + kept_bytes(workload),
        "workspace of matrix products": _workspace_bytes(topology) if parameters else 0.0,
    }


def _workspace_bytes(topology: Topology | None) -> float:
    """Bytes that cuBLAS holds for matrix products; none on CPU cores."""
    if topology is None or topology.compute_device == "cpu":
        return 0.0
    is_late = generation_of(topology.device) in ("H100", "B200")
    return _WORKSPACE_BYTES if is_late else _EARLIER_WORKSPACE_BYTES


def _sharers(workload: Workload, topology: Topology | None) -> int:
    """Ranks that share the states of each parameter: more than one only with FSDP."""
    is_sharded = workload.dense_parallelism is DenseParallelism.FSDP
    return _copies(workload, topology) if is_sharded else 1


def _copies(workload: Workload, topology: Topology | None) -> int:
    """Ranks that train the same parameters."""
    return topology.trainers.world_size // workload.tensor_parallel if topology else 1


def _parameter_bytes(workload: Workload, topology: Topology | None) -> float:
    """Bytes of the parameters with all that is kept beside them.

    In fp32 (4 bytes each): the parameter, its gradient, its states, and its place in a bucket where
    DistributedDataParallel has some, which wraps models of one rank only if they have tables.
    """
    count, element = dense_parameters(workload), workload.dense.dtype.num_bytes
    states = workload.dense_optimizer.num_states
    sharers = _sharers(workload, topology)
    if sharers > 1:
        gathered = max(element, DataType.BF16.num_bytes) + workload.gradient_dtype.num_bytes
        return 4.0 * (2 + states) * count / sharers + gathered * 2.0 * _largest_layer(workload)
    buckets = 1 if _copies(workload, topology) > 1 or workload.tables else 0
    copies = 2.0 if element < DataType.FP32.num_bytes else 0.0
    return (4.0 * (2 + buckets + states) + copies) * count


def _largest_layer(workload: Workload) -> int:
    """Parameters of the largest unit that FSDP gathers: a layer, or one of the repeating blocks."""
    layers = dense_layers(workload)
    operators = [(x, o) for x in (*layers.bottom, *layers.top) for o in x.operators]
    units = groupby(
        operators, key=lambda of: (of[1].num_repeats, of[1].num_repeats > 1 or of[0].name)
    )
    return max((sum(o.num_parameters for _, o in unit) for _, unit in units), default=0)


def by_host(per_rank: FloatArray, topology: Topology) -> FloatArray:
    """The sum over the ranks of each host, ``[..., H]``, of what each rank has, ``[..., W]``."""
    shape = (*per_rank.shape[:-1], topology.num_hosts, topology.local_world_size)
    return np.asarray(per_rank.reshape(shape).sum(axis=-1))


def dense_by_rank(workload: Workload, topology: Topology) -> FloatArray:
    """Device bytes of the dense part on each rank, ``[W]``."""
    ratios = batch_ratios(workload, topology)
    if ratios is None:
        return np.full(topology.world_size, dense_bytes(workload, topology))
    return np.array([dense_bytes(with_batch(workload, ratio), topology) for ratio in ratios])


def ledger(work: FloatArray, workload: Workload, topology: Topology) -> MemoryLedger:
    """The ledger of a plan, from its work ``[W, columns]``."""
    columns = work[:, MEMORY:]
    dense = dense_by_rank(workload, topology)
    capacity = topology.hbm_capacities()
    ranks = tuple(
        RankMemory(
            rank=rank,
            **{f"{column.name.lower()}_bytes": float(row[column]) for column in Memory},
            dense_bytes=float(dense[rank]),
            reserved_bytes=workload.reserved_bytes,
            capacity_bytes=float(capacity[rank]),
        )
        for rank, row in enumerate(columns)
    )
    used = by_host(columns[:, Memory.HOST], topology)
    hosts = tuple(
        HostMemory(host=i, used_bytes=float(b), capacity_bytes=float(most))
        for i, (b, most) in enumerate(zip(used, topology.ddr_capacities(), strict=True))
    )
    return MemoryLedger(ranks=ranks, hosts=hosts)
