"""The bytes that ranks receive when one plan replaces another, and a limit on them.

A rank receives each cell (an element of a table) that it holds under the new plan and did not hold
under the old one. The bytes of a cell are those of its weight and of its share of the row's
optimizer state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Plan, Shard, ShardingOption, Spread, TablePlacement, place
from costmodels.topology import Topology
from costmodels.workload import Table, Workload
from planner.problem import MoveLimit

MOVED_BYTES = 0.5
"""A table counts as moved if ranks receive more bytes than this; less is rounding of sums."""
_ROUNDING = 1.0 + 1e-9


def cell_bytes(table: Table, workload: Workload) -> float:
    """Bytes of one cell, with its share of the row's optimizer state."""
    return workload.trained_row_bytes(table) / table.embedding_dim


def rectangles(shards: Sequence[Shard]) -> IntArray:
    """``[N, 4]`` of each shard: first row, row after the last, first column, column after it."""
    cells = [
        (s.row_offset, s.row_offset + s.num_rows, s.col_offset, s.col_offset + s.num_cols)
        for s in shards
    ]
    return np.array(cells, dtype=np.int64).reshape(-1, 4)


def overlaps(a: IntArray, b: IntArray) -> FloatArray:
    """``[N, M]`` how many cells each rectangle of ``a [N, 4]`` shares with each of ``b [M, 4]``."""
    rows = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
    cols = np.minimum(a[:, None, 3], b[None, :, 3]) - np.maximum(a[:, None, 2], b[None, :, 2])
    return np.asarray(np.maximum(rows, 0).astype(float) * np.maximum(cols, 0))


def received_bytes(
    before: TablePlacement, after: TablePlacement, table: Table, workload: Workload
) -> float:
    """Bytes of weights and optimizer state that all ranks receive when one table is placed anew.

    Args:
        before: the placement of the table now.
        after: the placement that it gets.
        table: the table.
        workload: names the optimizer, which decides the state of a row.
    """
    old, new = rectangles(before.shards), rectangles(after.shards)
    same_rank = np.array([[a.rank == b.rank for b in before.shards] for a in after.shards])
    heights, widths = (new[:, i + 1] - new[:, i] for i in (0, 2))
    cells = float((heights.astype(float) * widths).sum())
    held = float((overlaps(new, old) * same_rank).sum())
    return (cells - held) * cell_bytes(table, workload)


class MoveBudget:
    """Counts the bytes that leave a plan in use for a placed option, and compares with a limit."""

    def __init__(self, limit: MoveLimit, workload: Workload, topology: Topology) -> None:
        """Keep the shards that ranks hold under the plan in use."""
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
        """Bytes that ranks receive for each piece of an option on each place.

        ``[pieces, W]`` for spread ranks, ``[pieces, H]`` for hosts, and ``[1]`` for uniform.
        """
        if option not in self._known:
            self._known[option] = self._piece_bytes(option)
        return self._known[option]

    def table_bytes(self, option: ShardingOption, places: tuple[int, ...]) -> float:
        """Bytes that all ranks together receive for one placed table."""
        received = self.piece_bytes(option)
        if option.is_uniform:
            return float(received[0])
        return float(received[np.arange(len(places)), list(places)].sum())

    def keeps(self, moved_bytes: FloatArray) -> BoolArray:
        """``[...]`` whether plans keep the limit, from the bytes of each table ``[..., T]``."""
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
        """``[shards, W]`` bytes that each rank would receive to hold each shard."""
        new = rectangles(shards)
        cells = ((new[:, 1] - new[:, 0]) * (new[:, 3] - new[:, 2])).astype(float)
        missing = np.repeat(cells[:, None], self._world_size, axis=1)
        old, ranks = self._held[table]
        np.subtract.at(missing.T, ranks, overlaps(new, old).T)
        return missing * self._cell[table]


def _held(plan: Plan, table: str) -> tuple[IntArray, IntArray]:
    """(rectangles ``[N, 4]``, ranks ``[N]``) of a table's shards in a plan."""
    shards = plan.placement(table).shards
    return rectangles(shards), np.array([s.rank for s in shards], dtype=np.int64)
