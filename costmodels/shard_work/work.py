"""A plan is the sum of its shards' work.

The work of a rank is one row of numbers; the constants below name its columns.
:class:`WorkModel` computes such rows for shards, options and plans. Everything that a plan costs,
time and memory, is a function of its work ``[world_size, columns]``. A search can therefore add and
subtract rows instead of pricing plans from scratch.
"""

from collections.abc import Sequence
from dataclasses import fields
from enum import IntEnum
from functools import cached_property
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray, changes
from costmodels.dense.base import live_bytes, looked_up_bytes
from costmodels.lookup.base import KERNELS as KERNELS
from costmodels.lookup.base import (
    NUM_LOOKUP_WORK,
    AbstractLookupModel,
    LookupShards,
    LookupWork,
    Shards,
    TableColumns,
)
from costmodels.lookup.roofline import ATOMIC_PASSES
from costmodels.shard_work.cells import MOST_HASHED, TYPES, Cells, OptionCells, OptionWork
from costmodels.shard_work.wire import BACKWARD, FORWARD, Wire
from costmodels.shard_work.wire import EXCHANGING_TYPES as EXCHANGING_TYPES
from costmodels.sharding import BY_HOSTS, BY_ROWS, ComputeKernel, Plan, ShardingOption, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Pipeline, Workload

PIPELINE_DEPTH: Final = {
    Pipeline.NONE: 1.0,
    Pipeline.SPARSE_DIST: 4.0,
    Pipeline.PREFETCH_SPARSE_DIST: 5.0,
    Pipeline.HUGECTR: 2.0,
    Pipeline.LOOKAHEAD: 3.0,
    Pipeline.PRIORITIZED: 5.0,
}
"""Copies of a batch's indices that a pipeline holds at once, without those that ``lookahead`` adds.
TorchRec's (train_pipeline) holds three batches and what the exchange of the next one has given;
with prefetching, or where a batch is compared with the one before, one more."""

_LENGTH_BYTES: Final = 4.0
"""Bytes in the index exchange for the length of a bag, an int32."""
_DISTINCT_LENGTH_BYTES: Final = 8.0
"""The same with distinct indices: FBGEMM's ``jagged_unique_indices`` gives lengths of the type of
its offsets, int64."""
_GRADIENT_BYTES: Final = 4.0
"""Bytes of an element of the gradient of a replicated table, which is fp32."""


class Memory(IntEnum):
    """The columns of memory, which follow those of lookups and communication; all are bytes.

    ``HOST`` is host memory, all others are device memory. ``CACHE`` is what a cache in front of
    host memory takes, ``BUFFERS`` what indices and vectors take that are exchanged.
    """

    WEIGHTS = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    CACHE = 3
    BUFFERS = 4
    HOST = 5


LOOKUP: Final = 0
INPUT: Final = LOOKUP + len(KERNELS) * NUM_LOOKUP_WORK
OUTPUT: Final = INPUT + len(EXCHANGING_TYPES)
CALLS: Final = OUTPUT + len(EXCHANGING_TYPES)
REPLICATED: Final = CALLS + len(EXCHANGING_TYPES) * len(KERNELS) + 1
MEMORY: Final = REPLICATED + 1
NUM_COLUMNS: Final = MEMORY + len(Memory)
"""The first column of each block:

- ``LOOKUP``: lookup work of each kernel;
- ``INPUT``: for each sharding type, bytes of indices that come from each rank;
- ``OUTPUT``: for each sharding type, bytes of vectors that go to each rank;
- ``CALLS``: shards of each (sharding type, kernel), and replicated tables;
- ``REPLICATED``: gradient bytes of replicated tables;
- ``MEMORY``: see :class:`Memory`."""

