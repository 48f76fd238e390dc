"""What each rank does in one step of a plan, as the counts that the models of CPU cores price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodels.cpu.exchange import beyond_caches
from costmodels.cpu.features import Access
from costmodels.datatypes import FloatArray
from costmodels.measured.cpu_constants import CpuKernel
from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Table, Workload

_INDEX_BYTES = 8.0
"""Bytes of an index that is exchanged."""
_LENGTH_BYTES = 4.0
"""Bytes of the length of a bag that is exchanged."""
_ELEMENT_BYTES = 4.0
"""Bytes of an element of a vector that is exchanged (fp32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLoad:
    """One shard in a step.

    Attributes:
        rank: the rank that has it.
        sharding_type: the sharding type of its table.
        access: how it is looked up.
    """

    rank: int
    sharding_type: ShardingType
    access: Access

    @property
    def replicated(self) -> bool:
        """Whether every rank has the whole table."""
        return self.sharding_type is ShardingType.DATA_PARALLEL

    @property
    def kernel(self) -> CpuKernel:
        """The kernel that looks it up, provided that its table is pooled."""
        return CpuKernel.DENSE if self.replicated else CpuKernel.FUSED


def shard_loads(workload: Workload, plan: Plan, world_size: int) -> tuple[ShardLoad, ...]:
    """Every shard of a plan and the indices that arrive at it.

    They are counted as in :class:`costmodels.shard_work.work.WorkModel`.
    """
    return tuple(_loads(workload, plan, world_size))


def _loads(workload: Workload, plan: Plan, world_size: int) -> Iterator[ShardLoad]:
    """The shards of all placements, one after the other."""
    tables = {t.name: t for t in workload.tables}
    for placement in plan.placements:
        table = tables[placement.table]
        kind = placement.sharding_type
        sources = 1 if kind is ShardingType.DATA_PARALLEL else world_size
        batch = workload.batch_size_per_rank * sources
        for shard in placement.shards:
            access = _access(table, shard.row_offset, shard.num_rows, shard.num_cols, batch)
            yield ShardLoad(rank=shard.rank, sharding_type=kind, access=access)


def _access(table: Table, offset: int, num_rows: int, num_cols: int, batch: float) -> Access:
    """How a shard is accessed that begins at row ``offset`` and sees ``batch`` samples."""
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
    """What the exchanges of one sharding type take on one rank; all 0 without tables of this type.

    Args:
        loads: the shards of the step.
        kind: the sharding type.
        rank: the rank.
        world_size: number of ranks.

    Returns:
        Counts of the exchange of indices: 1; bytes of lengths of all ranks, and of this rank; bytes
        of indices and lengths that arrive at all ranks, and at this rank. Counts of the exchange of
        vectors: 1; bytes of the vectors that this rank has looked up for all ranks; bytes of the
        vectors that it joins; and those bytes of both that the caches cannot hold.
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
