"""A plan is the sum of its shards' work.

``WorkLayout`` names the columns of one row per rank; ``option_work`` and ``plan_work`` fill them.
Everything a plan costs, time and memory, is a function of the resulting ``[world_size, columns]``
array, so a search adds and subtracts rows instead of pricing plans from scratch.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel, LookupShard
from costmodels.sharding import (
    ComputeKernel,
    Plan,
    Shard,
    ShardingOption,
    ShardingType,
    Spread,
    TablePlacement,
    place,
)
from costmodels.topology import Topology
from costmodels.workload import Optimizer, Pipeline, Pooling, Table, Workload

FloatArray = NDArray[np.float64]

KERNELS: Final = tuple(ComputeKernel)
FAMILIES: Final = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.TABLE_COLUMN_WISE,
    ShardingType.ROW_WISE,
    ShardingType.TABLE_ROW_WISE,
    ShardingType.GRID_SHARD,
)
"""Sharding types with collectives of their own: TorchRec runs one set per type. Types that are cut
alike stand beside each other, so that a table by another name keeps its turn on the streams."""

PIPELINE_DEPTH: Final = {
    Pipeline.NONE: 1.0,
    Pipeline.SPARSE_DIST: 2.0,
    Pipeline.PREFETCH_SPARSE_DIST: 3.0,
    Pipeline.HUGECTR: 2.0,
}
"""Batches of indices in flight per pipeline (TorchRec train_pipeline)."""

_LENGTH_BYTES: Final = 4.0
_GRADIENT_BYTES: Final = 4.0


class Memory(IntEnum):
    """Columns of memory, after the lookup and communication columns."""

    WEIGHTS = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    CACHE = 3
    BUFFERS = 4
    HOST = 5


LOOKUP: Final = 0
INPUT: Final = LOOKUP + len(KERNELS) * NUM_LOOKUP_WORK
OUTPUT: Final = INPUT + len(FAMILIES)
CALLS: Final = OUTPUT + len(FAMILIES)
REPLICATED: Final = CALLS + len(FAMILIES) * len(KERNELS) + 1
MEMORY: Final = REPLICATED + 1
NUM_COLUMNS: Final = MEMORY + len(Memory)
"""Column blocks: lookup work per kernel; per family bytes from each source rank (input) and to each
destination rank (output); shards per (family, kernel) and replicated tables (calls); gradient bytes
of replicated tables; memory."""


def lookup_columns(kernel: ComputeKernel) -> slice:
    """Columns of one kernel's lookup work."""
    start = LOOKUP + KERNELS.index(kernel) * NUM_LOOKUP_WORK
    return slice(start, start + NUM_LOOKUP_WORK)


def call_column(sharding_type: ShardingType, kernel: ComputeKernel) -> int:
    """Column that counts shards of one fused call."""
    if sharding_type is ShardingType.DATA_PARALLEL:
        return REPLICATED - 1
    return CALLS + FAMILIES.index(sharding_type) * len(KERNELS) + KERNELS.index(kernel)


