"""TorchRec's times and memory of a shard (``distributed/planner``, 1.8.0).

They are those of ``estimator/estimator.py`` and ``shard_estimators.py`` there. Times depend on the
columns of a shard, and not on its rows, except for the all-reduce of replicated tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from costmodels.sharding import BY_ROWS, ComputeKernel, ShardingType
from costmodels.torchrec_estimates import constants
from costmodels.torchrec_estimates.machine import TorchrecMachine, TorchrecTable

_MOST_NODES: Final = 2
"""The all-reduce of replicated tables is priced for at most this many hosts; with more hosts it is
taken to last twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPerf:
    """TorchRec's ``Perf``: seconds of a shard.

    Attributes:
        fwd_compute_s: forward lookup.
        fwd_comms_s: exchange of outputs.
        bwd_compute_s: backward lookup.
        bwd_comms_s: exchange of gradients.
    """

    fwd_compute_s: float
    fwd_comms_s: float
    bwd_compute_s: float
    bwd_comms_s: float

    @property
    def total_s(self) -> float:
        """The sum that TorchRec adds up for each rank.

        The exchange of indices is not in it, nor fetches into caches, which TorchRec counts where a
        constraint has cache statistics.
        """
        compute = self.fwd_compute_s + self.bwd_compute_s
        return compute + self.fwd_comms_s + self.bwd_comms_s


def shard_perf(
    table: TorchrecTable,
    machine: TorchrecMachine,
    sharding_type: ShardingType,
    kernel: ComputeKernel,
    *,
    num_cols: float,
    cache_load_factor_ratio: float | None = None,
) -> ShardPerf:
    """The times of a shard.

    Args:
        table: the table of the shard.
        machine: the system.
        sharding_type: how the table is cut. All row blocks take the same time, even empty ones.
        kernel: the kernel that looks the shard up.
        num_cols: columns of the shard.
        cache_load_factor_ratio: share of rows that the caching kernel keeps on the device; None for
            TorchRec's 0.2.
    """
    rate = _device_rate(table, machine, kernel, cache_load_factor_ratio)
    if sharding_type is ShardingType.DATA_PARALLEL:
        return _replicated(table, machine, num_cols, rate)
    world = machine.world_size
    by_rows = sharding_type in BY_ROWS
    within = world if sharding_type is ShardingType.ROW_WISE else machine.group_size
    share = within if by_rows else 1
    ids, outputs = table.num_ids / share, table.num_outputs
    if by_rows:
        outputs = outputs if table.is_pooled else outputs / share
    forward_bytes, backward_bytes = (
        outputs * world * num_cols * b for b in _wire_bytes(table, sharding_type)
    )
    columns = num_cols if by_rows else max(num_cols, constants.MIN_LOOKUP_COLUMNS)
    compute = _forward_compute(
        table, ids * world, columns, forward_bytes, rate, 1.0 if by_rows else _penalty(num_cols)
    )
    copies = backward_bytes * constants.BATCHED_COPY_FACTOR / rate if by_rows else 0.0
    if by_rows and sharding_type is not ShardingType.ROW_WISE:
        comms = _two_levels(table, machine, num_cols, forward_bytes, backward_bytes)
    else:
        link = machine.bandwidth(world, machine.local_world_size)
        comms = (forward_bytes / link, backward_bytes / link)
    return ShardPerf(
        fwd_compute_s=compute,
        fwd_comms_s=comms[0],
        bwd_compute_s=_backward_compute(table, machine, compute),
        bwd_comms_s=comms[1] + copies,
    )


def _wire_bytes(table: TorchrecTable, sharding_type: ShardingType) -> tuple[float, float]:
    """Bytes per element in the exchange of outputs, and in the exchange of gradients."""
    if sharding_type not in BY_ROWS:
        return table.all_to_all_bytes
    if sharding_type is not ShardingType.ROW_WISE:
        return table.row_sum_bytes
    return table.row_sum_bytes if table.is_pooled else table.all_to_all_bytes


