"""Reads a list of tables as a workload document without a dense part.

The file is CSV, with commas, semicolons, tabs or bars between cells, or a file of another program
(:mod:`planner.io.workload.feature_files`). The columns of CSV are ``name``, ``num_embeddings``
(``rows``), ``embedding_dim`` (``dim``) and optionally other keys of a table, or usual names of
these. Empty cells mean the default. Under ``pooling``, a number is a pooling factor, and a word
says how rows are pooled.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any, Final

from planner.errors import InvalidInputError
from planner.io.documents import Document, read_text
from planner.io.workload.table_columns import (
    NEEDED,
    WHOLE,
    entry_of,
    joined,
    known_column,
    named_columns,
)
from planner.io.yaml_reader import Keys, parse_scalar

DEFAULT_BATCH: Final = 4096
"""Samples per rank if ``--batch-size`` is not given."""

LIST_ENDINGS: Final = (".csv", ".tsv")
"""Ends of names of files that are read as lists of tables."""

_SEPARATORS: Final = ",;\t|"
_TEXT_COLUMNS: Final = frozenset({"name", "dtype", "pooling", "module", "row_update"})
_LIST_COLUMNS: Final = frozenset({"features", "pooling_factor", "pooling"})
_MISSING: Final = frozenset({"nan", "na", "n/a", "<na>"})
_THOUSANDS: Final = {
    ",": re.compile(r"[0-9]{1,3}(,[0-9]{3})+"),
    ";": re.compile(r"[0-9]{1,3}([., ][0-9]{3})+"),
}
"""Match ``40,000,000``, as spreadsheets write it; with ``;`` between cells also other marks."""
_DECIMAL_COMMA: Final = re.compile(r"[+-]?[0-9]+,[0-9]+")


def read_table_list(path: Path, *, dim: int | None = None) -> Document:
    """Read the tables of a list; ``dim`` is the embedding dimension where the list has none.

    Raises:
        InvalidInputError: the file is not CSV, a column is unknown or missing, or a row has more
            or fewer cells than there are columns.
    """
    text = read_text(path)
    marked = re.match(r"(?i)sep=(.)\r?\n", text)
    body = text[marked.end() :] if marked else text
    separator = marked[1] if marked else _separator(body)
    first = 1 + bool(marked)
    reader = csv.reader(io.StringIO(body, newline=""), strict=True, delimiter=separator)
    lines: dict[Keys, int] = {}
    tables: list[dict[str, Any]] = []
    try:
        header = [cell.strip() for cell in next(reader, [])]
        header, dropped = _without_index(header)
        needed = NEEDED if dim is None else NEEDED[:-1]
        columns = named_columns(header, f"{path}:{first}", needed) if any(header) else []
        for row in reader:
            line = reader.line_num + first - 1
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(columns) + dropped:
                message = (
                    f"{path}:{line}: {len(row)} cells, the first line names "
                    f"{len(columns) + dropped} columns; give one cell for each"
                )
                raise InvalidInputError(message)
            lines["tables", len(tables)] = line
            cells = dict(zip(columns, row[dropped:], strict=True))
            entry = _entry(cells, f"{path}:{line}", separator)
            tables.append(entry if dim is None else {"embedding_dim": dim, **entry})
    except csv.Error as error:
        message = f"{path}:{reader.line_num}: not well-formed CSV: {error}"
        raise InvalidInputError(message) from error
    return document_of(path, tables, lines)


def document_of(path: Path, tables: list[dict[str, Any]], lines: dict[Keys, int]) -> Document:
    """The tables as a workload file whose other keys have defaults.

    Raises:
        InvalidInputError: there are no tables.
    """
    if not tables:
        message = f"{path}: no tables; below the line of column names, give one table per line"
        raise InvalidInputError(message)
    whole = joined(tables)
    value = {
        "name": path.stem,
        "training": {"batch_size_per_rank": DEFAULT_BATCH},
        "tables": whole,
    }
    return Document(path, value, lines if len(whole) == len(tables) else {})


def _separator(text: str) -> str:
    """What splits the first line into the most columns of a list; a comma where none does."""
    line = text.lstrip().split("\n", 1)[0][:10_000]

    def known(separator: str) -> int:
        return len(
            {known_column(w.strip().strip("\"'")) for w in line.split(separator)} & {*NEEDED}
        )

    return max(_SEPARATORS, key=known)


def _without_index(header: list[str]) -> tuple[list[str], int]:
    """The header without the index of ``DataFrame.to_csv``; an index of text names the tables."""
    if header and known_column(header[0]) in ("", "Unnamed: 0", "index"):
        if "name" in map(known_column, header[1:]):
            return header[1:], 1
        return ["name", *header[1:]], 0
    return header, 0


def _entry(cells: dict[str, str], where: str, separator: str) -> dict[str, Any]:
    """The table of one line of a CSV file."""
    read = {
        column: _value(column, cell.strip(), separator)
        for column, cell in cells.items()
        if cell.strip() and cell.strip().lower() not in _MISSING
    }
    return entry_of(read, where)


def _value(column: str, text: str, separator: str) -> Any:
    if column not in (*WHOLE, "features") and separator != "," and _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    if column in _LIST_COLUMNS and (parts := _parts(text, column)) is not None:
        return parts
    if column in WHOLE and _THOUSANDS[separator if separator == ";" else ","].fullmatch(text):
        return int(re.sub(r"[., ]", "", text))
    value = parse_scalar(text)
    is_number = column == "pooling" and isinstance(value, int | float)
    if column == "is_weighted" and isinstance(value, int) and value in (0, 1):
        return bool(value)
    return text if column in _TEXT_COLUMNS and not is_number else value


def _parts(text: str, column: str) -> list[Any] | None:
    """The values of a cell with several: ``[a, b]``, ``a, b``, ``a;b``, ``a|b`` or ``a b``.

    A single name of a feature is a list of one; a single number is None.
    """
    inner = text.strip("[](){} ")
    words = [w.strip(" \"'") for w in re.split(r"\s*[,;|]\s*|\s+", inner)]
    is_list = len(words) > 1 or inner != text
    if column == "features":
        return [str(w) for w in words if w]
    numbers = [parse_scalar(w) for w in words]
    return numbers if is_list and all(isinstance(n, int | float) for n in numbers) else None
