"""Single shards, for models of lookups that price columns of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.lookup.base import (
    KERNELS,
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    LookupShards,
    TableColumns,
)
from costmodels.shard_work.work import LOOKUP
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.workload import Optimizer, Table

NUMBERS = (
    *("row_offset", "num_rows", "num_cols"),
    *("num_indices", "num_table_indices", "num_bags"),
)
"""What each shard has of its own, beside its table, kernel and cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShard:
    """One shard; fields mean what they mean in ``LookupShards``."""

    table: Table
    kernel: ComputeKernel
    row_offset: int
    num_rows: int
    num_cols: int
    num_indices: float
    num_table_indices: float
    num_bags: float
    output_element_bytes: float
    index_bytes: int
    optimizer: Optimizer
    cache_load_factor_ratio: float | None

    @property
    def columns(self) -> LookupShards:
        """The shard as columns of one entry."""
        return LookupShards(
            tables=TableColumns((self.table,)),
            table=np.zeros(1, dtype=np.int64),
            kernel=np.array([KERNELS.index(self.kernel)]),
            cache_load_factor_ratio=np.array([self.cache_load_factor_ratio or 0.0]),
            output_element_bytes=int(self.output_element_bytes),
            index_bytes=self.index_bytes,
            optimizer=self.optimizer,
            **{name: np.array([getattr(self, name)]) for name in NUMBERS},
        )


def singles(shards: LookupShards) -> list[OneShard]:
    """The shards one by one."""
    found = []
    for i, (at, kernel) in enumerate(zip(shards.table, shards.kernel, strict=True)):
        table, ratio = shards.tables.tables[at], float(shards.cache_load_factor_ratio[i])
        cached = KERNELS[kernel] is ComputeKernel.FUSED_UVM_CACHING
        found.append(
            OneShard(
                table=table,
                kernel=KERNELS[kernel],
                output_element_bytes=shards.output_element_bytes,
                index_bytes=shards.index_bytes,
                optimizer=table.optimizer or shards.optimizer,
                cache_load_factor_ratio=ratio if cached else None,
                **{name: getattr(shards, name)[i].item() for name in NUMBERS},
            )
        )
    return found


def work_of_one(model: AbstractLookupModel, shard: OneShard, topology: Topology) -> FloatArray:
    """What one shard adds to the work of its call, ``[NUM_LOOKUP_WORK]``."""
    return model.checked_work(shard.columns, topology)[0]


def lookup_columns(kernel: ComputeKernel) -> slice:
    """The columns of work that are those of one kernel's lookups."""
    start = LOOKUP + KERNELS.index(kernel) * NUM_LOOKUP_WORK
    return slice(start, start + NUM_LOOKUP_WORK)
