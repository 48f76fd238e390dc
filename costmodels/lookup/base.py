"""The interface of a lookup model: work adds up over shards, time is a function of the sum.

TorchRec fuses all tables of one kernel group on a rank into one call, so bytes add and times do
not. A model therefore answers twice: what one shard contributes (``LookupWork``), and how long one
fused call takes on the sum of the contributions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.distribution.base import Laws, side_by_side
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.training.row_updates import RowUpdate
from costmodels.workload import Optimizer, Pooling, Table

KERNELS: Final = tuple(ComputeKernel)
"""Kernels in the order in which columns of shards number them."""


class LookupWork(IntEnum):
    """Columns of a lookup's work: additive over the shards of one kernel group on one rank.

    Byte columns ending in ``DRAM`` are effective bytes: real bytes divided by the efficiency of the
    access pattern, so that dividing by the streaming bandwidth gives the time; so are those ending
    in ``HOST_LINK``, for one direction of the link. ``BACKWARD_ROWS_DRAM`` includes the gradients
    of bags; ``CACHE_INDICES`` are looked up in a cache in front of host memory.
    """

    INDICES = 0
    STREAM_DRAM = 1
    FORWARD_ROWS_DRAM = 2
    FORWARD_ROWS_L2 = 3
    FORWARD_HOST_LINK = 4
    BACKWARD_GRADIENTS_L2 = 5
    BACKWARD_ROWS_DRAM = 6
    BACKWARD_HOST_LINK = 7
    CACHE_INDICES = 8


NUM_LOOKUP_WORK = len(LookupWork)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupShard:
    """One shard as the lookup sees it, per iteration.

    ``num_indices`` lookups arrive at this shard out of ``num_table_indices`` drawn for the whole
    table; ``num_bags`` output vectors of ``num_cols`` elements leave it. A cache is filled from the
    next ``lookahead_batches``.
    """

    table: Table
    kernel: ComputeKernel
    row_offset: int
    num_rows: int
    num_cols: int
    num_indices: float
    num_table_indices: float
    num_bags: float
    output_element_bytes: int
    index_bytes: int
    optimizer: Optimizer
    cache_load_factor_ratio: float | None
    lookahead_batches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableColumns:
    """What shards need of their tables: arrays with one entry per table.

    ``law[i]`` is the position of table i's law in ``laws``; equal laws are there once.
    """

    tables: tuple[Table, ...]
    laws: Laws
    law: IntArray
    is_scattered: BoolArray
    is_pooled: BoolArray
    is_weighted: BoolArray
    sorts: BoolArray
    updates_each_index: BoolArray
    deduplicates_indices: BoolArray
    num_features: IntArray
    num_embeddings: IntArray
    embedding_dim: IntArray
    pooling_factor: FloatArray
    element_bytes: FloatArray

    @staticmethod
    def of(tables: Sequence[Table]) -> TableColumns:
        """Read the tables once."""
        known = {law: i for i, law in enumerate(dict.fromkeys(t.distribution for t in tables))}
        return TableColumns(
            tables=tuple(tables),
            laws=side_by_side(tuple(known)),
            law=np.array([known[t.distribution] for t in tables], dtype=np.int64),
            is_scattered=np.array([t.distribution.scattered for t in tables], dtype=bool),
            is_pooled=np.array([t.pooling is not Pooling.NONE for t in tables], dtype=bool),
            is_weighted=np.array([t.is_weighted for t in tables], dtype=bool),
            sorts=np.array([t.row_update.sorts for t in tables], dtype=bool),
            updates_each_index=np.array(
                [t.row_update is RowUpdate.PER_INDEX for t in tables], dtype=bool
            ),
            deduplicates_indices=np.array([t.deduplicates_indices for t in tables], dtype=bool),
            num_features=np.array([len(t.features) for t in tables], dtype=np.int64),
            num_embeddings=np.array([t.num_embeddings for t in tables], dtype=np.int64),
            embedding_dim=np.array([t.embedding_dim for t in tables], dtype=np.int64),
            pooling_factor=np.array([t.pooling_factor for t in tables], dtype=float),
            element_bytes=np.array([t.dtype.num_bytes for t in tables], dtype=float),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookupShards:
    """Many shards as columns ``[n]``; the fields of the same name are those of ``LookupShard``.

    Attributes:
        tables: the tables; ``table`` numbers them.
        kernel: positions in ``KERNELS``.
        cache_load_factor_ratio: 0 where there is none.
    """

    tables: TableColumns
    table: IntArray
    kernel: IntArray
    row_offset: IntArray
    num_rows: IntArray
    num_cols: IntArray
    num_indices: FloatArray
    num_table_indices: FloatArray
    num_bags: FloatArray
    cache_load_factor_ratio: FloatArray
    output_element_bytes: int
    index_bytes: int
    optimizer: Optimizer
    lookahead_batches: int = 0

    def __len__(self) -> int:
        """Number of shards."""
        return len(self.table)

    @staticmethod
    def of(shard: LookupShard) -> LookupShards:
        """A single shard as columns of one entry."""
        return LookupShards(
            tables=TableColumns.of((shard.table,)),
            table=np.zeros(1, dtype=np.int64),
            kernel=np.array([KERNELS.index(shard.kernel)]),
            row_offset=np.array([shard.row_offset], dtype=np.int64),
            num_rows=np.array([shard.num_rows], dtype=np.int64),
            num_cols=np.array([shard.num_cols], dtype=np.int64),
            num_indices=np.array([shard.num_indices], dtype=float),
            num_table_indices=np.array([shard.num_table_indices], dtype=float),
            num_bags=np.array([shard.num_bags], dtype=float),
            cache_load_factor_ratio=np.array([shard.cache_load_factor_ratio or 0.0]),
            output_element_bytes=shard.output_element_bytes,
            index_bytes=shard.index_bytes,
            optimizer=shard.optimizer,
            lookahead_batches=shard.lookahead_batches,
        )

    def shard(self, index: int) -> LookupShard:
        """One of the shards."""
        kernel = KERNELS[int(self.kernel[index])]
        ratio = float(self.cache_load_factor_ratio[index])
        return LookupShard(
            table=self.tables.tables[int(self.table[index])],
            kernel=kernel,
            row_offset=int(self.row_offset[index]),
            num_rows=int(self.num_rows[index]),
            num_cols=int(self.num_cols[index]),
            num_indices=float(self.num_indices[index]),
            num_table_indices=float(self.num_table_indices[index]),
            num_bags=float(self.num_bags[index]),
            output_element_bytes=self.output_element_bytes,
            index_bytes=self.index_bytes,
            optimizer=self.optimizer,
            lookahead_batches=self.lookahead_batches,
            cache_load_factor_ratio=ratio if kernel is ComputeKernel.FUSED_UVM_CACHING else None,
        )

    def chosen(self, where: BoolArray | IntArray) -> LookupShards:
        """Some of the shards."""
        return LookupShards(
            tables=self.tables,
            table=self.table[where],
            kernel=self.kernel[where],
            row_offset=self.row_offset[where],
            num_rows=self.num_rows[where],
            num_cols=self.num_cols[where],
            num_indices=self.num_indices[where],
            num_table_indices=self.num_table_indices[where],
            num_bags=self.num_bags[where],
            cache_load_factor_ratio=self.cache_load_factor_ratio[where],
            output_element_bytes=self.output_element_bytes,
            index_bytes=self.index_bytes,
            optimizer=self.optimizer,
            lookahead_batches=self.lookahead_batches,
        )

    @property
    def is_used(self) -> BoolArray:
        """Shards that have rows and receive indices; the others are not looked up."""
        return np.asarray((self.num_rows > 0) & (self.num_indices > 0))

    @property
    def laws(self) -> Laws:
        """The laws of all tables; ``law`` numbers them."""
        return self.tables.laws

    @property
    def law(self) -> IntArray:
        """Position of each shard's law."""
        return np.asarray(self.tables.law[self.table])

    @property
    def row_bytes(self) -> FloatArray:
        """Bytes of weights of one row of each shard."""
        return np.asarray(self.num_cols * self.tables.element_bytes[self.table])

    @property
    def rows_ratio(self) -> FloatArray:
        """Share (0..1) of the table's rows that each shard holds."""
        return np.minimum(1.0, self.num_rows / self.tables.num_embeddings[self.table])

    @property
    def state_bytes_per_row(self) -> FloatArray:
        """Bytes of optimizer state of one row of each shard."""
        widths, index = np.unique(self.num_cols, return_inverse=True)
        state = [self.optimizer.state_bytes_per_row(int(width)) for width in widths]
        return np.array(state, dtype=float)[index]

    def runs(self, kernel: ComputeKernel) -> BoolArray:
        """Shards of one kernel."""
        return np.asarray(self.kernel == KERNELS.index(kernel))


class AbstractLookupModel(ABC):
    """Predicts the time of fused table-batched lookups on one kind of device."""

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """What the shard adds to its kernel group, shape ``[NUM_LOOKUP_WORK]``, non-negative."""

    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """:meth:`shard_work` of many shards, ``[n, NUM_LOOKUP_WORK]``.

        Models that can, replace it by arithmetic on the columns: a large plan has many thousands of
        shards that differ.
        """
        work = np.zeros((len(shards), NUM_LOOKUP_WORK))
        for index in range(len(shards)):
            work[index] = self.shard_work(shards.shard(index), topology)
        return work

    @abstractmethod
    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds of the forward call on summed work ``[..., NUM_LOOKUP_WORK]``.

        Without the fixed cost of a launch; convex, homogeneous and non-decreasing in the work.
        """

    @abstractmethod
    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds of backward and optimizer update, with the same properties."""

    def prefers_device(self, topology: Topology) -> bool:
        """Whether no lookup gets faster where shards move from device memory to host memory.

        Shards of any tables, all at once, from ``fused`` to kernels that keep weights in host
        memory. A search then need not look at those as long as device memory suffices. False unless
        a model knows better.
        """
        del topology
        return False
