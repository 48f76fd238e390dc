"""The results of one unit of data: counts of ids on disk, and sums, which can all be added up."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodels.datatypes import IntArray
from planner.errors import InvalidInputError
from planner.profiling.base import Chunk, Jagged
from planner.profiling.counting import IdCounter, Run, count_ids
from planner.profiling.units import Unit
from planner.support.file_errors import writing

REUSE_BINS: Final = 17
MEASURED_BATCHES: Final = 16
_COUNTS_FILE: Final = "counts.bin"
_SUMS_FILE: Final = "sums.json"


@dataclass(frozen=True, slots=True)
class TableMap:
    """Says which features share a table.

    Attributes:
        tables: name and features of every table, in order.
        num_embeddings: number of rows of those tables for which it is known.
    """

    tables: tuple[tuple[str, tuple[str, ...]], ...]
    num_embeddings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """What a worker has to know for a unit.

    Attributes:
        table_map: tables and their features.
        batch_sizes: samples per batch, for each size at which distinct rows are measured.
        max_ind_range: ids are taken modulo this number, or modulo the table's rows if those are
            known and fewer; None to take ids as they are.
        budget_bytes: memory for counting in one process.
    """

    table_map: TableMap
    batch_sizes: tuple[int, ...]
    max_ind_range: int | None
    budget_bytes: float


@dataclass(slots=True)
class BatchSums:
    """Sums over the measured batches of one size: number, indices, distinct rows, reuse."""

    num_batches: int = 0
    num_indices: int = 0
    num_unique: int = 0
    reuse: list[int] = field(default_factory=lambda: [0] * REUSE_BINS)

    def add(self, other: BatchSums) -> None:
        """Add the sums of other batches."""
        self.num_batches += other.num_batches
        self.num_indices += other.num_indices
        self.num_unique += other.num_unique
        self.reuse = [a + b for a, b in zip(self.reuse, other.reuse, strict=True)]


@dataclass(slots=True)
class TableSums:
    """What was measured for one table, without the counts of its ids.

    ``lengths`` counts samples by their number of indices in all features of the table together.
    """

    num_samples: int = 0
    highest_raw: int = -1
    lengths: Counter[int] = field(default_factory=Counter)
    feature_lengths: dict[str, Counter[int]] = field(default_factory=dict)
    batches: dict[int, BatchSums] = field(default_factory=dict)

    def add(self, other: TableSums) -> None:
        """Add the sums of other samples."""
        self.num_samples += other.num_samples
        self.highest_raw = max(self.highest_raw, other.highest_raw)
        self.lengths.update(other.lengths)
        for name, lengths in other.feature_lengths.items():
            self.feature_lengths.setdefault(name, Counter()).update(lengths)
        for size, sums in other.batches.items():
            self.batches.setdefault(size, BatchSums()).add(sums)


@dataclass(frozen=True, slots=True)
class Partial:
    """One finished unit: sums and runs of each table, in the order of the table map."""

    num_samples: int
    sums: tuple[TableSums, ...]
    runs: tuple[tuple[Run, ...], ...]


def work_on(
    unit: Unit, options: WorkOptions, folder: Path, progress: Callable[[int], None] | None = None
) -> str:
    """Read a unit, and write its results into the state folder; returns the name of its folder.

    The folder of the unit appears complete or not at all.

    Raises:
        InvalidInputError: the data break a rule.
    """
    name = unit_name(unit)
    staging = folder / f".{name}.{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        counts = staging / _COUNTS_FILE
        with writing(counts), counts.open("wb") as file:
            tally = _Tally(
                options, IdCounter(len(options.table_map.tables), file, options.budget_bytes)
            )
            for chunk, num_bytes in _chunks(unit):
                if chunk.num_samples:
                    tally.add(chunk)
                if progress is not None:
                    progress(num_bytes)
            tally.counter.spill()
        _write_sums(staging / _SUMS_FILE, tally)
        shutil.rmtree(folder / name, ignore_errors=True)
        staging.rename(folder / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return name


def unit_name(unit: Unit) -> str:
    """The name of a unit's folder."""
    return f"unit-{unit.number:06d}"


def load_partial(folder: Path) -> Partial:
    """Read the results of a finished unit."""
    data: dict[str, Any] = json.loads((folder / _SUMS_FILE).read_text(encoding="utf-8"))
    sums, runs = [], []
    for entry in data["tables"]:
        sums.append(
            TableSums(
                num_samples=entry["num_samples"],
                highest_raw=entry["highest_raw"],
                lengths=_int_keys(entry["lengths"]),
                feature_lengths={k: _int_keys(v) for k, v in entry["feature_lengths"].items()},
                batches={int(k): BatchSums(*v) for k, v in entry["batches"].items()},
            )
        )
        runs.append(tuple(Run(folder / _COUNTS_FILE, at, size) for at, size in entry["runs"]))
    return Partial(data["num_samples"], tuple(sums), tuple(runs))