class WorkModel:
    """Turns shards into work for one workload on one topology."""

    def __init__(self, workload: Workload, topology: Topology, lookup: AbstractLookupModel) -> None:
        """Keep the three; nothing is computed yet."""
        self.workload = workload
        self.topology = topology
        self.lookup = lookup
        self._tables = {t.name: t for t in workload.tables}
        self._known: dict[tuple[object, ...], FloatArray] = {}

    def option_work(self, option: ShardingOption) -> FloatArray:
        """Work of an option before it is placed.

        Returns:
            Spread uniform: ``[W, columns]``, what each rank gets. Spread ranks:
            ``[pieces, columns]``, what the chosen rank gets. Spread hosts:
            ``[pieces, L, columns]``, what the L ranks of the chosen host get.
        """
        table = self._tables[option.table]
        local, world = self.topology.local_world_size, self.topology.world_size
        replicated = option.sharding_type is ShardingType.DATA_PARALLEL
        placement = place(
            option,
            table.num_embeddings,
            (0,) * option.num_pieces,
            world_size=1 if replicated else world,
            local_world_size=local,
        )
        rows = self._placement_rows(placement, table)
        if replicated:
            return np.repeat(rows, world, axis=0)
        if option.spread is Spread.HOSTS:
            return rows.reshape(option.num_pieces, local, NUM_COLUMNS)
        return rows

    def plan_work(self, plan: Plan) -> FloatArray:
        """Work of any plan, ``[W, columns]``."""
        work = np.zeros((self.topology.world_size, NUM_COLUMNS))
        for placement in plan.placements:
            rows = self._placement_rows(placement, self._tables[placement.table])
            np.add.at(work, np.array(placement.ranks, dtype=int), rows)
        return work

    def _placement_rows(self, placement: TablePlacement, table: Table) -> FloatArray:
        """Work of each shard, ``[shards, columns]``; alike shards are priced once."""
        family, kernel = self._family(placement), placement.kernel
        ratio, anywhere = placement.cache_load_factor_ratio, table.distribution.scattered
        rows = []
        for shard in placement.shards:
            offset = 0 if anywhere else shard.row_offset
            key = (table.name, family, kernel, ratio, offset, shard.num_rows, shard.num_cols)
            if key not in self._known:
                self._known[key] = self._shard_work(shard, table, family, kernel, ratio)
            rows.append(self._known[key])
        return np.stack(rows)

    def _family(self, placement: TablePlacement) -> ShardingType:
        """The collectives a placement uses.

        Row splits over *some* ranks, which TorchRec cannot run but HugeCTR does, send partial sums
        to their destination like table-wise shards.
        """
        world, local = self.topology.world_size, self.topology.local_world_size
        ranks = placement.ranks
        if placement.sharding_type is ShardingType.ROW_WISE and ranks != tuple(range(world)):
            return ShardingType.TABLE_WISE
        if placement.sharding_type in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
            blocks = [ranks[i : i + local] for i in range(0, len(ranks), local)]
            if any(b != tuple(range(b[0], b[0] + local)) or b[0] % local for b in blocks):
                return ShardingType.TABLE_WISE
        return placement.sharding_type

    def _shard_work(
        self,
        shard: Shard,
        table: Table,
        family: ShardingType,
        kernel: ComputeKernel,
        cache_ratio: float | None,
    ) -> FloatArray:
        workload, world = self.workload, self.topology.world_size
        work = np.zeros(NUM_COLUMNS)
        replicated = family is ShardingType.DATA_PARALLEL
        batch = float(workload.local_batch_size)
        sources = 1.0 if replicated else float(world)
        share = (
            1.0 if replicated else table.distribution.range_share(shard.row_offset, shard.num_rows)
        )
        local_indices = batch * table.pooling_factor
        pooled = table.pooling is not Pooling.NONE
        bags = batch * (len(table.features) if pooled else table.pooling_factor * share)
        lookup = LookupShard(
            table=table,
            kernel=kernel,
            row_offset=shard.row_offset,
            num_rows=shard.num_rows,
            num_cols=shard.num_cols,
            num_indices=sources * local_indices * share,
            num_table_indices=sources * local_indices,
            num_bags=sources * bags,
            output_element_bytes=workload.output_dtype.num_bytes,
            index_bytes=workload.index_bytes,
            optimizer=workload.optimizer,
            cache_load_factor_ratio=cache_ratio,
        )
        work[lookup_columns(kernel)] = self.lookup.shard_work(lookup, self.topology)
        work[call_column(family, kernel)] = 1.0
        index_bytes = workload.index_bytes + (4.0 if table.is_weighted else 0.0)
        arriving = local_indices * share * index_bytes + batch * len(table.features) * _LENGTH_BYTES
        leaving = bags * shard.num_cols * workload.output_dtype.num_bytes
        if replicated:
            cells = table.num_embeddings * table.embedding_dim
            work[REPLICATED] = cells * _GRADIENT_BYTES
        else:
            work[INPUT + FAMILIES.index(family)] = arriving
            work[OUTPUT + FAMILIES.index(family)] = leaving
        depth = PIPELINE_DEPTH[workload.pipeline]
        work[MEMORY + Memory.BUFFERS] = sources * (depth * arriving + 2.0 * leaving)
        work[MEMORY:] += _table_memory(shard, table, workload.optimizer, kernel, cache_ratio)
        return work


def _table_memory(
    shard: Shard,
    table: Table,
    optimizer: Optimizer,
    kernel: ComputeKernel,
    cache_ratio: float | None,
) -> FloatArray:
    """Bytes of weights, optimizer state, gradients and cache of one shard."""
    memory = np.zeros(len(Memory))
    weights = float(shard.num_rows) * shard.num_cols * table.dtype.num_bytes
    state = shard.num_rows * optimizer.state_bytes_per_row(shard.num_cols)
    if kernel in (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING):
        memory[Memory.HOST] = weights + state
        ratio = cache_ratio or 0.0
        bookkeeping = shard.num_rows * (4.0 + 16.0 * ratio) if ratio else 0.0
        memory[Memory.CACHE] = ratio * (weights + state) + bookkeeping
        return memory
    memory[Memory.WEIGHTS] = weights
    memory[Memory.OPTIMIZER] = state
    if kernel is ComputeKernel.DENSE:
        memory[Memory.GRADIENTS] = shard.num_rows * shard.num_cols * _GRADIENT_BYTES
    return memory
