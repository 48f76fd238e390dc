"""Reads from a file or the command line which feature belongs to which table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import InvalidInputError
from planner.io.documents import parse_yaml, read_text
from planner.io.workload.workload_schema import MAX_TABLES
from planner.profiling.profiler import ByFeature


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
    if problems:
        raise InvalidInputError(problems)
    return ByFeature(tables, rows) if entries else None


def _inline(entry: str) -> ByFeature:
    feature, _, table = entry.partition("=")
    if not feature.strip() or not table.strip():
        message = f"--table-map {entry!r}: write feature=table"
        raise InvalidInputError(message)
    return ByFeature({feature.strip(): table.strip()})


def _file(path: Path) -> ByFeature:
    data: Any = parse_yaml(read_text(path), f"--table-map {path}")[0]
    if isinstance(data, dict) and isinstance(data.get("tables"), list):
        return _tables(data["tables"], path)
    if isinstance(data, dict) and data and all(isinstance(v, str) for v in data.values()):
        return ByFeature(data)
    message = (
        f"--table-map {path}: needs lines 'feature: table', or a list 'tables' with name, "
        "features and num_embeddings"
    )
    raise InvalidInputError(message)


def _tables(entries: Iterable[Any], path: Path) -> ByFeature:
    tables: dict[str, str] = {}
    rows: dict[str, int] = {}
    for i, entry in enumerate(entries):
        found = entry if isinstance(entry, dict) else {}
        name, features = found.get("name"), found.get("features") or [found.get("name")]
        good = (
            isinstance(name, str)
            and isinstance(features, list)
            and all(isinstance(feature, str) for feature in features)
            and _is_count(found, "num_embeddings", 2**48)
            and _is_count(found, "count", MAX_TABLES)
        )
        if not good:
            message = (
                f"--table-map {path}: tables.{i} needs a name, a list of features and, if given, "
                "a whole num_embeddings and count of at least 1"
            )
            raise InvalidInputError(message)
        count = found.get("count") or 1
        for ending in [""] if count == 1 else [f"_{number}" for number in range(count)]:
            for feature in features:
                if feature + ending in tables:
                    message = f"--table-map {path}: feature {feature + ending!r} is in two tables"
                    raise InvalidInputError(message)
                tables[feature + ending] = f"{name}{ending}"
            if found.get("num_embeddings") is not None:
                rows[f"{name}{ending}"] = found["num_embeddings"]
    return ByFeature(tables, rows)


def _is_count(entry: Mapping[str, Any], key: str, most: int) -> bool:
    """Whether the entry has no such key, or a whole number from 1 under it."""
    value = entry.get(key)
    return value is None or (type(value) is int and 1 <= value <= most)