class _Tally:
    """Adds up chunk after chunk."""

    def __init__(self, options: WorkOptions, counter: IdCounter) -> None:
        self.options = options
        self.counter = counter
        self.num_samples = 0
        self.sums = [TableSums() for _ in options.table_map.tables]
        self._windows = [_Windows(options.batch_sizes) for _ in self.sums]

    def add(self, chunk: Chunk) -> None:
        for i, (table, features) in enumerate(self.options.table_map.tables):
            known = self.options.table_map.num_embeddings.get(table)
            fold = self.options.max_ind_range
            limit = fold if fold is None or known is None else min(fold, known)
            jagged = []
            for name in features:
                feature = chunk.features[name]
                values = feature.values
                highest = int(values.max()) if len(values) else -1
                self.sums[i].highest_raw = max(self.sums[i].highest_raw, highest)
                if limit is not None and highest >= limit:
                    values = values % limit
                elif known is not None and highest >= known:
                    raise _out_of_range(table, name, highest, known)
                jagged.append(Jagged(values, feature.lengths))
                self.counter.add(i, values)
            self._add_lengths(self.sums[i], features, jagged)
            self.sums[i].num_samples += chunk.num_samples
            self._windows[i].add(jagged, chunk.num_samples, self.sums[i].batches)
        self.num_samples += chunk.num_samples

    @staticmethod
    def _add_lengths(sums: TableSums, names: Sequence[str], jagged: Sequence[Jagged]) -> None:
        for name, feature in zip(names, jagged, strict=True):
            _count_lengths(sums.feature_lengths.setdefault(name, Counter()), feature.lengths)
        _count_lengths(sums.lengths, np.sum([feature.lengths for feature in jagged], axis=0))


def _count_lengths(counter: Counter[int], lengths: IntArray) -> None:
    values, counts = count_ids(lengths)
    counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def _int_keys(counts: Mapping[str, int]) -> Counter[int]:
    return Counter({int(key): count for key, count in counts.items()})


class _Windows:
    """Takes the first batches of each size out of the unit's stream of samples."""

    def __init__(self, batch_sizes: Sequence[int]) -> None:
        self._position = 0
        self._parts: dict[int, list[IntArray]] = {size: [] for size in batch_sizes}

    def add(
        self, jagged: Sequence[Jagged], num_samples: int, batches: dict[int, BatchSums]
    ) -> None:
        start, stop = self._position, self._position + num_samples
        self._position = stop
        wanted = max((size * MEASURED_BATCHES for size in self._parts), default=0)
        if start >= wanted:
            return
        edges = [np.concatenate([[0], np.cumsum(feature.lengths)]) for feature in jagged]
        for size, parts in self._parts.items():
            sums = batches.setdefault(size, BatchSums())
            for low, high in _windows(size, start, stop):
                for feature, edge in zip(jagged, edges, strict=True):
                    parts.append(feature.values[edge[low - start] : edge[high - start]])
                if high % size == 0:
                    _measure(np.concatenate(parts), sums)
                    parts.clear()


def _windows(size: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of measured batches that are among the samples ``start .. stop - 1``."""
    low = start
    last = min(stop, size * MEASURED_BATCHES)
    while low < last:
        high = min((low // size + 1) * size, last)
        yield low, high
        low = high


def _measure(ids: IntArray, sums: BatchSums) -> None:
    """Add one batch: its distinct rows, and how many occur 1, 2, 3-4, ... or above 2^15 times."""
    _, counts = count_ids(ids)
    bins = np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    reuse = np.bincount(np.minimum(bins, REUSE_BINS - 1), minlength=REUSE_BINS)
    sums.add(BatchSums(1, len(ids), len(counts), reuse.tolist()))


def _chunks(unit: Unit) -> Iterator[tuple[Chunk, int]]:
    """Chunks of a unit, with their share of the bytes of their piece, for progress."""
    for reader, piece in unit.pieces:
        left = piece.num_bytes
        for chunk in reader.read(piece):
            size = min(left, sum(feature.values.nbytes for feature in chunk.features.values()))
            left -= size
            yield chunk, size
        if left:
            yield Chunk(0, {}), left


def _write_sums(path: Path, tally: _Tally) -> None:
    entries = [
        {
            "num_samples": sums.num_samples,
            "highest_raw": sums.highest_raw,
            "lengths": sums.lengths,
            "feature_lengths": sums.feature_lengths,
            "batches": {
                size: [b.num_batches, b.num_indices, b.num_unique, b.reuse]
                for size, b in sums.batches.items()
            },
            "runs": tally.counter.runs[i],
        }
        for i, sums in enumerate(tally.sums)
    ]
    text = json.dumps({"num_samples": tally.num_samples, "tables": entries})
    with writing(path):
        path.write_text(text, encoding="utf-8")


def _out_of_range(table: str, feature: str, highest: int, known: int) -> InvalidInputError:
    return InvalidInputError(
        f"feature {feature!r} has index {highest}, but table {table!r} has {known} rows; "
        "correct the table map or fold ids with --max-ind-range"
    )
