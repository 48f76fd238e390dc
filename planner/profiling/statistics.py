"""Counts indices with DuckDB, and computes the statistics of each table from the counts."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from costmodels import units as si
from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution import samples as laws
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from planner.errors import refuse
from planner.profiling import stats as schema
from planner.profiling.readers import Chunk, arrow, check_indices, is_list

# ------------------ indices counted by DuckDB, which goes to disk beyond its memory
#
# Samples are rows of one table of the database, ``data``, numbered from 0 by ``rowid``, with a
# column for each feature: integers, or lists of integers. What is counted are integers, so that
# neither memory nor threads nor the order of the work changes a result.

MEASURED_SAMPLES: Final = 2**24
LEAST_BATCHES: Final = 16
"""Batches of so many samples together, and at least 16, are measured at even distances: in fewer
samples every batch, since users who come in order make batches differ."""
LEAST_MEMORY_BYTES: Final = 256.0 * si.MIB
"""DuckDB does not work with much less: each thread holds blocks and hash tables of its own."""


@dataclass(frozen=True, slots=True)
class ByFeature:
    """The table of each feature that is named, and the rows of tables whose size is known."""

    tables: Mapping[str, str]
    num_embeddings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How to profile.

    Attributes:
        format_name: name of a reader, or ``auto``.
        features: the features to profile; empty for all.
        by_feature: the tables of features that share one, or whose number of rows is known.
        batch_sizes: samples per batch, for distinct rows.
        max_ind_range: ids are taken modulo this number, or modulo the table's rows if those are
            known and fewer; None to take them as they are.
        first_samples: number of samples to read from the start; None for all.
        sample_rows: about how many samples to read, in blocks spread evenly over the data; None for
            all.
        memory_bytes: memory for counting; beyond it, DuckDB works on the disk of the output. At
            least 256 MiB are used.
        jobs: number of threads.
    """

    format_name: str = "auto"
    features: tuple[str, ...] = ()
    by_feature: ByFeature | None = None
    batch_sizes: tuple[int, ...] = (2048, 16384)
    max_ind_range: int | None = None
    first_samples: int | None = None
    sample_rows: int | None = None
    memory_bytes: float = 2.0 * si.GIB
    jobs: int = 1


