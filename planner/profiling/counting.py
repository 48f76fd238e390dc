"""Counts ids exactly in bounded memory: sorted runs are written to disk and merged at the end.

A run is a pair of arrays: ids in ascending order, and their counts. Counts are only added up, so
that neither the memory budget nor the order of the data changes the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from costmodels.datatypes import IntArray

PAIR_BYTES: Final = 16
_DENSE_SLACK: Final = 4
_SORT_COPIES: Final = 4


@dataclass(frozen=True, slots=True)
class Run:
    """The place of a sorted run in a file: all ids, and then all counts, as int64."""

    path: Path
    offset: int
    size: int


class IdCounter:
    """Counts the ids of each table, and writes sorted runs to one file when memory is short."""

    def __init__(self, num_tables: int, file: BinaryIO, budget_bytes: float) -> None:
        """Start without counts; runs go to ``file`` when memory exceeds ``budget_bytes``."""
        self.runs: list[list[tuple[int, int]]] = [[] for _ in range(num_tables)]
        self._file = file
        self._budget_bytes = budget_bytes
        self._raw: list[list[IntArray]] = [[] for _ in range(num_tables)]
        self._raw_bytes = 0
        self._counted: list[list[tuple[IntArray, IntArray]]] = [[] for _ in range(num_tables)]

    def add(self, table: int, ids: IntArray) -> None:
        """Count some ids."""
        self._raw[table].append(ids)
        self._raw_bytes += ids.nbytes
        if self._raw_bytes * _SORT_COPIES > self._budget_bytes:
            self._compact()
            if self._held_bytes() * 2 > self._budget_bytes:
                self.spill()

    def spill(self) -> None:
        """Write everything in memory as one run for each table."""
        self._compact()
        for table, counted in enumerate(self._counted):
            if counted:
                ids, counts = merged(counted)
                self.runs[table].append((self._file.tell(), len(ids)))
                self._file.write(ids.tobytes())
                self._file.write(counts.tobytes())
            self._counted[table] = []

    def _compact(self) -> None:
        for table, raw in enumerate(self._raw):
            if raw:
                self._counted[table].append(count_ids(np.concatenate(raw)))
                self._raw[table] = []
                self._merge_like_sizes(self._counted[table])
        self._raw_bytes = 0

    @staticmethod
    def _merge_like_sizes(counted: list[tuple[IntArray, IntArray]]) -> None:
        """Merge parts until each is at most half as large as the one before it.

        Each id is then merged only a few times.
        """
        while len(counted) > 1 and len(counted[-2][0]) < 2 * len(counted[-1][0]):
            last, before = counted.pop(), counted.pop()
            counted.append(merged([before, last]))

    def _held_bytes(self) -> int:
        return sum(ids.nbytes * 2 for counted in self._counted for ids, _ in counted)


def count_ids(ids: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct ids, ascending, and how often each occurs."""
    if not len(ids):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    highest = int(ids.max())
    if highest < _DENSE_SLACK * len(ids):
        dense = np.bincount(ids)
        found = np.flatnonzero(dense)
        return found.astype(np.int64), dense[found].astype(np.int64)
    narrow = ids.astype(np.uint32) if highest < 2**32 else ids
    found, counts = np.unique(narrow, return_counts=True)
    return found.astype(np.int64), counts.astype(np.int64)


def merged(parts: Sequence[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    """Several runs as one."""
    if len(parts) == 1:
        return parts[0]
    ids = np.concatenate([part[0] for part in parts])
    counts = np.concatenate([part[1] for part in parts])
    if not len(ids):
        return ids, counts
    order = np.argsort(ids, kind="stable")
    ids, counts = ids[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], np.diff(ids) != 0]))
    return ids[first], np.add.reduceat(counts, first)


def merge_runs(runs: Sequence[Run], budget_bytes: float) -> Iterator[tuple[IntArray, IntArray]]:
    """All runs as one, in blocks of ascending ids that fit in the budget.

    A block is a range of ids. It is read from every run by itself, so that any number of runs can
    be merged.
    """
    total = sum(run.size for run in runs)
    num_blocks = max(1, int(np.ceil(total * PAIR_BYTES * _SORT_COPIES / budget_bytes)))
    cuts = _cuts(runs, num_blocks)
    bounds = [_bounds(run, cuts) for run in runs]
    for block in range(len(cuts) + 1):
        parts = [
            _read(run, bound[block], bound[block + 1])
            for run, bound in zip(runs, bounds, strict=True)
            if bound[block] < bound[block + 1]
        ]
        if parts:
            yield merged(parts)


def _cuts(runs: Sequence[Run], num_blocks: int) -> IntArray:
    """Ids that divide all runs together into blocks of about equal size."""
    if num_blocks == 1:
        return np.empty(0, dtype=np.int64)
    stride = max(1, sum(run.size for run in runs) // (num_blocks * 64))
    seen = np.sort(np.concatenate([_ids(run)[::stride] for run in runs]))
    at = np.arange(1, num_blocks) * len(seen) // num_blocks
    return np.unique(seen[at])


def _bounds(run: Run, cuts: IntArray) -> list[int]:
    inner = np.searchsorted(_ids(run), cuts).tolist() if len(cuts) else []
    return [0, *inner, run.size]


def _ids(run: Run) -> IntArray:
    if not run.size:
        return np.empty(0, dtype=np.int64)
    return np.memmap(run.path, dtype=np.int64, mode="r", offset=run.offset, shape=(run.size,))


def _read(run: Run, start: int, stop: int) -> tuple[IntArray, IntArray]:
    size = stop - start
    ids: IntArray = np.fromfile(run.path, np.int64, size, offset=run.offset + 8 * start)
    at = run.offset + 8 * (run.size + start)
    counts: IntArray = np.fromfile(run.path, np.int64, size, offset=at)
    return ids, counts
