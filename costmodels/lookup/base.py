"""The interface of a lookup model: work adds up over shards, and time is a function of the sum.

On each rank TorchRec looks up all shards of one sharding type and kernel by one fused call. The
bytes of such a call are the sum over its shards, but its seconds are not the sum of the seconds of
single lookups. A model therefore answers two questions: what one shard adds to the work of a call
(``LookupWork``), and how many seconds a call with a given work takes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple, NoReturn, Self, final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.discovery import model_words
from costmodels.distribution.base import side_by_side
from costmodels.errors import refuse
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import Optimizer, Pooling, Table, Workload

KERNELS: Final = tuple(ComputeKernel)
"""All compute kernels; the column ``kernel`` of shards holds positions in this tuple."""


class LookupWork(IntEnum):
    """Columns of the work of lookups on one rank in an iteration, which add up over shards.

    Columns ending in ``DRAM``, ``L2`` or ``HOST_LINK`` are bytes of device memory, of the device's
    second-level cache, and of the link to the host. Bytes of ``DRAM`` and ``HOST_LINK`` are
    *effective*: they are divided by the efficiency of the access pattern, so that the streaming
    bandwidth (for the link, that of one direction) turns them into seconds.

    - ``INDICES``: indices that the backward pass sorts.
    - ``STREAM_DRAM``: indices, weights, offsets and outputs of the forward pass.
    - ``FORWARD_ROWS_DRAM``, ``FORWARD_ROWS_L2``, ``FORWARD_HOST_LINK``: rows that are looked up,
      and rows that move between a cache and host memory before that.
    - ``BACKWARD_GRADIENTS_L2``: gradients of bags, each time they are read but the first.
    - ``BACKWARD_ROWS_DRAM``: rows that are updated, and the first read of the gradients of bags.
    - ``BACKWARD_HOST_LINK``: rows, or optimizer states, that are updated in host memory.
    - ``CACHE_INDICES``: indices that are searched in a cache in front of host memory.
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