def _device_rate(
    table: TorchrecTable,
    machine: TorchrecMachine,
    kernel: ComputeKernel,
    cache_load_factor_ratio: float | None,
) -> float:
    """Bytes per second of a kernel (``kernel_bw_lookup``)."""
    memory, link = machine.hbm_bandwidth_bytes_per_s, machine.device_link_bandwidth_bytes_per_s
    if kernel is ComputeKernel.DENSE:
        return constants.DENSE_KERNEL_RATIO * memory
    if kernel is ComputeKernel.FUSED_UVM:
        return constants.HOST_KERNEL_RATIO * link
    if kernel is ComputeKernel.FUSED_UVM_CACHING:
        factor = cache_load_factor_ratio
        share = constants.CACHE_LOAD_FACTOR if factor is None else factor
        behind = constants.HOST_KERNEL_RATIO * (share * memory + (1 - share) * link)
        return memory if table.prefetches else behind
    return memory


def _penalty(num_cols: float) -> float:
    """Factor on the time of narrow pieces, which leave threads without work.

    Source: ``compute_block_usage_penalty``.
    """
    if num_cols >= constants.FULL_BLOCK_COLUMNS:
        return 1.0
    wide = num_cols >= constants.HALF_BLOCK_COLUMNS
    return constants.HALF_BLOCK_PENALTY if wide else constants.QUARTER_BLOCK_PENALTY


def _forward_compute(
    table: TorchrecTable,
    ids: float,
    columns: float,
    output_bytes: float,
    rate: float,
    penalty: float,
) -> float:
    """Seconds of a forward lookup: bytes of indices, rows and outputs over the kernel's rate.

    Args:
        table: the table.
        ids: indices that are looked up.
        columns: columns of the shard.
        output_bytes: bytes of the vectors that are written.
        rate: bytes per second of the kernel.
        penalty: factor for narrow pieces.
    """
    read = math.ceil(ids * constants.INDEX_BYTES) * (2.0 if table.is_weighted else 1.0)
    return (read + ids * columns * table.element_bytes + output_bytes) * penalty / rate


def _backward_compute(table: TorchrecTable, machine: TorchrecMachine, forward_s: float) -> float:
    """Seconds of a backward lookup whose forward lookup takes ``forward_s``."""
    backward_s = forward_s * machine.backward_ratio
    if not table.is_weighted:
        return backward_s
    return backward_s * machine.weighted_ratio + forward_s * constants.WEIGHTED_KERNEL_MULTIPLIER


def _replicated(
    table: TorchrecTable, machine: TorchrecMachine, num_cols: float, rate: float
) -> ShardPerf:
    """The times of a replicated table; ``rate`` is that of the kernel in bytes per second."""
    written = table.num_outputs * num_cols * table.element_bytes
    compute = _forward_compute(table, table.num_ids, num_cols, written, rate, 1.0)
    size = table.num_embeddings * num_cols * table.element_bytes
    nodes = min(machine.world_size / machine.local_world_size, _MOST_NODES)
    reduce_s = size * (2 * nodes - 1) / nodes / machine.all_reduce_bandwidth_bytes_per_s
    if machine.world_size > _MOST_NODES * machine.local_world_size:
        reduce_s *= 2
    return ShardPerf(
        fwd_compute_s=compute,
        fwd_comms_s=0.0,
        bwd_compute_s=_backward_compute(table, machine, compute),
        bwd_comms_s=reduce_s + size * constants.REPLICATED_UPDATE_FACTOR / rate,
    )


def _two_levels(
    table: TorchrecTable,
    machine: TorchrecMachine,
    num_cols: float,
    forward_bytes: float,
    backward_bytes: float,
) -> tuple[float, float]:
    """Seconds of the exchanges of outputs and of gradients of tables on one group of ranks.

    Outputs are added up inside the group and then exchanged between groups. Gradients take the way
    back.

    Args:
        table: the table.
        machine: the system.
        num_cols: columns of the shard.
        forward_bytes: bytes of outputs that are added up inside the group.
        backward_bytes: bytes of gradients that are spread inside the group.
    """
    group = machine.group_size
    inside = machine.bandwidth(group, min(group, machine.local_world_size))
    across = machine.bandwidth(machine.num_groups, 1)
    exchanged: list[float] = [0.0, 0.0]
    if machine.num_groups > 1:
        vectors = table.num_outputs * machine.num_groups * num_cols
        exchanged = [vectors * b / across for b in table.all_to_all_bytes]
    return exchanged[0] + forward_bytes / inside, exchanged[1] + backward_bytes / inside


