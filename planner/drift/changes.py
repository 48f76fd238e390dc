"""What has changed in the data of each table between two statistics, and which tables are full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costmodels.workload import Table, Workload
from planner.profiling.stats import Stats, TableStats, stats_key, with_stats

_HOT_RATIO: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures:
    """The figures of a table's indices that lookups depend on.

    Attributes:
        pooling_factor: mean indices per sample, over all features together.
        num_unique_rows: expected number of distinct rows in one batch of all ranks.
        hot_ratio: share of accesses that fall on the 1 % of rows that are accessed most.
    """

    pooling_factor: float
    num_unique_rows: float
    hot_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The figures of one table under both statistics.

    ``changed_bytes`` is by how much the bytes differ that the lookups of a batch read.
    """

    table: str
    before: IndexFigures
    now: IndexFigures
    changed_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """The number of rows that the data of one day need in a table, and the number that it has."""

    table: str
    num_rows_needed: int
    num_embeddings: int

    @property
    def is_outgrown(self) -> bool:
        """Whether the data have ids for which the table has no row."""
        return self.num_rows_needed > self.num_embeddings


def table_changes(before: Workload, now: Workload, *, world_size: int) -> tuple[TableChange, ...]:
    """The tables whose indices have changed, those with the largest change in bytes first.

    Args:
        before: the workload under the statistics that the plan was made with.
        now: the same tables under today's statistics.
        world_size: number of ranks; the figures are those of one batch of all ranks.
    """
    samples = before.local_batch_size * world_size
    found = []
    for old, new in zip(before.tables, now.tables, strict=True):
        figures = [_figures(t, samples) for t in (old, new)]
        if figures[0] == figures[1]:
            continue
        indices = samples * abs(new.pooling_factor - old.pooling_factor)
        unique = abs(figures[1].num_unique_rows - figures[0].num_unique_rows)
        found.append(
            TableChange(
                table=old.name,
                before=figures[0],
                now=figures[1],
                changed_bytes=(indices + unique) * old.row_bytes,
            )
        )
    return tuple(sorted(found, key=lambda c: -c.changed_bytes))


def rows_needed(workload: Workload, stats: Stats) -> tuple[TableRows, ...]:
    """The rows that the data need in every table that was measured."""
    pairs = [(t, stats_key(t, stats)) for t in workload.tables]
    return tuple(
        TableRows(
            table=table.name,
            num_rows_needed=_rows(stats.tables[key]),
            num_embeddings=table.num_embeddings,
        )
        for table, key in pairs
        if key is not None
    )


def workload_under(
    workload: Workload, stats: Stats, place: str
) -> tuple[Workload, tuple[TableRows, ...], tuple[str, ...]]:
    """The workload under the statistics of a day.

    A table that is too small for the data keeps the law that it has, because ids without a row
    cannot be looked up, and so cannot be priced.

    Args:
        workload: the tables.
        stats: the statistics of the day.
        place: the file of the statistics, for messages.

    Returns:
        The workload, the rows that the data need in each measured table, and remarks.

    Raises:
        InvalidInputError: no table of the workload was measured.
    """
    needed = rows_needed(workload, stats)
    outgrown = {rows.table for rows in needed if rows.is_outgrown}
    left_out = {stats_key(t, stats) for t in workload.tables if t.name in outgrown}
    fitting = {name: table for name, table in stats.tables.items() if name not in left_out}
    measured, notes = workload, tuple[str, ...]()
    if not outgrown or len(outgrown) < len(needed):
        others = stats.model_copy(update={"tables": fitting})
        measured, notes = with_stats(workload, others, place)
    if outgrown:
        if len(needed) == len(workload.tables):  # only tables that were left out lack statistics
            notes = tuple(note for note in notes if "no statistics of" not in note)
        notes = (
            *notes,
            f"{place}: holds ids beyond the rows of {_some(sorted(outgrown))}; such tables are "
            "priced with their old laws, and training on these data fails until they are enlarged",
        )
    return measured, needed, notes


def _figures(table: Table, samples: float) -> IndexFigures:
    law = table.distribution
    return IndexFigures(
        pooling_factor=table.pooling_factor,
        num_unique_rows=law.expected_unique_rows(samples * table.pooling_factor),
        hot_ratio=law.access_share(_HOT_RATIO * table.num_embeddings),
    )


def _rows(stats: TableStats) -> int:
    return stats.num_unique_rows if stats.ids_are_hashes else stats.highest_index + 1


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
