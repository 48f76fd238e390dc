"""Counts the indices of all samples with DuckDB, which goes to disk beyond its memory.

Samples are rows of one table of the database, ``data``, numbered from 0 by ``rowid``, with a column
for each feature: integers, or lists of integers. What is counted are integers, so that neither
memory nor threads nor the order of the work changes a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from costmodels import units as si
from costmodels.datatypes import IntArray
from planner.errors import refuse
from planner.profiling.readers import Chunk, arrow, check_indices, is_list

REUSE_BINS: Final = 17
MEASURED_SAMPLES: Final = 2**24
LEAST_BATCHES: Final = 16
"""Batches of so many samples together, and at least 16, are measured at even distances: in fewer
samples every batch, since users who come in order make batches differ."""
LEAST_MEMORY_BYTES: Final = 256.0 * si.MIB
"""DuckDB does not work with much less: each thread holds blocks and hash tables of its own."""


@dataclass(frozen=True, slots=True)
class BatchSums:
    """Sums over the measured batches of one size: number, indices, distinct rows, reuse.

    ``num_followed`` are the distinct rows of those batches after which another whole one comes, and
    ``num_shared`` the ones of them that this next batch has too.
    """

    num_batches: int
    num_indices: int
    reuse: Sequence[int]
    num_followed: int
    num_shared: int

    @property
    def num_unique(self) -> int:
        """Distinct rows, added up over batches."""
        return sum(self.reuse)


@dataclass(frozen=True, slots=True)
class TableSums:
    """What was counted for one table, without its ids.

    ``lengths`` counts samples by their number of indices in all features of the table together, and
    ``rows_by_count`` the table's rows by how often they were accessed. ``highest_raw`` is the
    highest id before folding, -1 without any id, and ``highest`` the highest one after it.
    """

    num_samples: int
    highest_raw: int
    highest: int
    lengths: Counter[int]
    feature_lengths: Mapping[str, Counter[int]]
    batches: Mapping[int, BatchSums]
    rows_by_count: Mapping[int, int]


@contextmanager
def open_indices(
    features: Sequence[str], folder: Path, memory_bytes: float, threads: int
) -> Iterator[Indices]:
    """A database without samples, which leaves nothing behind.

    Args:
        features: the names of the features.
        folder: where a folder may be made for what is more than the memory.
        memory_bytes: memory of the database, at least :data:`LEAST_MEMORY_BYTES`.
        threads: how many cores it, and Arrow, may use.

    Raises:
        InvalidInputError: DuckDB is not installed.
    """
    duckdb = arrow("duckdb")
    with TemporaryDirectory(prefix=".shardplan-profile-", dir=folder) as place:
        config = {
            "threads": threads,
            "memory_limit": f"{max(memory_bytes, LEAST_MEMORY_BYTES) / si.MIB:.0f}MiB",
            "temp_directory": place,
            "autoinstall_known_extensions": False,
        }
        before = arrow().cpu_count()
        arrow().set_cpu_count(threads)
        try:
            with duckdb.connect(":memory:", config=config) as connection:
                yield Indices(connection, features, duckdb.Error)
        finally:
            arrow().set_cpu_count(before)


class Indices:
    """The samples of all files; see :func:`open_indices`.

    ``highest`` has the highest index of each feature, -1 without any.
    """

    def __init__(self, connection: Any, features: Sequence[str], error: type[Exception]) -> None:
        self.num_samples = 0
        self.highest = dict.fromkeys(features, -1)
        self._connection, self._error = connection, error
        self._columns = {name: f"c{i}" for i, name in enumerate(features)}
        self._lists: set[str] = set()
        columns = ", ".join(f"{column} BIGINT" for column in self._columns.values())
        self._run(f"CREATE TABLE data ({columns})")

    def add(self, chunk: Chunk) -> None:
        """Add samples.

        Raises:
            InvalidInputError: an index cannot be a row.
        """
        for name, high in check_indices(chunk).items():
            self.highest[name] = max(high, self.highest[name])
        fields = []
        for name, column in self._columns.items():
            given = is_list(chunk.features[name].type)
            if given and name not in self._lists:
                self._run(f"ALTER TABLE data ALTER {column} TYPE BIGINT[] USING {_bag(column)}")
                self._lists.add(name)
            fields.append(_bag(column) if name in self._lists and not given else column)
        columns = [chunk.features[name] for name in self._columns]
        samples = arrow().Table.from_arrays(columns, list(self._columns.values()))
        self._connection.register("samples", samples)
        self._run(f"INSERT INTO data SELECT {', '.join(fields)} FROM samples")
        self._connection.unregister("samples")
        self.num_samples += chunk.num_samples

    def count(
        self, features: Sequence[str], fold: int | None, batch_sizes: Sequence[int]
    ) -> TableSums:
        """Count the ids of a table, which :meth:`by_range` then knows.

        Args:
            features: the features of the table.
            fold: ids are taken modulo this number; None to take them as they are.
            batch_sizes: samples per batch, for distinct rows and reuse.
        """
        self._run(
            "CREATE OR REPLACE TABLE counts AS SELECT id, count(*) AS n "
            f"FROM ({self._ids(features, fold)}) GROUP BY id"
        )
        ((highest,),) = self._run("SELECT max(id) FROM counts")
        lengths = {name: self._lengths((name,)) for name in features}
        return TableSums(
            num_samples=self.num_samples,
            highest_raw=max(self.highest[name] for name in features),
            highest=-1 if highest is None else highest,
            lengths=lengths[features[0]] if len(features) == 1 else self._lengths(features),
            feature_lengths=lengths,
            batches={size: self._batches(features, fold, size) for size in batch_sizes},
            rows_by_count=dict(self._run("SELECT n, count(*) FROM counts GROUP BY n ORDER BY n")),
        )

    def by_range(self, num_embeddings: int, num_ranges: int) -> tuple[IntArray, IntArray, IntArray]:
        """Of the table counted last: range of ids, count, and rows of that range and count."""
        found = self._run(
            f"SELECT id * {num_ranges} // {num_embeddings} AS place, n, count(*) AS num_rows "
            "FROM counts GROUP BY place, n ORDER BY place, n",
            "fetchnumpy",
        )
        return found["place"], found["n"], found["num_rows"]

    def _ids(
        self, features: Sequence[str], fold: int | None, batch: str = "0", where: str = "true"
    ) -> str:
        """A query of the ids of a table in samples of some kind, each with the sample's batch."""
        parts = []
        for name in features:
            column = self._columns[name]
            value = f"unnest({column})" if name in self._lists else column
            known = "true" if name in self._lists else f"{column} IS NOT NULL"
            parts.append(
                f"SELECT {batch} AS batch, {value} AS id FROM data WHERE {where} AND {known}"
            )
        ids = " UNION ALL ".join(parts)
        return ids if fold is None else f"SELECT batch, id % {fold} AS id FROM ({ids})"

    def _lengths(self, features: Sequence[str]) -> Counter[int]:
        """Samples by their number of indices."""
        sizes = [
            f"coalesce(len({column}), 0)" if name in self._lists else f"({column} IS NOT NULL)::INT"
            for name, column in self._columns.items()
            if name in features
        ]
        return Counter(
            dict(self._run(f"SELECT {' + '.join(sizes)} AS size, count(*) FROM data GROUP BY size"))
        )

    def _batches(self, features: Sequence[str], fold: int | None, size: int) -> BatchSums:
        """Sums over whole batches of consecutive samples; reuse by 1, 2, 3-4, ... accesses."""
        whole = self.num_samples // size
        stride = -(-whole // max(LEAST_BATCHES, MEASURED_SAMPLES // size)) or 1
        batch = f"rowid // {size}"
        ids = self._ids(features, fold, batch, f"rowid < {whole * size} AND {batch} % {stride} < 2")
        rows = self._run(
            f"SELECT least(ceil(log2(n))::INT, {REUSE_BINS - 1}) AS bin, count(*), sum(n)::BIGINT, "
            f"count(*) FILTER (batch < {whole - 1}), count(*) FILTER (next = batch + 1) FROM "
            "(SELECT batch, n, lead(batch) OVER (PARTITION BY id ORDER BY batch) AS next FROM "
            f"(SELECT batch, id, count(*) AS n FROM ({ids}) GROUP BY batch, id)) "
            f"WHERE batch % {stride} = 0 GROUP BY bin"
        )
        found = {place: unique for place, unique, *_ in rows}
        return BatchSums(
            num_batches=len(range(0, whole, stride)),
            num_indices=sum(row[2] for row in rows),
            reuse=[found.get(place, 0) for place in range(REUSE_BINS)],
            num_followed=sum(row[3] for row in rows),
            num_shared=sum(row[4] for row in rows),
        )

    def _run(self, query: str, fetch: str = "fetchall") -> Any:
        try:
            return getattr(self._connection.execute(query), fetch)()
        except self._error as error:
            reason = str(error).strip().splitlines()[0]
            refuse(f"counting stopped: {reason}; give more --memory, or room beside the output")


def _bag(column: str) -> str:
    """SQL of one index as a list; missing ones stay so."""
    return f"CASE WHEN {column} IS NOT NULL THEN [{column}] END"
