"""TorchRec's memory of a shard (``distributed/planner/shard_estimators.py``, 1.8.0).

Fields of the table, rows and columns may be arrays ``[n]``, for n shards of one sharding type and
kernel at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.torchrec_estimates import constants
from costmodels.torchrec_estimates.machine import (
    TorchrecMachine,
    TorchrecTable,
    Values,
    ceil,
    choose,
    rounded,
)

_TABLE_INDEX_BYTES = 4
"""Bytes for each row of a cached table: where in the cache it is."""
_SLOT_STATE_BYTES = 16
"""Bytes for each row that the cache has room for: its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStorage:
    """TorchRec's ``Storage``: bytes of a shard in device memory (HBM) and host memory (DDR)."""

    hbm_bytes: Values
    ddr_bytes: Values


def shard_storage(
    table: TorchrecTable,
    machine: TorchrecMachine,
    sharding_type: ShardingType,
    kernel: ComputeKernel,
    *,
    num_rows: Values,
    num_cols: Values,
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
    ddr = weights if in_host else 0 * weights
    hbm = rounded(weights * factor) if cached else weights - ddr
    share: Values = 1.0
    if sharding_type is not ShardingType.DATA_PARALLEL:
        share = num_rows * num_cols / (table.num_embeddings * table.embedding_dim)
    inputs, outputs = _io_bytes(table, machine, sharding_type, num_rows, num_cols)
    aux = ceil(num_rows * (_TABLE_INDEX_BYTES + _SLOT_STATE_BYTES * factor)) if cached else 0
    return ShardStorage(
        hbm_bytes=1.0 * (_with_state(hbm * share, table) + aux + inputs + outputs),
        ddr_bytes=1.0 * _with_state(ddr * share, table),
    )


def _with_state(weight_bytes: Values, table: TorchrecTable) -> Values:
    """Bytes of weights with the state of their optimizer."""
    size = ceil(weight_bytes)
    return size + ceil(size * table.optimizer_ratio)


def _io_bytes(
    table: TorchrecTable,
    machine: TorchrecMachine,
    sharding_type: ShardingType,
    num_rows: Values,
    num_cols: Values,
) -> tuple[Values, Values]:
    """Bytes of the indices that enter a shard, and of the vectors that leave it, per batch.

    A shard of a sharded table gets the indices of all ranks, and a replica those of its rank alone.
    """
    ids, outputs = table.num_ids, table.num_outputs
    if sharding_type is ShardingType.DATA_PARALLEL:
        size = table.embedding_dim * table.output_bytes
        return ceil(ids * constants.INDEX_BYTES), ceil(outputs * size)
    world = machine.world_size
    share = {
        ShardingType.ROW_WISE: world,
        ShardingType.TABLE_ROW_WISE: machine.group_size,
        ShardingType.GRID_SHARD: machine.group_size,
    }.get(sharding_type)
    if share is not None:
        used = num_rows * num_cols > 0
        ids = choose(used, ids / share, 0.0 * ids)
        outputs = choose(used, choose(table.is_pooled, outputs, outputs / share), 0.0 * outputs)
    return (
        ceil(ids * world * constants.INDEX_BYTES),
        ceil(outputs * world * num_cols * table.output_bytes),
    )