class TableColumns:
    """What shards need to know of their tables, as arrays ``[T]`` with one entry for each table.

    ``laws`` holds the index distributions of all tables, equal ones only once; ``law[i]`` is the
    position of that of table i. ``optimizer[i]`` is the position of its own optimizer among all
    kinds, or -1 if it has none of its own.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        """Read these tables."""
        known = {law: i for i, law in enumerate(dict.fromkeys(t.distribution for t in tables))}
        updates, own = [t.row_update for t in tables], [t.optimizer for t in tables]
        self.tables, self.laws = tuple(tables), side_by_side(tuple(known))
        self.law: IntArray = _column(int, (known[t.distribution] for t in tables))
        self.is_scattered: BoolArray = _column(bool, (t.distribution.scattered for t in tables))
        self.is_pooled: BoolArray = _column(bool, (t.pooling is not Pooling.NONE for t in tables))
        self.is_weighted: BoolArray = _column(bool, (t.is_weighted for t in tables))
        self.sorts: BoolArray = _column(bool, (u.sorts for u in updates))
        each_index = RowUpdate.PER_INDEX
        self.updates_each_index: BoolArray = _column(bool, (u is each_index for u in updates))
        once = (t.deduplicates_indices for t in tables)
        self.deduplicates_indices: BoolArray = _column(bool, once)
        self.num_features: IntArray = _column(int, (len(t.features) for t in tables))
        self.num_embeddings: IntArray = _column(int, (t.num_embeddings for t in tables))
        self.embedding_dim: IntArray = _column(int, (t.embedding_dim for t in tables))
        self.pooling_factor: FloatArray = _column(float, (t.pooling_factor for t in tables))
        self.element_bytes: FloatArray = _column(float, (t.dtype.num_bytes for t in tables))
        kinds = (-1 if kind is None else _OPTIMIZERS.index(kind) for kind in own)
        self.optimizer: IntArray = _column(int, kinds)


def _column(kind: type, values: Iterable[float]) -> Any:
    """An array of values of a kind."""
    return np.fromiter(values, dtype=kind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shards:
    """Shards as columns ``[n]`` with one entry for each.

    Attributes:
        table: ``[n]`` position of each shard's table among the tables.
        kernel: ``[n]`` position of each shard's kernel in ``KERNELS``.
        row_offset: ``[n]`` first row of the shard.
        num_rows: ``[n]`` rows of the shard.
        num_cols: ``[n]`` columns of the shard.
        cache_load_factor_ratio: ``[n]`` rows of a cache in front of host memory, over the rows of
            the shard; 0 without a cache.
    """

    table: IntArray
    kernel: IntArray
    row_offset: IntArray
    num_rows: IntArray
    num_cols: IntArray
    cache_load_factor_ratio: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookupShards(Shards):
    """Shards as a lookup model sees them, with what arrives at them in an iteration.

    Attributes:
        tables: the tables that the shards are cut from.
        num_indices: ``[n]`` indices that the shard looks up.
        num_table_indices: ``[n]`` indices that are drawn for the whole table; ``num_indices`` of
            them fall on the rows of the shard.
        num_bags: ``[n]`` output vectors of ``num_cols`` elements that leave the shard.
        output_element_bytes: bytes of an element of the output vectors.
        index_bytes: bytes of an index.
        optimizer: what updates the rows of the tables that have no optimizer of their own.
        lookahead_batches: how many coming batches are known to the cache, which keeps their rows.
        prefetches: whether the rows of the next batch enter the cache while this one is in use.
    """

    tables: TableColumns
    num_indices: FloatArray
    num_table_indices: FloatArray
    num_bags: FloatArray
    optimizer: Optimizer
    output_element_bytes: int = 4
    index_bytes: int = 8
    lookahead_batches: int = 0
    prefetches: bool = False

    def __len__(self) -> int:
        """Number of shards."""
        return len(self.table)

    @classmethod
    def whole(
        cls,
        tables: TableColumns,
        num_indices: FloatArray,
        num_bags: FloatArray,
        kernel: ComputeKernel = ComputeKernel.FUSED,
        cache_load_factor_ratio: float = 0.0,
        **common: Any,
    ) -> Self:
        """Whole tables, each of them one shard, that one kernel looks up.

        Args:
            tables: the tables.
            num_indices: ``[T]`` indices that each table looks up.
            num_bags: ``[T]`` output vectors of those tables that are pooled.
            kernel: what looks them up.
            cache_load_factor_ratio: 0 without a cache.
            common: what all shards have in common: other fields.
        """
        size = len(tables.tables)
        return cls(
            tables=tables,
            table=np.arange(size),
            kernel=np.full(size, KERNELS.index(kernel)),
            row_offset=np.zeros(size, dtype=np.int64),
            num_rows=tables.num_embeddings,
            num_cols=tables.embedding_dim,
            num_indices=num_indices,
            num_table_indices=num_indices,
            num_bags=np.where(tables.is_pooled, num_bags, num_indices),
            cache_load_factor_ratio=np.full(size, cache_load_factor_ratio),
            **common,
        )

    def chosen(self, where: BoolArray | IntArray) -> Self:
        """The shards at some positions, or those where a mask ``[n]`` is True."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        some: dict[str, Any] = {n: x[where] for n, x in values.items() if isinstance(x, np.ndarray)}
        return replace(self, **some)

    @property
    def is_used(self) -> BoolArray:
        """``[n]`` whether a shard has rows and receives indices; others are not looked up."""
        return np.asarray((self.num_rows > 0) & (self.num_indices > 0))

    @property
    def law(self) -> IntArray:
        """``[n]`` position in ``tables.laws`` of the distribution of each shard's table."""
        return np.asarray(self.tables.law[self.table])

    @property
    def row_bytes(self) -> FloatArray:
        """``[n]`` bytes of the weights in one row of each shard."""
        return np.asarray(self.num_cols * self.tables.element_bytes[self.table])

    @property
    def rows_ratio(self) -> FloatArray:
        """``[n]`` share (0..1) of the table's rows that each shard holds."""
        return np.minimum(1.0, self.num_rows / self.tables.num_embeddings[self.table])

    @property
    def state_bytes_per_row(self) -> FloatArray:
        """``[n]`` bytes of the optimizer state of one row of each shard."""
        own = self.tables.optimizer[self.table]
        kind = np.where(own < 0, _OPTIMIZERS.index(self.optimizer), own)
        return np.asarray(_STATE_PER_ROW[kind] + _STATE_PER_COLUMN[kind] * self.num_cols)

    @property
    def whole_gradient_bytes(self) -> FloatArray:
        """``[n]`` bytes that a backward pass moves for the gradient of a replicated table."""
        return np.asarray(_DENSE_PASSES * 4.0 * self.num_rows.astype(float) * self.num_cols)

    def runs(self, kernel: ComputeKernel) -> BoolArray:
        """``[n]`` whether a shard is looked up by this kernel."""
        return np.asarray(self.kernel == KERNELS.index(kernel))

    def unique_rows(self) -> FloatArray:
        """Expected distinct rows ``[n]`` of each shard in a call."""
        return self.tables.laws.unique_rows_in_range(
            self.law, self.num_table_indices, self.row_offset, self.num_rows
        )

    def misses(self, unique: FloatArray, cache_bytes: float | FloatArray) -> FloatArray:
        """Rows ``[n]`` that a cache on the device fetches in a call.

        Each distinct row is fetched at least once.

        The rows of a shard compete with those of the same shard only. A shard with a share of the
        rows of its table is taken to see the law of the whole table, with a cache larger by that
        share.

        Args:
            unique: ``[n]`` expected distinct rows of each shard in the call.
            cache_bytes: size of the cache, of all shards or of each.
        """
        share = self.rows_ratio
        held = cache_bytes / self.row_bytes / share
        misses = share * self.tables.laws.expected_misses(self.law, self.num_table_indices, held)
        return np.minimum(np.maximum(misses, unique), self.num_indices)

    def missing_rows(self) -> FloatArray:
        """Distinct rows ``[n]`` of a batch that a cache in front of host memory does not hold."""
        held = self.cache_load_factor_ratio * self.tables.num_embeddings[self.table]
        missing = self.tables.laws.expected_unique_misses(
            self.law, self.num_table_indices, held, self.lookahead_batches
        )
        return np.asarray(self.rows_ratio * missing)