@contextmanager
def open_indices(
    features: Sequence[str], folder: Path, memory_bytes: float, threads: int
) -> Iterator[Indices]:
    """A database without samples, which leaves nothing behind.

    Linear algebra uses one thread meanwhile: sums must not depend on the number of cores.

    Args:
        features: the names of the features.
        folder: where a folder may be made for what is more than the memory.
        memory_bytes: memory of the database, at least :data:`LEAST_MEMORY_BYTES`.
        threads: how many cores it, and Arrow, may use.

    Raises:
        InvalidInputError: DuckDB is not installed.
    """
    duckdb = arrow("duckdb")
    threadpool_limits = importlib.import_module("threadpoolctl").threadpool_limits
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
            with (
                duckdb.connect(":memory:", config=config) as connection,
                threadpool_limits(limits=1),
            ):
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
            given = is_list(chunk.batch.column(name).type)
            if given and name not in self._lists:
                self._run(f"ALTER TABLE data ALTER {column} TYPE BIGINT[] USING {_bag(column)}")
                self._lists.add(name)
            fields.append(_bag(column) if name in self._lists and not given else column)
        samples = arrow().Table.from_batches([chunk.batch]).select([*self._columns])
        self._connection.register("samples", samples.rename_columns([*self._columns.values()]))
        self._run(f"INSERT INTO data SELECT {', '.join(fields)} FROM samples")
        self._connection.unregister("samples")
        self.num_samples += chunk.batch.num_rows

    def count(self, features: Sequence[str], fold: int | None) -> tuple[IntArray, IntArray, int]:
        """Count the ids of a table, which :meth:`by_range` then knows.

        Args:
            features: the features of the table.
            fold: ids are taken modulo this number; None to take them as they are.

        Returns:
            Numbers of accesses, ascending; how many rows have each; and the highest id, -1 without
            any.
        """
        self._run(
            "CREATE OR REPLACE TABLE counts AS SELECT id, count(*) AS n "
            f"FROM ({self._ids(features, fold)}) GROUP BY id"
        )
        ((highest,),) = self._run("SELECT max(id) FROM counts")
        found = self._run("SELECT n, count(*) FROM counts GROUP BY n ORDER BY n")
        counts, rows = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return counts, rows, -1 if highest is None else highest

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

    def pooling(self, features: Sequence[str]) -> schema.PoolingStats:
        """Indices per sample, in all of some features together."""
        sizes = [
            f"coalesce(len({column}), 0)" if name in self._lists else f"({column} IS NOT NULL)::INT"
            for name, column in self._columns.items()
            if name in features
        ]
        ((mean, p50, p99, most, empty_ratio),) = self._run(
            f"SELECT sum(size * n) / {self.num_samples}, "
            f"min(size) FILTER (2 * below >= {self.num_samples}), "
            f"min(size) FILTER (100 * below >= {99 * self.num_samples}), max(size), "
            f"coalesce(sum(n) FILTER (size = 0), 0) / {self.num_samples} FROM "
            "(SELECT size, count(*) AS n, sum(count(*)) OVER (ORDER BY size) AS below FROM "
            f"(SELECT {' + '.join(sizes)} AS size FROM data) GROUP BY size)"
        )
        return schema.PoolingStats(mean=mean, p50=p50, p99=p99, max=most, empty_ratio=empty_ratio)

    def batches(self, features: Sequence[str], fold: int | None, size: int) -> schema.BatchStats:
        """Means over whole batches of consecutive samples; 0 without any."""
        if not (whole := self.num_samples // size):
            none = {"mean_indices": 0.0, "mean_unique_rows": 0.0}
            return schema.BatchStats(batch_size=size, num_batches=0, **none)
        stride = -(-whole // max(LEAST_BATCHES, MEASURED_SAMPLES // size))
        num_batches, batch = len(range(0, whole, stride)), f"rowid // {size}"
        ids = self._ids(features, fold, batch, f"rowid < {whole * size} AND {batch} % {stride} < 2")
        is_shared, is_followed = "next = batch + 1", f"batch < {whole - 1}"
        (means,) = self._run(
            f"SELECT {size}, {num_batches}, coalesce(sum(n), 0) / {num_batches}, "
            f"count(*) / {num_batches}, "
            f"count(*) FILTER ({is_shared}) / nullif(count(*) FILTER ({is_followed}), 0), "
            f"coalesce(sum(n) FILTER ({is_shared}), 0) / sum(n) FILTER ({is_followed}) FROM "
            "(SELECT batch, n, lead(batch) OVER (PARTITION BY id ORDER BY batch) AS next FROM "
            f"(SELECT batch, id, count(*) AS n FROM ({ids}) GROUP BY batch, id)) "
            f"WHERE batch % {stride} = 0"
        )
        names = schema.BatchStats.model_fields
        return schema.BatchStats(**dict(zip(names, means, strict=True)))

    def _run(self, query: str, fetch: str = "fetchall") -> Any:
        try:
            return getattr(self._connection.execute(query), fetch)()
        except self._error as error:
            reason = str(error).strip().splitlines()[0]
            refuse(f"counting stopped: {reason}; give more --memory, or room beside the output")


def _bag(column: str) -> str:
    """SQL of one index as a list; missing ones stay so."""
    return f"CASE WHEN {column} IS NOT NULL THEN [{column}] END"


# ------------------ statistics of one table from the counts of its ids

NUM_RANGES: Final = 64
LARGEST_TABLE: Final = 2**48
_FEWEST_ROWS_PER_RANGE: Final = 16
_HOTTEST_LEFT_OUT: Final = 100
_CLUSTERED: Final = 2.0
_UNEVEN: Final = 1.25
_SIXTEENTHS: Final = 16
_HOTTEST_RATIOS: Final = (0.001, 0.01, 0.1)
_CACHE_RATIOS: Final = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
_FEWEST_DRAWS: Final = 1e-4
_MORE_RANKS: Final = (4, 16, 64)


def table_stats(
    indices: Indices, table: str, features: Sequence[str], options: ProfileOptions, *, hashed: bool
) -> schema.TableStats:
    """Statistics of one table; every number follows from exact counts.

    Args:
        indices: of all features.
        table: its name, for messages.
        features: its features.
        options: how ids are folded, and batch sizes.
        hashed: whether ids are hashes and not rows, so that only their number counts.

    Raises:
        InvalidInputError: it has no index, or one that is too large.
    """
    fold, known = options.max_ind_range, options.by_feature
    num_embeddings = None if known is None else known.num_embeddings.get(table)
    if num_embeddings is not None and fold is None:
        for name in features:
            if (highest := indices.highest[name]) >= num_embeddings:
                refuse(
                    f"feature {name!r} has index {highest}, but table {table!r} has "
                    f"{num_embeddings} rows; correct the table map or fold ids with --max-ind-range"
                )
    fold = fold and min(fold, num_embeddings or fold)
    counts, rows, highest = indices.count(features, fold)
    if highest < 0:
        refuse(f"table {table!r} received no index at all; leave its features out with --features")
    batches = [indices.batches(features, fold, n) for n in sorted(set(options.batch_sizes))]
    hashed = num_embeddings is None and (hashed or highest >= LARGEST_TABLE)
    if num_embeddings is None:
        needed = 1 + (highest if fold is None else max(indices.highest[n] for n in features))
        num_embeddings = _chao(counts, rows) if hashed else min(fold or needed, needed)
    law = laws.smooth(counts, rows, num_embeddings)
    ranges = range_rows = None
    if not hashed and num_embeddings >= NUM_RANGES * _FEWEST_ROWS_PER_RANGE:
        ranges, range_rows = _ranges(indices, law, counts, rows, num_embeddings)
    found = schema.TableStats(
        features={name: indices.pooling((name,)) for name in features},
        num_samples=indices.num_samples,
        num_indices=int(counts @ rows),
        num_unique_rows=int(rows.sum()),
        num_embeddings=num_embeddings,
        ids_are_hashes=hashed,
        highest_index=highest,
        unseen_mass_ratio=float(rows[counts == 1].sum() / (counts @ rows)),
        pooling=indices.pooling(features),
        histogram=_histogram(law, counts, rows),
        law=_law(law, range_rows),
        ranges=ranges,
        zipf=None,
        batches=[],
        hottest_rows={},
        cache={},
    )
    return _with_law(found, batches, counts, rows)


def _with_law(
    table: schema.TableStats, batches: Sequence[schema.BatchStats], counts: IntArray, rows: IntArray
) -> schema.TableStats:
    """Add what follows from the law, with the law rounded as in the file."""
    shown = schema.TableStats.model_validate(schema.rounded(table.model_dump()), strict=False)
    law = shown.distribution(table.num_embeddings)
    num_rows = table.num_embeddings
    drawn = min(_chao(counts, rows), num_rows)
    more = (num_rows * factor for factor in _MORE_RANKS) if table.ids_are_hashes else ()
    zipf = fit_zipf(law, table.num_indices, (table.num_unique_rows, drawn, num_rows, *more))
    return table.model_copy(
        update={
            "zipf": zipf,
            "batches": [
                b if b.num_batches else _drawn_batch(b.batch_size, shown.pooling.mean, law)
                for b in batches
            ],
            "hottest_rows": {str(r): law.access_share(r * num_rows) for r in _HOTTEST_RATIOS},
            "hot_share": _hot_share(law, counts, rows, table.num_samples),
            "cache": {str(r): min(law.hit_ratio(r * num_rows), 1.0) for r in _CACHE_RATIOS},
        }
    )


def _hot_share(
    law: Empirical, counts: IntArray, rows: IntArray, num_samples: int
) -> schema.HotShare:
    hottest = laws.HOTTEST_RATIO * law.num_embeddings
    seen = counts.astype(float), rows.astype(float)
    low, high = laws.hot_share_range(*seen, law.num_embeddings, hottest)
    needed: int | None = 0
    if not laws.tells(low, high):
        num_draws = float(counts @ rows)
        draws = laws.draws_needed(law.frequency_bins(), num_draws, hottest)
        needed = None if draws is None else round(num_samples * draws / num_draws)
    return schema.HotShare(low_ratio=low, high_ratio=high, samples_needed=needed)


def _chao(counts: IntArray, rows: IntArray) -> int:
    """Estimate how many rows there are, including rows that were not seen.

    Chao (1984): at least N1 (N1 - 1) / (2 (N2 + 1)) rows were not seen, where N1 rows were seen
    once and N2 rows twice.
    """
    once, twice = (int(rows[counts == k].sum()) for k in (1, 2))
    return min(int(rows.sum()) + once * (once - 1) // (2 * (twice + 1)), LARGEST_TABLE)


def _histogram(law: laws.Smoothed, counts: IntArray, rows: IntArray) -> schema.Histogram:
    class_of = np.searchsorted(law.class_low, counts, side="right") - 1
    accesses = np.bincount(class_of, counts * rows, minlength=len(law.class_low))
    in_class = law.num_rows_per_class[::-1].astype(np.int64)
    return schema.Histogram(
        lowest_count=law.class_low[::-1].tolist(),
        rank_end=np.cumsum(in_class).tolist(),
        rows=in_class.tolist(),
        accesses=accesses[::-1].astype(np.int64).tolist(),
    )


def _law(law: laws.Smoothed, range_rows: FloatArray | None) -> schema.FittedLaw:
    """The bins of the law; if ranges of ids were smoothed one by one, those of all ranges."""
    rows = law.num_rows if range_rows is None else range_rows.sum(axis=0)
    return schema.FittedLaw(
        rows=rows.tolist(), probability=(law.num_draws / float(rows @ law.num_draws)).tolist()
    )


def _ranges(
    indices: Indices, law: laws.Smoothed, counts: IntArray, rows: IntArray, num_embeddings: int
) -> tuple[schema.Ranges, FloatArray | None]:
    """How accesses, and the rows of each bin if uneven, are spread over ranges of ids."""
    # The count that fewer rows than are left out exceed; in a small sample the highest count.
    from_hottest = np.cumsum(rows[::-1])
    is_small = from_hottest[-1] < _HOTTEST_LEFT_OUT * NUM_RANGES
    rank = 0 if is_small else np.searchsorted(from_hottest, _HOTTEST_LEFT_OUT)
    hot_count = int(counts[::-1][rank])
    place, seen, found = indices.by_range(num_embeddings, NUM_RANGES)
    accesses = np.bincount(place, seen * found, minlength=NUM_RANGES)
    cold = np.bincount(place, np.where(seen <= hot_count, seen, 0) * found, minlength=NUM_RANGES)
    left = counts <= hot_count
    ratio = _clustering(cold.astype(float), float((counts[left] ** 2.0) @ rows[left]))
    share = accesses / accesses.sum()
    uneven = float(share.reshape(_SIXTEENTHS, -1).sum(axis=1).max()) * _SIXTEENTHS > _UNEVEN
    clustered, in_range = ratio > _CLUSTERED, None
    if clustered or uneven:
        in_range = _smoothed(law, place, seen, found, num_embeddings)
    ranges = schema.Ranges(
        num_ids=num_embeddings,
        access_ratio=share.tolist(),
        clustering_ratio=ratio,
        clustered=clustered,
        rows=[
            [(int(i), float(line[i])) for i in np.flatnonzero(line)]
            for line in ([] if in_range is None else in_range)
        ],
    )
    return ranges, in_range


def _smoothed(
    law: laws.Smoothed, place: IntArray, seen: IntArray, found: IntArray, num_embeddings: int
) -> FloatArray:
    """``[ranges, bins]`` rows of each bin of the law in each range of ids.

    Args:
        law: of the whole table.
        place: ``[n]`` ranges of ids.
        seen: ``[n]`` counts.
        found: ``[n]`` rows that have both.
        num_embeddings: rows of the table.
    """
    head_low = law.class_low[law.class_low > laws.LOW_COUNT]
    width = laws.LOW_COUNT + 1 + len(head_low)
    head = laws.LOW_COUNT + np.searchsorted(head_low, seen, side="right")
    column = np.where(seen <= laws.LOW_COUNT, seen, head)
    flat = np.bincount(place * width + column, found, minlength=NUM_RANGES * width)
    rows = flat.reshape(NUM_RANGES, width).astype(float)
    edges = -(-np.arange(NUM_RANGES + 1) * num_embeddings // NUM_RANGES)
    rows[:, 0] = np.diff(edges) - rows.sum(axis=1)
    in_range = laws.smooth_ranges(law, rows[:, : laws.LOW_COUNT + 1], rows[:, laws.LOW_COUNT + 1 :])
    in_range[in_range * np.maximum(law.num_draws, 1e-3) < _FEWEST_DRAWS] = 0.0
    return in_range


def _clustering(accesses: FloatArray, squares: float) -> float:
    """Variance of accesses over ranges of ids, divided by that of rows placed at random.

    If rows with accesses w are placed into R ranges at random, the sum of (A_r - mean)^2 over the
    ranges' accesses A_r has the expected value (1 - 1/R) sum w^2.
    """
    if squares <= 0:
        return 0.0
    spread = float(((accesses - accesses.mean()) ** 2).sum())
    return spread / (squares * (1.0 - 1.0 / NUM_RANGES))


def _drawn_batch(size: int, pooling_factor: float, law: Empirical) -> schema.BatchStats:
    """What the law predicts of a batch of a size of which there is no whole one."""
    indices = size * pooling_factor
    return schema.BatchStats(
        batch_size=size,
        num_batches=0,
        mean_indices=indices,
        mean_unique_rows=law.expected_unique_rows(indices),
    )


# ------------------------------------------------------------------ the nearest Zipf law

_EDGES: Final = 80
_FEWEST_RANKS: Final = 4
_STARTS: Final = ((1.0, 0.0), (1.5, 3.0))
"""Points to start from: exponent s, and ln(1 + q) of the shift q."""
_LARGEST_EXPONENT: Final = 8.0
_TOLERANCES: Final = {"xatol": 1e-5, "fatol": 1e-13}


def fit_zipf(law: Empirical, num_indices: int, num_ranks: Sequence[int]) -> schema.ZipfStats | None:
    """Fit a law by maximum likelihood over log-spaced bins of ranks; None for very few rows.

    p_k is proportional to (k + shift)^-exponent for k = 1..num_ranks. A sample cannot tell which
    rows are hotter among those expected less than once in it. These rows are one bin together. The
    number of ranks is the candidate that fits best.

    Args:
        law: the measured law, smoothed.
        num_indices: size of the sample behind it.
        num_ranks: candidates for the number of rows that are drawn at all.
    """
    rows, probability = law.frequency_bins()
    known = float(rows[probability * num_indices >= 1.0].sum())
    if min(num_ranks) < _FEWEST_RANKS:
        return None
    found = []
    for last in sorted(set(num_ranks)):
        edges = np.round(np.geomspace(1.0, min(max(known, 2.0), last), _EDGES))
        edges = np.unique(np.append(edges, last))
        seen = _mass_until(edges, rows, probability)
        found.append(_nearest(last, edges, seen / seen[-1]))
    return min(found, key=lambda pair: pair[0])[1]


def _mass_until(edges: FloatArray, rows: FloatArray, probability: FloatArray) -> FloatArray:
    """Probability of the hottest ranks up to each edge, from frequency bins."""
    ranks, mass = (np.concatenate([[0.0], np.cumsum(x)]) for x in (rows, rows * probability))
    return np.asarray(np.interp(edges, ranks, mass))


def _nearest(num_ranks: int, edges: FloatArray, seen: FloatArray) -> tuple[float, schema.ZipfStats]:
    """The law with ``num_ranks`` ranks of the least Kullback-Leibler distance, and the distance."""
    from scipy.optimize import minimize

    mass = np.diff(seen, prepend=0.0)
    own = float(mass @ np.log(np.maximum(mass, 1e-300)))

    def until(point: FloatArray) -> FloatArray:
        shift = float(np.expm1(point[1]))
        zipf = Zipf(num_embeddings=num_ranks, exponent=float(point[0]), shift=shift)
        return _mass_until(edges, *zipf.frequency_bins())

    def distance(point: FloatArray) -> float:
        model = np.diff(until(point), prepend=0.0)
        return own - float(mass @ np.log(np.maximum(model, 1e-300)))

    limits = ((0.0, _LARGEST_EXPONENT), (0.0, float(np.log1p(10.0 * num_ranks))))
    tried = [
        minimize(distance, start, method="Nelder-Mead", bounds=limits, options=_TOLERANCES)
        for start in _STARTS
    ]
    best = min(tried, key=lambda one: one.fun)
    return best.fun, schema.ZipfStats(
        exponent=float(best.x[0]),
        shift=float(np.expm1(best.x[1])),
        num_ranks=num_ranks,
        ks_ratio=float(np.abs(until(best.x) - seen).max()),
    )
