"""Reads from a file or the command line which feature belongs to which table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from planner.errors import InvalidInputError
from planner.profiling.partial import TableMap


@dataclass(frozen=True, slots=True)
class ByFeature:
    """The table of each feature that is named, and the rows of tables whose size is known."""

    tables: Mapping[str, str]
    num_embeddings: Mapping[str, int] = field(default_factory=dict)


def parse_table_map(entries: Sequence[str]) -> ByFeature | None:
    """Read the table maps of the command line, each ``feature=table`` or a file.

    A file has either ``feature: table`` lines or, like a workload file, a list ``tables`` with
    ``name``, ``features`` and ``num_embeddings``.

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


def _inline(entry: str) -> ByFeature:
    feature, _, table = entry.partition("=")
    if not feature.strip() or not table.strip():
        message = f"--table-map {entry!r}: write feature=table"
        raise InvalidInputError(message)
    return ByFeature({feature.strip(): table.strip()})


def _file(path: Path) -> ByFeature:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        message = f"--table-map {path}: cannot be read: {reason}"
        raise InvalidInputError(message) from error
    except yaml.YAMLError as error:
        message = f"--table-map {path}: not YAML: {' '.join(str(error).split())}"
        raise InvalidInputError(message) from error
    if isinstance(data, dict) and isinstance(data.get("tables"), list):
        return _tables(data["tables"], path)
    if isinstance(data, dict) and data and all(isinstance(v, str) for v in data.values()):
        return ByFeature({str(feature): table for feature, table in data.items()})
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
        name, count = found.get("name"), found.get("num_embeddings")
        features: Any = found.get("features") or [name]
        good = (
            isinstance(name, str)
            and isinstance(features, list)
            and all(isinstance(feature, str) for feature in features)
            and (count is None or (type(count) is int and count >= 1))
        )
        if not good:
            message = (
                f"--table-map {path}: tables.{i} needs a name, a list of features and, if given, "
                "a whole num_embeddings of at least 1"
            )
            raise InvalidInputError(message)
        for feature in features:
            if feature in tables:
                message = f"--table-map {path}: feature {feature!r} is in two tables"
                raise InvalidInputError(message)
            tables[feature] = str(name)
        if count is not None:
            rows[str(name)] = count
    return ByFeature(tables, rows)