_OPTIMIZERS: Final = tuple(Optimizer)
_STATE_PER_ROW: Final = np.array([o.state_bytes_per_row(0) for o in _OPTIMIZERS])
_STATE_PER_COLUMN: Final = (
    np.array([o.state_bytes_per_row(1) for o in _OPTIMIZERS]) - _STATE_PER_ROW
)
"""Bytes of state of each row, and of each column of a row: the state is linear in the columns."""
_BACKWARD_KERNELS: Final = 3.0
"""Kernels of a backward lookup that follow each other: sort, run lengths, update."""
_CACHE_KERNELS: Final = 25.0
"""Kernels that a cache in front of host memory runs before a lookup: two sorts of several passes
each, the search for the indices, and the insertion of missing rows."""
_DENSE_PASSES: Final = 6.0
"""Reads and writes of a whole replicated table in a backward pass: two each for writing, reducing
and applying its gradient. Not fitted, because no such kernel is among the measured ones."""


class CallFloor(NamedTuple):
    """Seconds of a fused call that do not grow with its work.

    Attributes:
        forward_s: of the forward lookup.
        backward_s: of the backward lookup with its update.
        fetch_s: of what a cache in front of host memory does before the forward lookup.
    """

    forward_s: float
    backward_s: float
    fetch_s: float


