"""Gives the tables of a workload the index laws that were measured for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodels.errors import CostModelError
from costmodels.workload import Table, Workload
from planner.errors import InvalidInputError
from planner.profiling.stats import Stats, TableStats, undersampled_remark
from planner.support.printable import printable

_SHOWN = 5


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
    _require_tables(workload, place)
    problems: list[str] = []
    tables: list[Table] = []
    missing: list[str] = []
    used: set[str] = set()
    for table in workload.tables:
        key = stats_key(table, stats)
        if key is None:
            missing.append(table.name)
            tables.append(table)
            continue
        used.add(key)
        try:
            tables.append(_measured(table, stats.tables[key]))
        except (InvalidInputError, CostModelError) as error:
            problems.append(f"{place}: table {table.name!r}: {error}")
    if len(missing) == len(workload.tables):
        problems.append(
            f"{place}: has statistics of {some_names(list(stats.tables))}, and none of the "
            f"workload's tables {some_names(missing)}; 'shardplan profile --table-map' names "
            "tables after features"
        )
    if problems:
        raise InvalidInputError(problems)
    notes = []
    if missing:
        notes.append(
            f"{place}: no statistics of {len(missing)} of {len(workload.tables)} tables "
            f"({some_names(missing)}): they keep the distribution and pooling factors of the "
            "workload"
        )
    unused = [name for name in stats.tables if name not in used]
    if unused:
        notes.append(
            f"{place}: {len(unused)} of its {len(stats.tables)} tables are not in the workload "
            f"({some_names(unused)}): their statistics are not used"
        )
    remark = undersampled_remark({name: stats.tables[name] for name in sorted(used)})
    if remark is not None:
        notes.append(f"{place}: {remark}")
    return replace(workload, tables=tuple(tables)), tuple(notes)


def stats_key(table: Table, stats: Stats) -> str | None:
    """The name under which the statistics of a table are; None if it was not measured."""
    if table.name in stats.tables:
        return table.name
    only = table.features[0].name if len(table.features) == 1 else None
    return only if only in stats.tables else None


def _measured(table: Table, found: TableStats) -> Table:
    features = tuple(
        replace(f, pooling_factor=float(found.features.get(f.name, found.pooling).mean))
        for f in table.features
    )
    return replace(table, features=features, distribution=found.distribution(table.num_embeddings))


def _require_tables(workload: Workload, place: str) -> None:
    if not workload.tables:
        message = (
            f"{place}: statistics are about tables, and the workload {workload.name!r} has none; "
            "leave them out"
        )
        raise InvalidInputError(message)


def some_names(names: Sequence[str]) -> str:
    """The first names of a list, for messages; "nothing" for an empty one."""
    if not names:
        return "nothing"
    shown = ", ".join(printable(name) for name in names[:_SHOWN])
    return f"{shown}, ..." if len(names) > _SHOWN else shown
