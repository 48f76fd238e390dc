"""The interface of a lookup model: work adds up over shards, time is a function of the sum.

TorchRec fuses all tables of one kernel group on a rank into one call, so bytes add and times do
not. A model therefore answers twice: what one shard contributes (``LookupWork``), and how long one
fused call takes on the sum of the contributions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.workload import Optimizer, Table

FloatArray = NDArray[np.float64]


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
    table; ``num_bags`` output vectors of ``num_cols`` elements leave it.
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


class AbstractLookupModel(ABC):
    """Predicts the time of fused table-batched lookups on one kind of device."""

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def shard_work(self, shard: LookupShard, topology: Topology) -> FloatArray:
        """What the shard adds to its kernel group, shape ``[NUM_LOOKUP_WORK]``, non-negative."""

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
