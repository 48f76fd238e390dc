"""TorchRec's times of a shard (``distributed/planner/estimator/estimator.py``, 1.8.0).

Times follow from the shard's columns; rows enter only the all-reduce of replicated tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.torchrec_estimates import constants
from costmodels.torchrec_estimates.machine import TorchrecMachine
from costmodels.torchrec_estimates.table import TorchrecTable

_BY_ROWS: Final = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD)
_MOST_NODES: Final = 2
"""The all-reduce of replicated tables is priced for one host or two, then doubled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPerf:
    """TorchRec's ``Perf``, in seconds."""

    fwd_compute_s: float
    fwd_comms_s: float
    bwd_compute_s: float
    bwd_comms_s: float
    prefetch_s: float = 0.0

    @property
    def total_s(self) -> float:
        """What TorchRec adds up per rank; the indices' exchange is not in it."""
        compute = self.fwd_compute_s + self.bwd_compute_s
        return compute + self.fwd_comms_s + self.bwd_comms_s + self.prefetch_s


def shard_perf(
    table: TorchrecTable,
    machine: TorchrecMachine,
    sharding_type: ShardingType,
    kernel: ComputeKernel,
    *,
    num_cols: int,
    cache_load_factor_ratio: float | None = None,
) -> ShardPerf:
    """Times of a shard ``num_cols`` wide.

    Args:
        table: the table the shard is of.
        machine: the system.
        sharding_type: how the table is cut; row blocks all cost the same, even empty ones.
        kernel: where the weights live.
        num_cols: columns of the shard.
        cache_load_factor_ratio: of the caching kernel; None means TorchRec's 0.2.
    """
    rate = _device_rate(table, machine, kernel, cache_load_factor_ratio)
    if sharding_type is ShardingType.DATA_PARALLEL:
        return _replicated(table, machine, num_cols, rate)
    world = machine.world_size
    by_rows = sharding_type in _BY_ROWS
    within = world if sharding_type is ShardingType.ROW_WISE else machine.group_size
    share = within if by_rows else 1
    wire = table.all_to_all_bytes
    if by_rows and (table.is_pooled or sharding_type is not ShardingType.ROW_WISE):
        wire = table.row_sum_bytes
    ids = table.num_ids / share
    outputs = table.num_outputs if table.is_pooled or not by_rows else table.num_outputs / share
    forward_bytes, backward_bytes = (outputs * world * num_cols * b for b in wire)
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
        bwd_compute_s=_backward_compute(table, compute),
        bwd_comms_s=comms[1] + copies,
        prefetch_s=_prefetch(table, machine, kernel, num_cols) / share,
    )


def _device_rate(
    table: TorchrecTable,
    machine: TorchrecMachine,
    kernel: ComputeKernel,
    cache_load_factor_ratio: float | None,
) -> float:
    """Bytes/s of a kernel (``kernel_bw_lookup``)."""
    memory, link = machine.hbm_bandwidth_bytes_per_s, machine.device_link_bandwidth_bytes_per_s
    if kernel is ComputeKernel.DENSE:
        return constants.DENSE_KERNEL_RATIO * memory
    if kernel is ComputeKernel.FUSED_UVM:
        return constants.HOST_KERNEL_RATIO * link
    if kernel is ComputeKernel.FUSED_UVM_CACHING and not table.prefetches:
        factor = cache_load_factor_ratio
        share = constants.CACHE_LOAD_FACTOR if factor is None else factor
        return constants.HOST_KERNEL_RATIO * (share * memory + (1 - share) * link)
    return memory


def _penalty(num_cols: int) -> float:
    """Narrow column pieces leave threads idle (``compute_block_usage_penalty``)."""
    if num_cols >= constants.FULL_BLOCK_COLUMNS:
        return 1.0
    if num_cols >= constants.HALF_BLOCK_COLUMNS:
        return constants.HALF_BLOCK_PENALTY
    return constants.QUARTER_BLOCK_PENALTY


def _forward_compute(
    table: TorchrecTable,
    ids: float,
    columns: int,
    output_bytes: float,
    rate: float,
    penalty: float,
) -> float:
    """Indices read, rows read and vectors written, over the kernel's rate."""
    read = math.ceil(ids * constants.INDEX_BYTES) * (2 if table.is_weighted else 1)
    return (read + ids * columns * table.element_bytes + output_bytes) * penalty / rate


def _backward_compute(table: TorchrecTable, forward_s: float) -> float:
    weighted = constants.WEIGHTED_KERNEL_MULTIPLIER if table.is_weighted else 0.0
    return forward_s * constants.BACKWARD_MULTIPLIER + forward_s * weighted


def _replicated(
    table: TorchrecTable, machine: TorchrecMachine, num_cols: int, rate: float
) -> ShardPerf:
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
        bwd_compute_s=_backward_compute(table, compute),
        bwd_comms_s=reduce_s + size * constants.REPLICATED_UPDATE_FACTOR / rate,
    )


def _two_levels(
    table: TorchrecTable,
    machine: TorchrecMachine,
    num_cols: int,
    forward_bytes: float,
    backward_bytes: float,
) -> tuple[float, float]:
    """Sum within the group, then an exchange between groups, and back."""
    group = machine.group_size
    inside = machine.bandwidth(group, min(group, machine.local_world_size))
    across = machine.bandwidth(machine.num_groups, 1)
    exchanged = [0.0, 0.0]
    if machine.num_groups > 1:
        vectors = table.num_outputs * machine.num_groups * num_cols
        exchanged = [vectors * b / across for b in table.all_to_all_bytes]
    return exchanged[0] + forward_bytes / inside, exchanged[1] + backward_bytes / inside


def _prefetch(
    table: TorchrecTable, machine: TorchrecMachine, kernel: ComputeKernel, num_cols: int
) -> float:
    if kernel is not ComputeKernel.FUSED_UVM_CACHING or table.num_cache_fetches is None:
        return 0.0
    fetched = table.num_cache_fetches * num_cols * table.element_bytes
    return fetched / machine.device_link_bandwidth_bytes_per_s
