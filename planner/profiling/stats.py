"""``stats.json``: what was measured per table, and the law of indices that follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from costmodels.datatypes import FloatArray
from costmodels.distribution.empirical import Empirical
from costmodels.errors import CostModelError
from costmodels.workload import Pooling, Table, Workload
from planner.errors import InvalidInputError, reading, refuse, refuse_any
from planner.support.files import once_per_version
from planner.support.text import printable

KIND: Final = "shardplan_stats"
_HEADER: Final = (("kind",), ("schema_version",))
_SHOWN_ERRORS: Final = 8
_SHOWN_TABLES: Final = 3

Count = Annotated[int, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0, le=1 + 1e-6)]
Amount = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    """Strict: right types, no unknown keys, no infinities."""

    model_config = ConfigDict(
        defer_build=True, strict=True, frozen=True, extra="forbid", allow_inf_nan=False
    )


class PoolingStats(_Part):
    """Indices per sample: of one feature, or of all features of a table together."""

    mean: Amount
    p50: Count
    p99: Count
    max: Count
    empty_ratio: Ratio


class _Columns(_Part):
    """Lists of equal length."""

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        lengths = {len(column) for _, column in self}
        if len(lengths) != 1 or 0 in lengths:
            msg = f"{', '.join(type(self).model_fields)} must be of equal length, at least 1"
            raise ValueError(msg)
        return self


class Histogram(_Columns):
    """Rows by how often they were accessed, hottest first; the last class was never seen.

    Classes are log-spaced in rank (and, below 128 accesses, half an octave of counts).
    """

    lowest_count: list[Count]
    rank_end: list[Count]
    rows: list[Count]
    accesses: list[Count]


class FittedLaw(_Columns):
    """Smoothed frequency bins, hottest first; the last holds rows of probability 0."""

    rows: list[Amount]
    probability: list[Ratio]


class Ranges(_Part):
    """Accesses by equal ranges of ids.

    ``clustering_ratio`` is the variance of the shares over that of rows placed at random, hottest
    rows left out: about 1 when hot rows are scattered. ``rows`` lists, per range, [bin of the law,
    rows]; empty when shares are even.
    """

    num_ids: Annotated[int, Field(ge=1)]
    access_ratio: list[Ratio]
    clustering_ratio: Amount
    clustered: bool
    rows: list[list[tuple[Count, Amount]]]


class ZipfStats(_Part):
    """The nearest Zipf-Mandelbrot law; ``ks_ratio`` 0 is a perfect fit."""

    exponent: Amount
    shift: Amount
    num_ranks: Count
    ks_ratio: Ratio


class BatchStats(_Part):
    """Means over the measured batches of one size; without any, what the law predicts.

    ``next_batch_ratio``: share of the distinct rows of a batch that the next batch has too;
    ``next_batch_indices_ratio``: share of the indices of these rows; null if no two batches follow
    each other.
    """

    batch_size: Annotated[int, Field(ge=1)]
    num_batches: Count
    mean_indices: Amount
    mean_unique_rows: Amount
    next_batch_ratio: Ratio | None = None
    next_batch_indices_ratio: Ratio | None = None


class HotShare(_Part):
    """Least and most that the hottest 1 % of rows may hold of the accesses, by this sample.

    ``samples_needed``: about how many samples would tell; 0 if these do, null if no number tried.
    """

    low_ratio: Ratio
    high_ratio: Ratio
    samples_needed: Count | None


class TableStats(_Part):
    """What was measured of one table.

    ``hottest_rows``: share of accesses on the hottest rows, by their share of all rows. ``cache``:
    hit ratio of an LRU cache, by the share of the rows that it holds (Che's approximation).
    """

    features: dict[str, PoolingStats]
    num_samples: Count
    num_indices: Count
    num_unique_rows: Count
    num_embeddings: Annotated[int, Field(ge=1)]
    ids_are_hashes: bool
    highest_index: Count
    unseen_mass_ratio: Ratio
    pooling: PoolingStats
    histogram: Histogram
    law: FittedLaw
    ranges: Ranges | None
    zipf: ZipfStats | None
    batches: list[BatchStats]
    hottest_rows: dict[str, Ratio]
    hot_share: HotShare | None = None
    cache: dict[str, Ratio]

    @model_validator(mode="after")
    def _bins_exist(self) -> TableStats:
        used = {number for line in (self.ranges.rows if self.ranges else []) for number, _ in line}
        if used and max(used) >= len(self.law.rows):
            msg = f"ranges.rows names bin {max(used)}, but the law has {len(self.law.rows)} bins"
            raise ValueError(msg)
        return self

    def distribution(self, num_embeddings: int) -> Empirical:
        """The law of indices for a table with ``num_embeddings`` rows.

        Raises:
            InvalidInputError: the data have ids that such a table does not have.
        """
        least, hot = self.num_rows_needed, self.hot_share
        if num_embeddings < least:
            what = f"{least} distinct ids" if self.ids_are_hashes else f"ids up to {least - 1}"
            refuse(
                f"a table of {num_embeddings} rows cannot take the data's {what}; profile again "
                f"with --max-ind-range {num_embeddings}, or correct num_embeddings"
            )
        return Empirical.from_bins(
            np.array(self.law.rows),
            np.array(self.law.probability),
            num_embeddings,
            range_rows=self._range_rows(),
            num_ids_in_ranges=self.ranges.num_ids if self.ranges else 0,
            num_unique_curve=self._unique_curve(),
            hot_share_ratio=(hot.low_ratio, hot.high_ratio) if hot and self.is_undersampled else (),
        )

    def next_batch_ratio(self, *, distinct: bool) -> float | None:
        """Share of the ``distinct`` rows, or of all indices, whose rows the next batch has too.

        It is that of the largest batches that were measured; None without any.
        """
        ordered = sorted(self.batches, key=lambda batch: batch.batch_size)
        name = "next_batch_ratio" if distinct else "next_batch_indices_ratio"
        found = [getattr(batch, name) for batch in ordered if batch.next_batch_ratio is not None]
        return found[-1] if found else None

    @property
    def num_rows_needed(self) -> int:
        """The fewest rows that a table for these data may have."""
        return self.num_unique_rows if self.ids_are_hashes else self.highest_index + 1

    @property
    def is_undersampled(self) -> bool:
        """Whether the sample was too small to tell how hot the hottest rows are."""
        return self.hot_share is not None and self.hot_share.samples_needed != 0

    def _unique_curve(self) -> tuple[tuple[float, float], ...]:
        """(indices, distinct rows) of measured batches by size, made to rise with the size."""
        measured = sorted(
            (b.mean_indices, b.mean_unique_rows)
            for b in self.batches
            if b.num_batches and b.mean_unique_rows >= 1
        )
        curve = [(0.0, 0.0)]
        for indices, unique in measured:
            before, most = curve[-1]
            if indices > before:
                curve.append((indices, min(max(unique, most), indices)))
        return tuple(curve[1:])

    def _range_rows(self) -> FloatArray | None:
        """``[ranges, bins]`` rows of each bin of the law in each range; None for even shares."""
        if self.ranges is None or not self.ranges.rows:
            return None
        rows = np.zeros((len(self.ranges.rows), len(self.law.rows)))
        for i, line in enumerate(self.ranges.rows):
            for number, count in line:
                rows[i, number] = count
        return rows


class StatsSource(_Part):
    """Where the numbers come from; ``left_out`` are columns that were not taken as features."""

    formats: list[str]
    files: list[str]
    num_bytes: Count
    num_samples: Count
    first_samples: Count | None
    sample_rows: Count | None
    max_ind_range: Count | None
    empty_is_zero: bool
    left_out: list[str] = Field(default_factory=list)


class Stats(_Part):
    """The whole file."""

    kind: Literal["shardplan_stats"]
    schema_version: Literal[2]
    source: StatsSource
    tables: dict[str, TableStats]

    def key(self, name: str, features: Sequence[str]) -> str | None:
        """A table's name or, if it has one feature, that of the feature; None if not measured."""
        known = [key for key in (name, *features[: len(features) == 1]) if key in self.tables]
        return known[0] if known else None

    def table(self, name: str, features: tuple[str, ...] = ()) -> TableStats:
        """The statistics of a table, under a name of :meth:`key`.

        Raises:
            InvalidInputError: there are none; the message lists the names that exist.
        """
        key = self.key(name, features)
        if key is None:
            shown = some_names(list(self.tables), 12)
            refuse(f"no statistics of table {name!r}; there are {shown}: see profile --table-map")
        return self.tables[key]


def left_out_remark(source: StatsSource) -> str | None:
    """A remark on columns that have no indices; None if there are none."""
    if not source.left_out:
        return None
    shown = some_names(source.left_out, _SHOWN_TABLES)
    return (
        f"{len(source.left_out)} columns are left out ({shown}): features are integers or "
        "lists of them; ids with missing values have to be written as nullable integers"
    )


def undersampled_remark(tables: Mapping[str, TableStats]) -> str | None:
    """A remark on tables whose sample was too small; None if there are none."""
    few = {name: t.hot_share for name, t in tables.items() if t.is_undersampled and t.hot_share}
    if not few:
        return None
    shown = [_range_text(name, share) for name, share in list(few.items())[:_SHOWN_TABLES]]
    more = "; ..." if len(few) > _SHOWN_TABLES else ""
    return (
        f"too few samples were profiled to tell how hot the hottest 1 % of rows are: {len(few)} "
        f"of {len(tables)} tables ({'; '.join(shown)}{more}). Predicted intervals reach from one "
        "end of these shares to the other; profile more samples to narrow them"
    )


def _range_text(name: str, share: HotShare) -> str:
    needed = share.samples_needed
    enough = "more than a million times as many" if needed is None else f"about {needed:,}"
    low, high = 100 * share.low_ratio, 100 * share.high_ratio
    return f"{name!r}: {low:.3g} to {high:.3g} % of accesses, {enough} samples would tell"


@once_per_version(num_kept=4)
def load_stats(path: Path) -> Stats:
    """Read ``stats.json``; it is read once for all tables of a workload.

    Raises:
        InvalidInputError: the file breaks rules; there is one line for each, with the place.
    """
    with reading(f"{path}: cannot be read"):
        text = path.read_text(encoding="utf-8")
    try:
        return Stats.model_validate_json(text)
    except ValidationError as error:
        problems = error.errors()
        # Another kind of file, or version, breaks hundreds of rules.
        problems = [p for p in problems if p["loc"] in _HEADER] or problems
        lines = [
            f"{path}: {'.'.join(str(p) for p in problem['loc']) or 'file'}: {problem['msg']}"
            for problem in problems[:_SHOWN_ERRORS]
        ]
        if len(problems) > _SHOWN_ERRORS:
            lines.append(f"{path}: and {len(problems) - _SHOWN_ERRORS} more")
        refuse(lines)


def stats_text(stats: Stats) -> str:
    """The text of the file, which is the same for equal statistics; each list is on one line."""
    return _render(rounded(stats.model_dump(mode="json")), "") + "\n"


def rounded(value: Any) -> Any:
    """The value with all floats rounded to nine digits, which is more than they are exact to."""
    return json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.9g}"))


