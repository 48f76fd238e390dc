"""Shards of one table: one as a value, all of them as columns.

A row-wise table on thousands of ranks has as many shards, and a plan has thousands of such tables;
as columns they cost a few arrays, and what is counted over them is arithmetic on arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self, final, overload

import numpy as np
from numpy.typing import ArrayLike

from costmodels.datatypes import IntArray
from costmodels.errors import InvalidValueError

_LARGEST: Final = 2**62
_MANY: Final = 10_000
"""So many shards of a table of 2^48 rows still count up to less than 2^62."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A rectangle of one table on one rank."""

    rank: int
    row_offset: int
    num_rows: int
    col_offset: int
    num_cols: int


@final
class Shards(Sequence[Shard]):
    """Shards as columns of whole numbers; a sequence whose items are made when they are read.

    Equal to another ``Shards``, or to a tuple, with the same shards in the same order.

    Attributes:
        rank, row_offset, num_rows, col_offset, num_cols: ``[n]``, read-only; the fields of a
            :class:`Shard`.
    """

    __slots__ = ("_hash", "col_offset", "num_cols", "num_rows", "rank", "row_offset")

    def __init__(
        self,
        *,
        rank: ArrayLike,
        row_offset: ArrayLike,
        num_rows: ArrayLike,
        col_offset: ArrayLike,
        num_cols: ArrayLike,
    ) -> None:
        """Columns of one length; a single number stands for that number in every shard."""
        columns = [
            np.asarray(c, dtype=np.int64)
            for c in (rank, row_offset, num_rows, col_offset, num_cols)
        ]
        size = max(c.size for c in columns) if all(c.size for c in columns) else 0
        columns = [c if c.shape == (size,) else np.broadcast_to(c, (size,)) for c in columns]
        for column in columns:
            column.flags.writeable = False
        self.rank, self.row_offset, self.num_rows, self.col_offset, self.num_cols = columns
        self._hash: int | None = None

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> Self:
        """From single shards.

        Raises:
            InvalidValueError: an offset or size of 2^62 or more, larger than any table.
        """
        if isinstance(shards, cls):
            return shards
        rows = [(s.rank, s.row_offset, s.num_rows, s.col_offset, s.num_cols) for s in shards]
        if any(not -_LARGEST < value < _LARGEST for row in rows for value in row):
            msg = "ranks, offsets and sizes of shards must be below 2^62"
            raise InvalidValueError(msg)
        return cls._from_rows(np.array(rows, dtype=np.int64).reshape(-1, 5))

    @classmethod
    def _from_rows(cls, rows: IntArray) -> Self:
        rank, row_offset, num_rows, col_offset, num_cols = np.ascontiguousarray(rows.T)
        return cls(
            rank=rank,
            row_offset=row_offset,
            num_rows=num_rows,
            col_offset=col_offset,
            num_cols=num_cols,
        )

    @property
    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Rank, row offset, rows, column offset, columns."""
        return self.rank, self.row_offset, self.num_rows, self.col_offset, self.num_cols

    def __len__(self) -> int:
        """Number of shards."""
        return len(self.rank)

    @overload
    def __getitem__(self, index: int) -> Shard: ...

    @overload
    def __getitem__(self, index: slice) -> Shards: ...

    def __getitem__(self, index: int | slice) -> Shard | Shards:
        """One shard, or some of them."""
        if isinstance(index, slice):
            return Shards._from_rows(np.stack([c[index] for c in self.columns], axis=-1))
        return _shard(*(int(c[index]) for c in self.columns))

    def __iter__(self) -> Iterator[Shard]:
        """Each shard in turn."""
        return map(_shard, *(c.tolist() for c in self.columns))

    def __add__(self, other: Iterable[Shard]) -> Shards:
        """These shards, then those."""
        return Shards.of((*self, *other))

    def __radd__(self, other: Iterable[Shard]) -> Shards:
        """Those shards, then these."""
        return Shards.of((*other, *self))

    def __eq__(self, other: object) -> bool:
        """Whether the other holds the same shards in the same order."""
        if isinstance(other, tuple):
            return tuple(self) == other
        if not isinstance(other, Shards):
            return NotImplemented
        pairs = zip(self.columns, other.columns, strict=True)
        return len(self) == len(other) and all(a is b or np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        """Computed once."""
        if self._hash is None:
            self._hash = hash(tuple(c.tobytes() for c in self.columns))
        return self._hash

    def __repr__(self) -> str:
        """As the tuple of the shards."""
        return repr(tuple(self))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as five columns."""
        return _unpickled, self.columns