FORWARD_OUTPUT: Final = NUM_COLUMNS
SECOND: Final = FORWARD_OUTPUT + len(EXCHANGING_TYPES)
FORWARD_SECOND: Final = SECOND + len(BY_HOSTS)
CODECS: Final = FORWARD_SECOND + len(BY_HOSTS)
NUM_COMPRESSED_COLUMNS: Final = CODECS + 2
"""The blocks that follow if an exchange is compressed. ``OUTPUT`` is then the mean of both
directions.

- ``FORWARD_OUTPUT``: bytes of vectors in the forward direction alone;
- ``SECOND`` and ``FORWARD_SECOND``: the same two for the exchange across hosts;
- ``CODECS``: bytes that the codecs of a rank read and write, forward and backward."""


def call_column(sharding_type: ShardingType, kernel: ComputeKernel) -> int:
    """The column that counts the shards of one fused call."""
    if sharding_type is ShardingType.DATA_PARALLEL:
        return REPLICATED - 1
    return CALLS + EXCHANGING_TYPES.index(sharding_type) * len(KERNELS) + KERNELS.index(kernel)


def sent_bytes(
    work: FloatArray, family: int, way: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """Bytes to each rank in the two exchanges of vectors of a sharding type, ``[...]`` each.

    The second exchange is that of types by hosts.

    Args:
        work: ``[..., columns]``.
        family: the sharding type.
        way: ``FORWARD`` or ``BACKWARD``; None for the mean of both directions.
    """
    first = work[..., OUTPUT + family]
    if work.shape[-1] == NUM_COLUMNS:
        return first, first
    by_hosts = EXCHANGING_TYPES[family] in BY_HOSTS
    at = BY_HOSTS.index(EXCHANGING_TYPES[family]) if by_hosts else 0
    second = work[..., SECOND + at] if by_hosts else first
    if way is None:
        return first, second
    ahead = work[..., FORWARD_OUTPUT + family]
    further = work[..., FORWARD_SECOND + at] if by_hosts else ahead
    if way == FORWARD:
        return ahead, further
    return np.maximum(2.0 * first - ahead, 0.0), np.maximum(2.0 * second - further, 0.0)


def _of_workload(workload: Workload) -> dict[str, Any]:
    """What the shards of a workload have in common, as fields of ``LookupShards``."""
    names = ("index_bytes", "optimizer", "lookahead_batches")
    return {
        "output_element_bytes": int(workload.output_dtype.num_bytes),
        "prefetches": workload.pipeline is Pipeline.PREFETCH_SPARSE_DIST,
        **{name: getattr(workload, name) for name in names},
    }


def whole_tables(workload: Workload, topology: Topology) -> LookupShards:
    """Every table in device memory as one shard, with all that is looked up in an iteration."""
    tables = TableColumns(workload.tables)
    batch = float(workload.batch_size_per_rank * topology.world_size)
    bags = np.asarray(batch * tables.num_features, dtype=float)
    indices = batch * tables.pooling_factor
    return LookupShards.whole(tables, indices, bags, **_of_workload(workload))


class WorkModel:
    """Counts the work of shards, for one workload on one topology."""

    def __init__(self, workload: Workload, topology: Topology, lookup: AbstractLookupModel) -> None:
        """Keep the arguments, and the tables as columns of numbers; nothing is counted yet."""
        self.workload = workload
        self.topology = topology
        self.lookup = lookup
        self.wire = Wire.of(workload, topology)
        self.columns = TableColumns(workload.tables)
        self._cells = OptionCells(workload, topology, self.columns)
        # 1 if gradients of vectors come from other ranks into a buffer of their own, else 0.
        self._is_exchanged = float(topology.world_size > 1)
        self.num_columns = NUM_COLUMNS if self.wire is None else NUM_COMPRESSED_COLUMNS

    @cached_property
    def _excess_ratio(self) -> float:
        """The share of what lookups need for a moment that goes beyond the peak without them.

        What they need in the backward pass takes the room that activations have left by then. The
        share is such that no rank is counted short, even if it has all tables; a rank that has only
        some of them may be counted long.
        """
        live, workload = live_bytes(self.workload), self.workload
        indices = workload.batch_size_per_rank * sum(t.pooling_factor for t in workload.tables)
        passing = _SORTED_BYTES * indices + self._is_exchanged * looked_up_bytes(workload)
        total = self.topology.world_size * passing
        room = live.peak_bytes - live.beside_lookups_bytes
        return max(0.0, 1.0 - room / total) if total else 1.0

    def options_work(self, options: Sequence[ShardingOption]) -> list[OptionWork]:
        """Work of options before they are placed, counted for all at once."""
        cells, layouts = self._cells.of(options)
        rows, works = self.cells_work(cells), list[OptionWork]()
        end = 0
        for x in layouts:
            begin, end = end, end + len(x.blocks) * len(x.widths)
            work = OptionWork(rows=rows[begin:end], index=x.where)
            works.append(work.merged() if len(x.blocks) > MOST_HASHED else work)
        return works

    def plan_work(self, plan: Plan) -> FloatArray:
        """Work of a plan, ``[W, columns]``.

        Raises:
            InvalidValueError: a shard is on a rank that does not exist.
        """
        work = np.zeros((self.topology.world_size, self.num_columns))
        runs = self._cells.runs_of(plan)
        if not len(runs.cell):
            return work
        # Runs that cover the same ranks are added up first, so that each range of ranks gets one
        # addition.
        order = np.lexsort((runs.length, runs.first))
        first, length = runs.first[order], runs.length[order]
        starts = np.flatnonzero(changes(first, length))
        rows = self.cells_work(runs.cells)[runs.cell[order]]
        sums = np.add.reduceat(rows, starts, axis=0)
        first, length = first[starts], length[starts]
        alone = length == 1
        work[first[alone]] += sums[alone]
        spans = zip(first[~alone].tolist(), length[~alone].tolist(), sums[~alone], strict=True)
        for begin, size, row in spans:
            work[begin : begin + size] += row
        return work

    def placements_work(self, plan: Plan) -> OptionWork:
        """Work of each placement by itself: ``rows[index]`` is ``[placements, W, columns]``.

        Raises:
            InvalidValueError: a shard is on a rank that does not exist.
        """
        runs = self._cells.runs_of(plan)
        # Row 0 is that of ranks without a shard.
        rows = [np.zeros(self.num_columns), *self.cells_work(runs.cells)]
        index = np.zeros((len(plan.placements), self.topology.world_size), dtype=np.int64)
        columns = (runs.placement, runs.cell, runs.first, runs.length)
        for placement, cell, first, length in zip(*(c.tolist() for c in columns), strict=True):
            span = index[placement, first : first + length]
            # A rank with several shards of a placement gets a row of its own: their sum.
            several = np.flatnonzero(span)
            joined = [rows[row] + rows[cell + 1] for row in span[several].tolist()]
            span[span == 0] = cell + 1
            span[several] = len(rows) + np.arange(len(several))
            rows += joined
        return OptionWork(rows=np.array(rows), index=index)

    def hot_row_remark(self, plan: Plan, work: FloatArray) -> str | None:
        """Which table's hottest rows make which rank receive the most indices; None if none do.

        It is told from 1.25 times the mean of ranks on, where one table that is cut by rows is the
        reason for at least half of what the rank receives above the mean.

        Args:
            plan: the plan.
            work: of the plan, ``[W, columns]``.
        """
        received = work[:, INPUT:OUTPUT].sum(axis=-1)
        mean, rank = float(received.mean()), int(received.argmax())
        cut = tuple(p for p in plan.placements if p.sharding_type in BY_ROWS)
        if not cut or received[rank] < _HOT_RATIO * mean:
            return None
        placed = self.placements_work(Plan(placements=cut))
        each = placed.rows[:, INPUT:OUTPUT].sum(axis=-1)[placed.index]
        usual = each.sum(axis=-1) / np.maximum(np.count_nonzero(each, axis=-1), 1)
        above = each[:, rank] - usual
        at = int(above.argmax())
        if above[at] < 0.5 * (received[rank] - mean):
            return None
        name, law = cut[at].table, self.workload.table(cut[at].table).distribution
        which = "is taken to hold the hottest row" if law.scattered else "holds the hottest rows"
        return (
            f"rank {rank} receives {received[rank] / mean:.3g} times the indices of the mean rank: "
            f"it {which} of table {name!r}, of which it gets {each[at, rank] / usual[at]:.3g} "
            "times the mean of its ranks; cut by columns (column_wise), or replicated "
            "(data_parallel) if it is small, no rank gets more than the others"
        )

    def cells_work(self, cells: Cells) -> FloatArray:
        """Work of each cell, ``[n, columns]``."""
        tables, workload, table = self.columns, self.workload, cells.table
        work, every = np.zeros((len(table), self.num_columns)), np.arange(len(table))
        replicated = cells.family == _REPLICATED_FAMILY
        # A replicated table is looked up for the samples of its own rank, any other table for the
        # samples of all ranks.
        batch = workload.batch_size_per_rank * cells.batch_ratio
        sources = np.where(replicated, 1.0, float(self.topology.world_size))
        by_law = tables.laws.range_share(tables.law[table], cells.row_offset, cells.num_rows)
        own = np.where(cells.access_ratio < 0, by_law, cells.access_ratio)
        share = np.where(replicated, 1.0, own)
        indices, pooled = batch * tables.pooling_factor[table], tables.is_pooled[table]
        sent = self._sent_indices(cells, indices, indices * share)
        bags = np.where(pooled, batch * tables.num_features[table], sent)
        received = sources * sent
        shards = LookupShards(
            tables=tables,
            num_indices=received,
            num_table_indices=sources * indices,
            num_bags=np.where(pooled, sources * bags, received),
            **{name: getattr(cells, name) for name in _SHARED},
            **_of_workload(workload),
        )
        columns = LOOKUP + cells.kernel[:, None] * NUM_LOOKUP_WORK + np.arange(NUM_LOOKUP_WORK)
        work[every[:, None], columns] = self.lookup.checked_work(shards, self.topology)
        self._reorder(work, cells, received, indices)
        work[every, _CALL_COLUMNS[cells.family, cells.kernel]] = 1.0
        index_bytes = workload.index_bytes + np.where(tables.is_weighted[table], 4.0, 0.0)
        length_bytes = np.where(
            tables.deduplicates_indices[table], _DISTINCT_LENGTH_BYTES, _LENGTH_BYTES
        )
        lengths = batch * tables.num_features[table] * length_bytes
        arriving = sent * index_bytes + lengths
        leaving = bags * np.asarray(cells.num_cols * workload.output_dtype.num_bytes, dtype=float)
        whole = tables.num_embeddings[table].astype(float) * tables.embedding_dim[table]
        work[:, REPLICATED] = np.where(replicated, whole * _GRADIENT_BYTES, 0.0)
        moved = np.flatnonzero(~replicated)
        family = _FAMILY_OF_TYPE[cells.family[moved]]
        work[moved, INPUT + family] = arriving[moved]
        work[moved, OUTPUT + family] = leaving[moved]
        _fill_memory(work[:, MEMORY:], shards)
        offsets = _OFFSET_BYTES * batch * tables.num_features[table]
        passing = _SORTED_BYTES * sent + np.where(replicated, 0.0, self._is_exchanged * leaving)
        depth = PIPELINE_DEPTH[workload.pipeline] + workload.lookahead_batches
        held = depth * arriving + offsets + self._excess_ratio * passing
        work[:, MEMORY + Memory.BUFFERS] = sources * held
        if self.wire is not None:
            elements = np.asarray(bags[moved] * cells.num_cols[moved], dtype=np.float64)
            work[moved] = _compress(work[moved], self.wire, family, table[moved], elements)
            copied = self._excess_ratio * sources[moved]
            work[moved, MEMORY + Memory.BUFFERS] += copied * work[moved, OUTPUT + family]
        return work

    def _reorder(
        self, work: FloatArray, cells: Cells, received: FloatArray, indices: FloatArray
    ) -> None:
        """Add the bytes of TorchRec's kernels that order unpooled vectors to those of lookups.

        The rank that looks vectors up permutes them from the order of its tables to that of the
        ranks they go to, and their gradients back: one read and one write each. Of a row-wise table
        the rank that they go to selects its vectors in the order of its indices; backward it fills
        with zeros and adds the gradients by atomic additions. (TorchRec 1.8: ``All2All_Seq_Req`` of
        ``comm_ops.py``, ``SequenceEmbeddingsAwaitable`` of ``dist_data.py``.) CPU cores have this
        in their calibrated exchanges.

        Args:
            work: ``[n, columns]`` of the cells.
            cells: the cells.
            received: ``[n]`` indices that the cell looks up.
            indices: ``[n]`` indices of one rank for the whole table.
        """
        tables, device = self.columns, self.topology.device
        unpooled = ~tables.is_pooled[cells.table]
        is_torchrec = self.workload.pipeline is not Pipeline.HUGECTR
        single = self.topology.world_size == 1 or self.topology.compute_device == "cpu"
        if single or not is_torchrec or not unpooled.any():
            return
        own = np.where(tables.deduplicates_indices[cells.table], received, indices)
        slower = device.hbm_bandwidth_bytes_per_s / device.l2_bandwidth_bytes_per_s
        added = float(np.hypot(3.0, ATOMIC_PASSES * slower))
        element_bytes = cells.num_cols * self.workload.output_dtype.num_bytes
        vectors = np.where(unpooled & (cells.num_rows > 0), element_bytes, 0.0)
        permuted = np.where(cells.family == _REPLICATED_FAMILY, 0.0, 2.0 * received * vectors)
        selected = np.where(cells.family == _ROW_WISE_FAMILY, own * vectors, 0.0)
        every, first = np.arange(len(own)), LOOKUP + cells.kernel * NUM_LOOKUP_WORK
        work[every, first + LookupWork.STREAM_DRAM] += permuted + 2.0 * selected
        work[every, first + LookupWork.BACKWARD_ROWS_DRAM] += permuted + added * selected

    def _sent_indices(self, cells: Cells, indices: FloatArray, mine: FloatArray) -> FloatArray:
        """Indices that each rank sends to each cell, ``[n]``.

        They are only the distinct ones if the table says so.

        Args:
            cells: the cells.
            indices: ``[n]`` indices of one rank for the whole table of each cell.
            mine: ``[n]`` those of them that fall on the cell.
        """
        tables = self.columns
        once = tables.deduplicates_indices[cells.table]
        if not once.any():
            return mine
        unique = tables.laws.unique_rows_in_range(
            tables.law[cells.table], indices, cells.row_offset, cells.num_rows
        )
        return np.where(once, np.minimum(unique, mine), mine)


def _compress(
    work: FloatArray, wire: Wire, family: IntArray, table: IntArray, elements: FloatArray
) -> FloatArray:
    """The work with the columns of compressed exchanges filled in.

    ``OUTPUT`` becomes the mean of both directions.

    Args:
        work: of cells that exchange vectors, ``[m, columns]``.
        wire: bytes per element.
        family: ``[m]`` sharding type of each cell.
        table: ``[m]`` its table.
        elements: ``[m]`` elements that it sends to each rank.
    """
    every, again = np.arange(len(work)), work.copy()
    first = wire.element_bytes[family, 0, :, table] * elements[:, None]
    again[every, OUTPUT + family] = first.mean(axis=1)
    again[every, FORWARD_OUTPUT + family] = first[:, FORWARD]
    again[:, [CODECS + FORWARD, CODECS + BACKWARD]] = (
        wire.source_bytes[family, :, table] * elements[:, None]
    )
    for i, kind in enumerate(BY_HOSTS):
        here = family == EXCHANGING_TYPES.index(kind)
        second = wire.element_bytes[family[here], 1, :, table[here]] * elements[here, None]
        again[here, SECOND + i] = second.mean(axis=1)
        again[here, FORWARD_SECOND + i] = second[:, FORWARD]
    return again


_OFFSET_BYTES: Final = 12.0
"""Bytes of the offsets of a sample and feature: 4 in a KeyedJaggedTensor and 8 in FBGEMM."""
_SORTED_BYTES: Final = 52.0
"""Bytes for each index while rows are updated. FBGEMM's backward pass holds row numbers and sorted
row numbers (8 each), distinct ones (8), sorted positions (4), lengths of runs and their sums, and
two lists of long runs (4 each): ``transpose_embedding_input`` and the code of the update. 8 more
are a copy of the indices in the order of the tables."""
_SHARED: Final = tuple(field.name for field in fields(Shards))
"""The columns that cells and the shards of lookup models have in common."""
_REPLICATED_FAMILY: Final = TYPES.index(ShardingType.DATA_PARALLEL)
"""Number of replicated tables in ``Cells.family``."""
_ROW_WISE_FAMILY: Final = TYPES.index(ShardingType.ROW_WISE)
"""The same of tables that are cut by rows over all ranks."""
_HOT_RATIO: Final = 1.25
"""Indices of the hottest rank over the mean of ranks, from which on a remark is made."""
_FAMILY_OF_TYPE: Final = np.array(
    [EXCHANGING_TYPES.index(t) if t in EXCHANGING_TYPES else -1 for t in TYPES]
)
"""From a position in ``TYPES`` to one in ``EXCHANGING_TYPES``; -1 for types without exchanges."""
_CALL_COLUMNS: Final = np.array([[call_column(t, k) for k in KERNELS] for t in TYPES])
"""``[types, kernels]`` the column that counts the shards of each fused call."""


def _fill_memory(memory: FloatArray, shards: LookupShards) -> None:
    """Fill the bytes of weights, optimizer state, gradients and cache of each shard."""
    rows = shards.num_rows.astype(float)
    weights = rows * shards.num_cols * shards.tables.element_bytes[shards.table]
    state = rows * shards.state_bytes_per_row
    in_host_memory = shards.runs(ComputeKernel.FUSED_UVM)
    in_host_memory |= shards.runs(ComputeKernel.FUSED_UVM_CACHING)
    on_device = ~in_host_memory
    memory[on_device, Memory.WEIGHTS] = weights[on_device]
    memory[on_device, Memory.OPTIMIZER] = state[on_device]
    memory[in_host_memory, Memory.HOST] = (weights + state)[in_host_memory]
    # For each row of the table FBGEMM keeps 4 bytes, and for each row of the cache 16 bytes.
    ratio = shards.cache_load_factor_ratio
    bookkeeping = np.where(ratio > 0, rows * (4.0 + 16.0 * ratio), 0.0)
    cache = ratio * (weights + state) + bookkeeping
    memory[in_host_memory, Memory.CACHE] = cache[in_host_memory]
    dense = shards.runs(ComputeKernel.DENSE)
    memory[dense, Memory.GRADIENTS] = (rows * shards.num_cols * _GRADIENT_BYTES)[dense]


def output_traffic_bytes(work: FloatArray, topology: Topology) -> FloatArray:
    """Bytes from rank i to rank j, ``[W, W]``, from work ``[W, columns]``; the diagonal is 0.

    Table- and column-wise shards send every rank its part of the batch. Row-wise shards send
    partial sums to the rank that adds them up. Types that cut rows inside a host add up inside the
    host first, and then send the sums to the ranks of the same local index (TorchRec
    ``dist_data.py``).
    """
    world, local = topology.world_size, topology.local_world_size
    rank = np.arange(world)
    inside = rank[:, None] // local == rank[None, :] // local
    lane = rank[:, None] % local == rank[None, :] % local
    traffic = np.zeros((world, world))
    for index, family in enumerate(EXCHANGING_TYPES):
        sent, again = (part[:, None] for part in sent_bytes(work, index, FORWARD))
        if not sent.any():
            continue
        if family in BY_HOSTS:
            traffic += sent * topology.num_hosts * inside + again * (lane & ~inside)
        else:
            traffic += np.broadcast_to(sent, traffic.shape)
    np.fill_diagonal(traffic, 0.0)
    return traffic