def _render(value: Any, indent: str) -> str:
    if isinstance(value, dict) and value:
        deeper = indent + " "
        lines = (f"{deeper}{json.dumps(k)}: {_render(v, deeper)}" for k, v in value.items())
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def with_stats(workload: Workload, stats: Stats, place: str) -> tuple[Workload, tuple[str, ...]]:
    """Give every measured table its measured index law and pooling factors.

    Statistics belong to the table of the same name, or to the table whose only feature has this
    name. Tables without statistics stay as they are.

    Args:
        workload: the tables.
        stats: the statistics.
        place: the file of the statistics, for messages.

    Returns:
        The workload, a line on tables without statistics, and one on statistics without a table.

    Raises:
        InvalidInputError: no table was measured, or the data have ids that tables do not have; the
            message lists all such tables.
    """
    if not workload.tables:
        refuse(f"{place}: statistics are about tables, and the workload {workload.name!r} has none")
    keys = [(table, stats_key(table, stats)) for table in workload.tables]
    missing = [table.name for table, key in keys if key is None]
    used = {key for _, key in keys if key is not None}
    problems: list[str] = []
    tables: list[Table] = []
    for table, key in keys:
        try:
            tables.append(table if key is None else _measured(table, stats.tables[key]))
        except (InvalidInputError, CostModelError) as error:
            problems.append(f"{place}: table {table.name!r}: {error}")
    if len(missing) == len(workload.tables):
        problems.append(
            f"{place}: has statistics of {some_names(list(stats.tables))}, and none of the "
            f"workload's tables {some_names(missing)}; see shardplan profile --table-map"
        )
    refuse_any(problems)
    unused = [name for name in stats.tables if name not in used]
    notes = (
        missing
        and f"no statistics of {len(missing)} of {len(keys)} tables ({some_names(missing)}): they "
        "keep the workload's laws",
        unused
        and f"{len(unused)} of its {len(stats.tables)} tables are not in the workload "
        f"({some_names(unused)})",
        undersampled_remark({name: stats.tables[name] for name in sorted(used)}),
    )
    return replace(workload, tables=tuple(tables)), tuple(f"{place}: {n}" for n in notes if n)


def stats_key(table: Table, stats: Stats) -> str | None:
    """The name under which the statistics of a table are; None if it was not measured."""
    return stats.key(table.name, [f.name for f in table.features])


def _measured(table: Table, found: TableStats) -> Table:
    features = tuple(
        replace(f, pooling_factor=float(found.features.get(f.name, found.pooling).mean))
        for f in table.features
    )
    shared = table.next_batch_ratio
    if table.pooling is Pooling.NONE:
        measured = found.next_batch_ratio(distinct=table.deduplicates_indices)
        shared = shared if measured is None else measured
    law = found.distribution(table.num_embeddings)
    return replace(table, features=features, distribution=law, next_batch_ratio=shared)


def some_names(names: Sequence[str], most: int = 5) -> str:
    """The first names of a list, for messages; "nothing" for an empty one."""
    if not names:
        return "nothing"
    shown = ", ".join(map(printable, names[:most]))
    return f"{shown}, ..." if len(names) > most else shown