class AbstractLookupModel(ABC):
    """Predicts the seconds of fused table-batched lookups on one kind of device."""

    __slots__ = ()

    @abstractmethod
    def shards_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """What each shard adds to the work of its call, ``[n, NUM_LOOKUP_WORK]``, never negative.

        Models are asked for shards that have rows and receive indices; others have no work.
        A large plan has many thousands of different shards, so that arithmetic on the columns is
        much faster than a loop over shards.
        """

    @final
    def checked_work(self, shards: LookupShards, topology: Topology) -> FloatArray:
        """The work of shards, for use by everything that adds it up.

        Raises:
            InvalidValueError: the work has another shape, or is below 0 or not finite.
        """
        used, work = shards.is_used, np.zeros((len(shards), NUM_LOOKUP_WORK))
        if used.any():
            found, size = self.shards_work(shards.chosen(used), topology), int(used.sum())
            if np.shape(found) != (size, NUM_LOOKUP_WORK):
                expected = f"not {(size, NUM_LOOKUP_WORK)}"
                self._refuse(f"shards_work gives an array of shape {np.shape(found)}, {expected}")
            work[used] = found
        wrong = ~((work >= 0.0) & (work < np.inf))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            table, name = shards.tables.tables[shards.table[row]].name, LookupWork(column).name
            self._refuse(
                f"a shard of table {table!r} has {work[row, column]:.6g} of {name}, but work must "
                "be finite and at least 0"
            )
        return work

    def _refuse(self, fault: str) -> NoReturn:
        refuse(f"{model_words(self)}: {fault}; correct the model")

    @abstractmethod
    def forward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds ``[...]`` of the forward pass of a call, without the fixed cost of launches.

        The result must be convex in the work and never fall when work is added, and twice the work
        must take twice as long: the lower bounds of a search rest on this.

        Args:
            work: ``[..., NUM_LOOKUP_WORK]``, summed over the shards of the call.
            topology: has the device and the link to its host.
        """

    @abstractmethod
    def backward_time(self, work: FloatArray, topology: Topology) -> FloatArray:
        """Seconds ``[...]`` of the backward pass with its update; as for :meth:`forward_time`."""

    def call_floor(self, kernel: ComputeKernel, topology: Topology) -> CallFloor:
        """Seconds of every fused call of a kernel, whatever its work.

        Unless a model knows better, they are the least time of a kernel on the device for each of
        the kernels that follow each other.
        """
        latency_s = topology.device.kernel_latency_s
        cached = kernel is ComputeKernel.FUSED_UVM_CACHING
        return CallFloor(
            forward_s=latency_s,
            backward_s=_BACKWARD_KERNELS * latency_s,
            fetch_s=_CACHE_KERNELS * latency_s if cached else 0.0,
        )

    def for_calls(
        self, shards: LookupShards, topology: Topology, workload: Workload | None = None
    ) -> "AbstractLookupModel":
        """The model that prices the calls of some tables; this one, unless it says otherwise.

        Args:
            shards: the whole tables, with what arrives at them in an iteration.
            topology: the system.
            workload: what is trained, where that is known; it says whose kernels run.
        """
        del shards, topology, workload
        return self

    def sigma_ratio(self, topology: Topology) -> float | None:
        """Log-standard deviation of what the model misses where rates are known.

        None, unless a model knows better, for that of lookups of all frameworks
        (:mod:`costmodels.uncertainty`).
        """
        del topology
        return None

    def prefers_device(self, topology: Topology) -> bool:
        """Whether no lookup gets faster if shards move from device memory to host memory.

        True means: for any tables, if any number of shards change from ``fused`` to kernels that
        keep weights in host memory, the seconds of no call fall. A search then leaves such kernels
        out as long as device memory suffices. False if a model does not know.
        """
        del topology
        return False