def _shard(rank: int, row_offset: int, num_rows: int, col_offset: int, num_cols: int) -> Shard:
    return Shard(
        rank=rank,
        row_offset=row_offset,
        num_rows=num_rows,
        col_offset=col_offset,
        num_cols=num_cols,
    )


def _unpickled(*columns: IntArray) -> Shards:
    return Shards._from_rows(np.stack(columns, axis=-1))


def tiling_problem(shards: Shards, num_embeddings: int, embedding_dim: int) -> str | None:
    """The first rule that shards break which should cover a table once, in words; None if none."""
    if _in_order(shards, num_embeddings, embedding_dim):
        return None
    unsized = np.flatnonzero((shards.num_rows < 0) | (shards.num_cols < 1))
    if len(unsized):
        return f"shard {shards[int(unsized[0])]} has no columns or rows < 0"
    used = np.flatnonzero(shards.num_rows > 0)
    cells = np.stack(shards.columns[1:])[:, used]
    row, rows, col, cols = cells
    outside = (row < 0) | (col < 0) | (row + rows > num_embeddings) | (col + cols > embedding_dim)
    if outside.any():
        shard = shards[int(used[np.argmax(outside)])]
        return f"shard {shard} leaves the table of {num_embeddings} x {embedding_dim}"
    area, expected = _area(rows, cols), num_embeddings * embedding_dim
    if area != expected:
        return f"shards cover {area} cells of {expected}; they must tile it"
    pair = _overlap(cells)
    if pair is not None:
        return f"shards {shards[int(used[pair[0]])]} and {shards[int(used[pair[1]])]} overlap"
    return None


def _in_order(shards: Shards, num_embeddings: int, embedding_dim: int) -> bool:
    """Whether these are whole columns from left to right, or whole rows from top to bottom."""
    _, row, rows, col, cols = shards.columns
    if not 1 <= len(rows) <= _MANY:
        return False
    if rows[0] == num_embeddings and cols[0] != embedding_dim:
        row, rows, col, cols = col, cols, row, rows
        num_embeddings, embedding_dim = embedding_dim, num_embeddings
        least = 1
    else:
        least = 0
    whole = bool((cols == embedding_dim).all()) and not col.any()
    if not whole or rows.min() < least or rows.max() > num_embeddings:
        return False
    ends = np.cumsum(rows)
    return int(ends[-1]) == num_embeddings and bool((row == ends - rows).all())


def _area(rows: IntArray, cols: IntArray) -> int:
    """Cells of all shards together; exact, also where their number does not fit 64 bits."""
    if float(rows.astype(float) @ cols) < _LARGEST:
        return int(rows @ cols)
    return sum(r * c for r, c in zip(rows.tolist(), cols.tolist(), strict=True))


def _overlap(cells: IntArray) -> tuple[int, int] | None:
    """Two shards that share a cell, the first such pair in order of rows, then columns."""
    order = np.lexsort((cells[2], cells[0]))
    row, rows, col, cols = cells[:, order]
    same_rows = (np.diff(row) == 0) & (np.diff(rows) == 0)
    if bool((same_rows | (row[1:] >= (row + rows)[:-1])).all()):
        meets = np.flatnonzero(same_rows & (col[1:] < (col + cols)[:-1]))
        return (int(order[meets[0]]), int(order[meets[0] + 1])) if len(meets) else None
    for a in range(len(row)):
        later = slice(a + 1, int(np.searchsorted(row, row[a] + rows[a], side="left")))
        meets = np.flatnonzero(
            (col[later] < col[a] + cols[a]) & (col[a] < col[later] + cols[later])
        )
        if len(meets):
            return int(order[a]), int(order[a + 1 + meets[0]])
    return None
