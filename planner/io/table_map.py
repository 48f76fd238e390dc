"""Reads from a file or the command line which feature belongs to which table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from planner.errors import InvalidInputError, refuse, refuse_any
from planner.io.documents import Document, parse_yaml, read_text
from planner.io.schemas import Loose, validate
from planner.io.workload.workload_schema import MAX_TABLES, features_of, names_of
from planner.profiling.statistics import ByFeature


def parse_table_map(entries: Sequence[str]) -> ByFeature | None:
    """Read the table maps of the command line, each ``feature=table`` or a file.

    A file has either ``feature: table`` lines or, like a workload file, a list ``tables`` with
    ``name``, ``features``, ``num_embeddings`` and ``count``. Its words are read as those of a
    workload, so that a table may be called ``no``.

    Raises:
        InvalidInputError: some entries are wrong; the message lists all of them.
    """
    tables: dict[str, str] = {}
    rows: dict[str, int] = {}
    problems: list[str] = []
    for entry in entries:
        try:
            found = _inline(entry) if "=" in entry else _file(Path(entry))
        except InvalidInputError as error:
            problems += error.problems
            continue
        for feature, table in found.tables.items():
            if tables.setdefault(feature, table) != table:
                problems.append(
                    f"--table-map: feature {feature!r} is given to tables {tables[feature]!r} "
                    f"and {table!r}"
                )
        rows.update(found.num_embeddings)
    refuse_any(problems)
    return ByFeature(tables, rows) if entries else None


def _inline(entry: str) -> ByFeature:
    feature, _, table = entry.partition("=")
    if not feature.strip() or not table.strip():
        refuse(f"--table-map {entry!r}: write feature=table")
    return ByFeature({feature.strip(): table.strip()})


class _Table(Loose):
    name: str
    features: Annotated[list[str], Field(min_length=1)] | None = None
    num_embeddings: Annotated[int, Field(ge=1, le=2**48)] | None = None
    count: Annotated[int, Field(ge=1, le=MAX_TABLES)] = 1


class _Tables(Loose):
    tables: list[_Table]


def _file(path: Path) -> ByFeature:
    where = Path(f"--table-map {path}")
    data, lines = parse_yaml(read_text(path), str(where))
    if isinstance(data, dict) and data and all(isinstance(v, str) for v in data.values()):
        return ByFeature(data)
    tables: dict[str, str] = {}
    rows: dict[str, int] = {}
    for entry in validate(_Tables, Document(where, data, lines)).tables:
        for name in names_of(entry):
            for feature in features_of(entry, name):
                if feature in tables:
                    refuse(f"{where}: feature {feature!r} is in two tables")
                tables[feature] = name
            if entry.num_embeddings is not None:
                rows[name] = entry.num_embeddings
    return ByFeature(tables, rows)
