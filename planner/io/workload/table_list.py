"""Reads a CSV list of tables as a workload document without a dense part.

The columns are ``name``, ``num_embeddings`` (or ``rows``), ``embedding_dim`` (or ``dim``), and
optionally ``pooling_factor``, ``zipf_exponent``, ``zipf_shift``, ``dtype``, ``pooling``,
``is_weighted``, ``module``, ``count``. Empty cells mean the default. Under ``pooling``, a number is
a pooling factor, and a word says how rows are pooled.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any, Final

from planner.errors import InvalidInputError
from planner.io.documents import Document, read_text
from planner.io.yaml_reader import Keys, parse_scalar

DEFAULT_BATCH: Final = 4096
"""Samples per rank if ``--batch-size`` is not given."""

_OTHER_NAMES: Final = {
    "table": "name",
    "rows": "num_embeddings",
    "num_rows": "num_embeddings",
    "hash_size": "num_embeddings",
    "cardinality": "num_embeddings",
    "dim": "embedding_dim",
    "embedding_size": "embedding_dim",
}
_TEXT_COLUMNS: Final = frozenset({"name", "dtype", "pooling", "module"})
_WHOLE_COLUMNS: Final = frozenset({"num_embeddings", "embedding_dim", "count"})
_THOUSANDS: Final = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
"""Matches ``40,000,000``, as spreadsheets write it."""
_MOST_WHOLE: Final = 2.0**53
_MEANING: Final = {"pooling_factor": "indices per sample", "distribution": "law of the indices"}
_LAW_COLUMNS: Final = {"zipf_exponent": "exponent", "zipf_shift": "shift"}


def read_table_list(path: Path) -> Document:
    """Read the tables of a CSV file.

    Raises:
        InvalidInputError: the file is not CSV, or a row has more or fewer cells than there are
            columns.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    lines: dict[Keys, int] = {}
    tables: list[dict[str, Any]] = []
    try:
        columns = _columns(path, next(reader, []))
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(columns):
                message = (
                    f"{path}:{reader.line_num}: {len(row)} cells, the first line names "
                    f"{len(columns)} columns; give one cell for each"
                )
                raise InvalidInputError(message)
            lines["tables", len(tables)] = reader.line_num
            cells = dict(zip(columns, row, strict=True))
            tables.append(_entry(cells, f"{path}:{reader.line_num}"))
    except csv.Error as error:
        message = f"{path}:{reader.line_num}: not well-formed CSV: {error}"
        raise InvalidInputError(message) from error
    if not tables:
        message = f"{path}: no tables; below the line of column names, give one table per line"
        raise InvalidInputError(message)
    training = {"batch_size_per_rank": DEFAULT_BATCH}
    return Document(path, {"name": path.stem, "training": training, "tables": tables}, lines)


def _columns(path: Path, header: list[str]) -> list[str]:
    columns = [known_column(name) for name in header]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        message = f"{path}:1: column {twice[0]!r} is there twice; keep one"
        raise InvalidInputError(message)
    return columns


def known_column(name: str) -> str:
    """The key of a workload file that a column stands for."""
    return _OTHER_NAMES.get(name.strip(), name.strip())


def entry_of(cells: dict[str, Any], where: str) -> dict[str, Any]:
    """One table as an entry of a YAML file, from the cells that are not empty.

    Args:
        cells: the value of each column.
        where: the place of the row, with which errors begin.

    Raises:
        InvalidInputError: two cells give the same key, so that one of them would be ignored.
    """
    pooling = cells.get("pooling")
    is_factor = isinstance(pooling, int | float)
    for one, other, clash in (
        ("pooling", "pooling_factor", is_factor and "pooling_factor" in cells),
        *((law, "distribution", law in cells and "distribution" in cells) for law in _LAW_COLUMNS),
    ):
        if clash:
            message = f"{where}: {one!r} and {other!r} both say the {_MEANING[other]}; keep one"
            raise InvalidInputError(message)
    entry: dict[str, Any] = {}
    law: dict[str, Any] = {}
    for column, cell in cells.items():
        value = _whole(cell) if column in _WHOLE_COLUMNS else cell
        if column in _LAW_COLUMNS:
            law[_LAW_COLUMNS[column]] = value
        elif column == "pooling" and is_factor:
            entry["pooling_factor"] = value
        else:
            entry[column] = value
    if law:
        entry["distribution"] = {"kind": "zipf", **law}
    return entry


def _entry(cells: dict[str, str], where: str) -> dict[str, Any]:
    """The table of one line of a CSV file."""
    read = {}
    for column, cell in cells.items():
        text = cell.strip()
        if not text:
            continue
        value = parse_scalar(text)
        is_number = column == "pooling" and isinstance(value, int | float)
        if column in _WHOLE_COLUMNS and _THOUSANDS.fullmatch(text):
            value = int(text.replace(",", ""))
        read[column] = text if column in _TEXT_COLUMNS and not is_number else value
    return entry_of(read, where)


def _whole(value: Any) -> Any:
    """A whole number that is written as ``3e6`` or ``3000000.0``; any other value as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE:
        return int(value)
    return value
