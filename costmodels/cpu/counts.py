"""What one step of a plan makes every rank do, as the counts that CPU models price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodels.cpu.exchange import beyond_caches
from costmodels.cpu.features import Access, CpuKernel
from costmodels.datatypes import FloatArray
from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Table, Workload

_INDEX_BYTES = 8.0
_LENGTH_BYTES = 4.0
_ELEMENT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLoad:
    """One shard of a step: its rank, its sharding type, and how it is looked up."""

    rank: int
    sharding_type: ShardingType
    access: Access

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the table."""
        return self.sharding_type is ShardingType.DATA_PARALLEL

    @property
    def kernel(self) -> CpuKernel:
        """What looks it up; steps that are counted so have pooled tables alone."""
        return CpuKernel.DENSE if self.replicated else CpuKernel.FUSED


def shard_loads(workload: Workload, plan: Plan, world_size: int) -> tuple[ShardLoad, ...]:
    """Every shard and what arrives at it, as in :class:`costmodels.shard_work.work.WorkModel`."""
    return tuple(_loads(workload, plan, world_size))


def _loads(workload: Workload, plan: Plan, world_size: int) -> Iterator[ShardLoad]:
    tables = {t.name: t for t in workload.tables}
    for placement in plan.placements:
        table = tables[placement.table]
        kind = placement.sharding_type
        sources = 1 if kind is ShardingType.DATA_PARALLEL else world_size
        batch = workload.local_batch_size * sources
        for shard in placement.shards:
            access = _access(table, shard.row_offset, shard.num_rows, shard.num_cols, batch)
            yield ShardLoad(rank=shard.rank, sharding_type=kind, access=access)


def _access(table: Table, offset: int, num_rows: int, num_cols: int, batch: int) -> Access:
    law = table.distribution
    _, probability = law.frequency_bins()
    drawn = batch * table.pooling_factor
    return Access(
        rows=law.range_rows(offset, num_rows),
        probability=probability,
        draws=law.effective_draws(drawn),
        num_indices=drawn * law.range_share(offset, num_rows),
        num_bags=float(batch * len(table.features)),
        num_cols=num_cols,
        num_rows=num_rows,
    )


def exchange_counts(
    loads: tuple[ShardLoad, ...], kind: ShardingType, rank: int, world_size: int
) -> tuple[FloatArray, FloatArray]:
    """Counts of one sharding type in the order of the exchange model: indices, then vectors.

    All zero where no table is sharded so.
    """
    own = [x for x in loads if x.sharding_type is kind]
    if not own:
        return np.zeros(5), np.zeros(4)
    lengths, arriving, leaving = np.zeros((3, world_size))
    for load in own:
        bags = load.access.num_bags / world_size
        lengths[load.rank] += _LENGTH_BYTES * bags
        arriving[load.rank] += load.access.num_indices / world_size * _INDEX_BYTES
        leaving[load.rank] += bags * load.access.num_cols * _ELEMENT_BYTES
    arriving += lengths
    produced, joined = world_size * leaving[rank], leaving.sum()
    indices = np.array([1.0, lengths.sum(), lengths[rank], arriving.sum(), arriving[rank]])
    return indices, np.array([1.0, produced, joined, beyond_caches(produced + joined)])