# ------------------------------------------------------------------ memory

_TABLE_INDEX_BYTES = 4
"""Bytes for each row of a cached table: where in the cache it is."""
_SLOT_STATE_BYTES = 16
"""Bytes for each row that the cache has room for: its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStorage:
    """TorchRec's ``Storage``: bytes of a shard in device memory (HBM) and host memory (DDR)."""

    hbm_bytes: float
    ddr_bytes: float


def shard_storage(
    table: TorchrecTable,
    machine: TorchrecMachine,
    sharding_type: ShardingType,
    kernel: ComputeKernel,
    *,
    num_rows: float,
    num_cols: float,
    cache_load_factor_ratio: float | None = None,
) -> ShardStorage:
    """The memory of a shard with one batch of inputs and outputs.

    TorchRec's planner counts one (``PipelineType.NONE``) for every training loop, unless the user
    gives it a storage estimator with another type.

    Args:
        table: the table of the shard.
        machine: the system.
        sharding_type: how the table is cut.
        kernel: the kernel, which says where the weights are.
        num_rows: rows of the shard; 0 for a block that begins beyond the last row of the table.
        num_cols: columns of the shard.
        cache_load_factor_ratio: share of rows that the caching kernel keeps on the device; None (or
            0, as in TorchRec) for TorchRec's 0.2.
    """
    factor = cache_load_factor_ratio or constants.CACHE_LOAD_FACTOR
    cached = kernel is ComputeKernel.FUSED_UVM_CACHING
    in_host = cached or kernel is ComputeKernel.FUSED_UVM
    weights = table.num_embeddings * table.embedding_dim * table.element_bytes
    ddr = weights if in_host else 0
    hbm = round(weights * factor) if cached else weights - ddr
    share = 1.0
    if sharding_type is not ShardingType.DATA_PARALLEL:
        share = num_rows * num_cols / (table.num_embeddings * table.embedding_dim)
    inputs, outputs = _io_bytes(table, machine, sharding_type, num_rows, num_cols)
    aux = math.ceil(num_rows * (_TABLE_INDEX_BYTES + _SLOT_STATE_BYTES * factor)) if cached else 0
    return ShardStorage(
        hbm_bytes=1.0 * (_with_state(hbm * share, table) + aux + inputs + outputs),
        ddr_bytes=1.0 * _with_state(ddr * share, table),
    )


def _with_state(weight_bytes: float, table: TorchrecTable) -> float:
    """Bytes of weights with the state of their optimizer."""
    size = math.ceil(weight_bytes)
    return size + math.ceil(size * table.optimizer_ratio)


def _io_bytes(
    table: TorchrecTable,
    machine: TorchrecMachine,
    sharding_type: ShardingType,
    num_rows: float,
    num_cols: float,
) -> tuple[float, float]:
    """Bytes of the indices that enter a shard, and of the vectors that leave it, per batch.

    A shard of a sharded table gets the indices of all ranks, and a replica those of its rank alone.
    """
    ids, outputs = table.num_ids, table.num_outputs
    if sharding_type is ShardingType.DATA_PARALLEL:
        size = table.embedding_dim * table.output_bytes
        return math.ceil(ids * constants.INDEX_BYTES), math.ceil(outputs * size)
    world = machine.world_size
    share = {
        ShardingType.ROW_WISE: world,
        ShardingType.TABLE_ROW_WISE: machine.group_size,
        ShardingType.GRID_SHARD: machine.group_size,
    }.get(sharding_type)
    if share is not None:
        if num_rows * num_cols <= 0:
            return 0, 0
        ids, outputs = ids / share, outputs if table.is_pooled else outputs / share
    return (
        math.ceil(ids * world * constants.INDEX_BYTES),
        math.ceil(outputs * world * num_cols * table.output_bytes),
    )
