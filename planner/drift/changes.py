"""What changed in the data of each table between two sets of statistics, and which tables grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from costmodels.workload import Table, Workload
from planner.profiling.applied import stats_key, with_stats
from planner.profiling.stats import Stats, TableStats

_HOT_RATIO: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures:
    """What a table's indices ask of a lookup.

    Attributes:
        pooling_factor: mean indices per sample, all features together.
        num_unique_rows: distinct rows expected in one batch of all ranks.
        hot_ratio: share of the accesses that fall on the hottest 1 % of the rows.
    """

    pooling_factor: float
    num_unique_rows: float
    hot_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One table then and now; ``changed_bytes`` are more or fewer bytes that a batch looks up."""

    table: str
    before: IndexFigures
    now: IndexFigures
    changed_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows that the data of one day ask of a table, and the rows that it has."""

    table: str
    num_rows_needed: int
    num_embeddings: int

    @property
    def is_outgrown(self) -> bool:
        """Whether the data hold ids that the table has no row for."""
        return self.num_rows_needed > self.num_embeddings


def table_changes(before: Workload, now: Workload, *, world_size: int) -> tuple[TableChange, ...]:
    """Tables whose indices changed, those first whose lookups changed by most bytes.

    Args:
        before: the workload under the statistics that the plan was made with.
        now: the same tables under today's.
        world_size: ranks; a batch is that of all of them.
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
    """Rows that the data ask of every table that was measured."""
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

    A table that the data have outgrown keeps its law, since its lookups cannot be priced: ids
    without a row cannot be looked up at all.

    Args:
        workload: the tables.
        stats: of the day.
        place: the file, for messages.

    Returns:
        The workload, the rows that the data ask of each measured table, and remarks.

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
        if len(needed) == len(workload.tables):  # none lacks statistics but those left out
            notes = tuple(note for note in notes if "no statistics of" not in note)
        notes = (
            *notes,
            f"{place}: holds ids beyond the rows of {_some(sorted(outgrown))}; such tables are "
            "priced with their old laws, and training on these data fails until they are enlarged",
        )
    return measured, needed, notes


def _figures(table: Table, samples: int) -> IndexFigures:
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
