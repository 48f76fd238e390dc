"""What a rank has to receive to go from one plan to another, and a limit on it.

A cell is received by a rank that holds it afterwards and did not before. Bytes are those of its
weight and of its share of the row's optimizer state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.sharding import Plan, Shard, ShardingOption, Spread, TablePlacement, place
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from planner.problem import MoveLimit

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

MOVED_BYTES = 0.5
"""From here on a table counts as moved; below it lies the rounding of sums."""
_ROUNDING = 1.0 + 1e-9


def cell_bytes(table: Table, workload: Workload) -> float:
    """Bytes of one cell with its share of the row's optimizer state."""
    return workload.trained_row_bytes(table) / table.embedding_dim


def rectangles(shards: Sequence[Shard]) -> IntArray:
    """``[N, 4]``: first row, row after the last, first column, column after the last."""
    cells = [
        (s.row_offset, s.row_offset + s.num_rows, s.col_offset, s.col_offset + s.num_cols)
        for s in shards
    ]
    return np.array(cells, dtype=np.int64).reshape(-1, 4)


def overlaps(a: IntArray, b: IntArray) -> FloatArray:
    """Cells that each of ``[N, 4]`` rectangles shares with each of ``[M, 4]``, ``[N, M]``."""
    rows = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
    cols = np.minimum(a[:, None, 3], b[None, :, 3]) - np.maximum(a[:, None, 2], b[None, :, 2])
    return np.asarray(np.maximum(rows, 0).astype(float) * np.maximum(cols, 0))


def received_bytes(
    before: TablePlacement, after: TablePlacement, table: Table, workload: Workload
) -> float:
    """Bytes of weights and optimizer state that ranks receive to get a table from one to another.

    Args:
        before: where the table is.
        after: where it shall be.
        table: the table of both.
        workload: tells the optimizer.
    """
    old, new = rectangles(before.shards), rectangles(after.shards)
    same_rank = np.array([[a.rank == b.rank for b in before.shards] for a in after.shards])
    cells = float(((new[:, 1] - new[:, 0]) * (new[:, 3] - new[:, 2])).sum())
    held = float((overlaps(new, old) * same_rank).sum())
    return (cells - held) * cell_bytes(table, workload)


class MoveBudget:
    """Bytes each placed option receives from a plan in use, and whether that is within a limit."""

    def __init__(self, limit: MoveLimit, workload: Workload, topology: Topology) -> None:
        """Keep the shards that ranks hold."""
        self.max_bytes = np.inf if limit.max_bytes is None else limit.max_bytes * _ROUNDING
        self.max_tables = np.inf if limit.max_tables is None else limit.max_tables
        self._tables = workload.tables
        self._world_size = topology.world_size
        self._local_world_size = topology.local_world_size
        self._cell = [cell_bytes(t, workload) for t in workload.tables]
        self._held = [_held(limit.present, t.name) for t in workload.tables]
        self._known: dict[ShardingOption, FloatArray] = {}
        self._table_of = {t.name: i for i, t in enumerate(workload.tables)}

    def piece_bytes(self, option: ShardingOption) -> FloatArray:
        """Bytes received for each piece on each place: ``[pieces, W]``, ``[pieces, H]``, ``[1]``.

        By spread: ranks, hosts, uniform.
        """
        if option not in self._known:
            self._known[option] = self._piece_bytes(option)
        return self._known[option]

    def table_bytes(self, option: ShardingOption, places: tuple[int, ...]) -> float:
        """Bytes received by all ranks for one placed table."""
        received = self.piece_bytes(option)
        if option.is_uniform:
            return float(received[0])
        return float(received[np.arange(len(places)), list(places)].sum())

    def keeps(self, moved_bytes: FloatArray) -> BoolArray:
        """Whether bytes per table ``[..., T]`` are within the limit, ``[...]``."""
        few = (moved_bytes > MOVED_BYTES).sum(axis=-1) <= self.max_tables
        return np.asarray(few & (moved_bytes.sum(axis=-1) <= self.max_bytes))

    def _piece_bytes(self, option: ShardingOption) -> FloatArray:
        table = self._table_of[option.table]
        world, local = self._world_size, self._local_world_size
        rows = self._tables[table].num_embeddings
        if option.is_uniform:
            shards = place(option, rows, (), world_size=world, local_world_size=local).shards
            ranks = np.array([s.rank for s in shards])
            missing = self._missing(table, shards)[np.arange(len(shards)), ranks]
            return np.asarray(missing.sum(keepdims=True))
        where = (0,) * option.num_pieces
        shards = place(option, rows, where, world_size=world, local_world_size=local).shards
        missing = self._missing(table, shards)
        if option.spread is Spread.RANKS:
            return missing
        blocks = missing.reshape(option.num_pieces, local, world // local, local)
        return np.asarray(np.einsum("pihi->ph", blocks))

    def _missing(self, table: int, shards: Sequence[Shard]) -> FloatArray:
        """Bytes that each rank would receive to hold each shard, ``[shards, W]``."""
        new = rectangles(shards)
        cells = ((new[:, 1] - new[:, 0]) * (new[:, 3] - new[:, 2])).astype(float)
        missing = np.repeat(cells[:, None], self._world_size, axis=1)
        old, ranks = self._held[table]
        np.subtract.at(missing.T, ranks, overlaps(new, old).T)
        return missing * self._cell[table]


def _held(plan: Plan, table: str) -> tuple[IntArray, IntArray]:
    """(rectangles, ranks) of a table's shards."""
    shards = plan.placement(table).shards
    return rectangles(shards), np.array([s.rank for s in shards], dtype=np.int64)
