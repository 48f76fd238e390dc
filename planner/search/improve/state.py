"""A plan with its work, loads and shards, which is changed a few tables at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.common.linear import LinearModel
from planner.space.evaluation import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The new option of a table (its index), and the ranks (or hosts) of its pieces."""

    table: int
    option: int
    places: tuple[int, ...]


Move = tuple[Change, ...]
"""The changes of a move; no table is in it twice."""


class PlanState:
    """An assignment that can be changed in place.

    Args:
        model: tangents; the loads of a state are only right as long as the model has the same ones.
        assignment: the plan to begin with.

    Attributes:
        options: index of the option of each table.
        places: ranks (or hosts) of the pieces of each table.
        work: ``[W, F]`` work of each rank.
        loads: ``[W, P + 2]`` loads of each rank.
        shard_table: ``[S]`` the table of each of the S shards that have a rank of their own; not of
            uniform options, nor of pieces on hosts.
        shard_piece: ``[S]`` which piece of the table it is.
        shard_rank: ``[S]`` its rank.
        shard_row: ``[S]`` its row in ``space.pool``.
        stays_on_host: ``[S]`` True if all pieces of its table have to be on one host.
        stays_apart: ``[S]`` True if no two pieces of its table may share a rank.
    """

    def __init__(self, model: LinearModel, assignment: Assignment) -> None:
        """Compute work and loads of the assignment."""
        self.model = model
        self.space = model.space
        self.options = list(assignment.options)
        self.places = list(assignment.places)
        self.work: FloatArray = self.space.work(assignment)
        self.loads: FloatArray = model.loads(self.work)
        self._list_shards()

    @property
    def assignment(self) -> Assignment:
        """The plan as a value that does not change."""
        return Assignment(options=tuple(self.options), places=tuple(self.places))

    @property
    def value(self) -> float:
        """The minorant of the objective."""
        return float(self.model.value(self.loads.max(axis=0)))

    def flat(self, table: int) -> int:
        """Position of the table's option among the options of all tables."""
        return int(self.space.first[table]) + self.options[table]

    def work_change(self, move: Move) -> FloatArray:
        """``[W, F]`` the work that a move adds to each rank."""
        change = np.zeros_like(self.work)
        for part in move:
            now = self.options[part.table], self.places[part.table]
            ranks, rows = self.space.placed_rows(part.table, *now)
            np.subtract.at(change, ranks, rows)
            ranks, rows = self.space.placed_rows(part.table, part.option, part.places)
            np.add.at(change, ranks, rows)
        return change

    def loads_without(self, tables: list[int]) -> FloatArray:
        """``[W, P + 2]`` the loads of each rank without these tables."""
        loads = self.loads.copy()
        for t in tables:
            flat = self.flat(t)
            rows = self.model.option_rows(flat).reshape(-1, loads.shape[1])
            ranks = self.table_ranks(t)
            np.subtract.at(loads, ranks, self.model.at(rows, ranks))
        return np.maximum(loads, 0.0)

    def table_ranks(self, table: int) -> IntArray:
        """The rank of each shard of a table, in the order of its rows of work."""
        spread = self.space.options[self.flat(table)].spread
        if spread is Spread.UNIFORM:
            return np.arange(self.space.world_size)
        if spread is Spread.HOSTS:
            return self.space.host_ranks(self.places[table])
        return np.array(self.places[table], dtype=np.int64)

    def apply(self, move: Move) -> None:
        """Make a move: change options, places, work, loads and shards."""
        change = self.work_change(move)
        self.work = self.work + change
        self.loads = self.loads + self.model.loads(change)
        relisted = False
        for part in move:
            relisted = relisted or self.options[part.table] != part.option
            self.options[part.table] = part.option
            self.places[part.table] = part.places
        if relisted:
            self._list_shards()
        else:
            for part in move:
                if self.space.options[self.flat(part.table)].spread is Spread.RANKS:
                    start = self._shard_first[part.table]
                    self.shard_rank[start : start + len(part.places)] = part.places

    def moved(self, shards: list[tuple[int, int]]) -> Move:
        """The move that puts shards on ranks, given as pairs of shard and rank."""
        places: dict[int, list[int]] = {}
        for shard, rank in shards:
            table = int(self.shard_table[shard])
            new = places.setdefault(table, list(self.places[table]))
            new[int(self.shard_piece[shard])] = int(rank)
        return tuple(
            Change(table=t, option=self.options[t], places=tuple(new)) for t, new in places.items()
        )

    def taken(self, shards: IntArray) -> BoolArray:
        """``[shards, W]`` True for ranks where a shard may not go.

        They have another piece of the shard's table, of a width that may differ, and TorchRec
        cannot run two of them on one rank.
        """
        ranks = np.zeros((len(shards), self.space.world_size), dtype=bool)
        for i in np.flatnonzero(self.stays_apart[shards]):
            ranks[i, list(self.places[int(self.shard_table[shards[i]])])] = True
        return ranks

    def on_rank(self, rank: int) -> list[int]:
        """The tables with a piece on a rank, or on its host; uniform options do not count."""
        tables = set(self.shard_table[self.shard_rank == rank].tolist())
        host = rank // self.space.local_world_size
        tables |= {t for t in self._host_tables if host in self.places[t]}
        return sorted(tables)

    @property
    def host_tables(self) -> list[int]:
        """The tables whose pieces are on hosts, cut by rows over their ranks."""
        return self._host_tables

    def _list_shards(self) -> None:
        """List the shards with ranks of their own, as after every change of an option."""
        tables: list[int] = []
        pieces: list[int] = []
        rows: list[IntArray] = []
        ranks: list[int] = []
        self._shard_first: dict[int, int] = {}
        self._host_tables: list[int] = []
        for t in range(self.space.num_tables):
            flat = self.flat(t)
            spread = self.space.options[flat].spread
            if spread is Spread.HOSTS:
                self._host_tables.append(t)
            if spread is not Spread.RANKS:
                continue
            self._shard_first[t] = len(tables)
            count = len(self.places[t])
            tables.extend([t] * count)
            pieces.extend(range(count))
            rows.append(self.space.rows[flat])
            ranks.extend(self.places[t])
        self.shard_table: IntArray = np.array(tables, dtype=np.int64)
        self.shard_piece: IntArray = np.array(pieces, dtype=np.int64)
        self.shard_rank: IntArray = np.array(ranks, dtype=np.int64)
        self.shard_row: IntArray = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        kept = [self.space.options[self.flat(t)].keeps_pieces_on_host for t in tables]
        self.stays_on_host = np.array(kept, dtype=bool)
        unequal = [self.space.options[self.flat(t)].keeps_pieces_apart for t in tables]
        self.stays_apart = np.array(unequal, dtype=bool)
