"""Which feature belongs to which table, and the tables of the features of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import InvalidInputError


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
class ByFeature:
    """The table of each feature that is named, and the rows of tables whose size is known."""

    tables: Mapping[str, str]
    num_embeddings: Mapping[str, int] = field(default_factory=dict)


def build_table_map(
    names: Sequence[str],
    wanted: Sequence[str],
    by_feature: ByFeature | None,
    *,
    left_out: Sequence[str] = (),
) -> TableMap:
    """The tables of the data's features, in the data's order; without a map one for each feature.

    Raises:
        InvalidInputError: the data do not have some feature.
    """
    mapping = by_feature or ByFeature({})
    unknown = [name for name in wanted if name not in names]
    missing = [name for name in mapping.tables if name not in names]
    shown = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
    if left_out:
        shown += f", and without indices {', '.join(left_out[:12])}"
    problems = []
    if unknown:
        problems.append(f"--features: the data has no {', '.join(unknown[:6])}; it has {shown}")
    if missing:
        problems.append(f"--table-map: the data has no {', '.join(missing[:6])}; it has {shown}")
    if problems:
        raise InvalidInputError(problems)
    grouped: dict[str, list[str]] = {}
    for name in names:
        if not wanted or name in wanted:
            grouped.setdefault(mapping.tables.get(name, name), []).append(name)
    return TableMap(
        tuple((table, tuple(features)) for table, features in grouped.items()),
        {table: rows for table, rows in mapping.num_embeddings.items() if table in grouped},
    )
