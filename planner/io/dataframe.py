"""A workload from a table of tables in memory, such as a pandas DataFrame."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from costmodels.errors import InvalidValueError
from costmodels.workload import Workload
from planner.errors import InvalidInputError, refuse
from planner.io.documents import Document
from planner.io.workload.table_list import entry_of, joined, known_column, named_columns
from planner.io.workload.workload_file import workload_file_of

_PLACE: Final = Path("DataFrame")


def workload_from_dataframe(
    frame: Any,
    *,
    batch_size_per_rank: int,
    name: str = "dataframe",
    **changes: Any,
) -> Workload:
    """Make a workload whose tables are the rows of a DataFrame.

    The columns are those of a CSV list of tables: ``name``, ``num_embeddings`` (or ``rows``),
    ``embedding_dim`` (or ``dim``). Optional columns are ``features`` (a list of names),
    ``pooling_factor`` (a number, or a list with one number for each feature), ``zipf_exponent``,
    ``zipf_shift``, ``dtype``, ``pooling``, ``is_weighted``, ``module``, ``count``. Missing values
    (None, NaN) mean the default. A table without a Zipf exponent has uniform indices.

    Args:
        frame: a DataFrame, or a list of mappings from column to value.
        batch_size_per_rank: samples per rank.
        name: name of the workload.
        **changes: other fields of :class:`costmodels.workload.Workload`.

    Raises:
        InvalidInputError: unknown columns, or values that no table can have; lists all of them.
            Or a value of ``changes`` that no workload can have, or tables beside the rows.

    Example:
        >>> rows = [{"name": "item", "rows": 1000, "dim": 64, "pooling_factor": 2.0}]
        >>> workload_from_dataframe(rows, batch_size_per_rank=512).tables[0].embedding_dim
        64
    """
    _check_changes(changes)
    rows = _rows_of(frame)
    if not rows:
        refuse("DataFrame: no rows; give one row for each table")
    present = [_present(row) for row in rows]
    columns = list(dict.fromkeys(column for row in present for column in row))
    renamed = dict(zip(columns, named_columns(columns, "DataFrame"), strict=True))
    entries = [entry_of({renamed[k]: v for k, v in row.items()}, "DataFrame") for row in present]
    value = {
        "name": name,
        "training": {"batch_size_per_rank": _plain(batch_size_per_rank)},
        "tables": joined(entries),
    }
    found = workload_file_of(Document(_PLACE, value, {}))
    if found.constraints.tables:
        refuse(
            "DataFrame: column 'constraints' is no part of a workload; drop it, and give "
            "planner.plan(..., constraints=planner.Constraints(...))"
        )
    try:
        return replace(found.workload, **changes)
    except InvalidValueError as error:
        raise InvalidInputError(str(error)) from error


def _check_changes(changes: Mapping[str, Any]) -> None:
    if "tables" in changes:
        refuse("workload_from_dataframe takes the tables from the rows; drop tables=...")
    unknown = changes.keys() - {f.name for f in fields(Workload)}
    if unknown:
        refuse(f"{sorted(unknown)[0]} is no field of a workload; see planner.Workload")


def _rows_of(frame: Any) -> list[Mapping[str, Any]]:
    """The rows, each a mapping from column to value.

    Raises:
        InvalidInputError: it is neither a DataFrame nor rows, or has a column twice.
    """
    if isinstance(frame, Workload):
        refuse("workload_from_dataframe takes a DataFrame or rows; this is a Workload already")
    columns = [str(c) for c in getattr(frame, "columns", ())]
    twice = [c for c, n in Counter(columns).items() if n > 1]
    if twice:
        refuse(f"DataFrame: column {twice[0]!r} is there twice; drop one")
    rows: list[Any] | None = None
    if hasattr(frame, "columns") and hasattr(frame, "to_dict"):
        rows = frame.to_dict("records")
    elif isinstance(frame, Iterable) and not isinstance(frame, str | bytes | Mapping):
        rows = list(frame)
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        refuse(
            "workload_from_dataframe takes a DataFrame, or a list of mappings from column to "
            f"value, got a {type(frame).__name__}; pandas.DataFrame(...) makes one"
        )
    return rows


def _plain(value: Any) -> Any:
    """A scalar of numpy as a plain Python value; any other value as it is."""
    is_scalar = hasattr(value, "item") and not hasattr(value, "__len__")
    return value.item() if is_scalar and not isinstance(value, type) else value


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row that are not missing, as plain values, by the keys of a workload file.

    Raises:
        InvalidInputError: two columns mean the same key.
    """
    cells: dict[str, Any] = {}
    by_name: dict[str, str] = {}
    for column, cell in row.items():
        value = _plain(cell)
        if value is None or (isinstance(value, float) and math.isnan(value)) or _is_missing(value):
            continue
        if hasattr(value, "tolist") and not isinstance(value, type):
            value = value.tolist()
        name = known_column(str(column))
        if name in cells:
            refuse(
                f"DataFrame: columns {by_name[name]!r} and {column!r} both mean {name}; drop one"
            )
        cells[name] = list(value) if isinstance(value, tuple) else value
        by_name[name] = str(column)
    return cells


def _is_missing(value: object) -> bool:
    """Whether a value is pandas' mark of a missing value; pandas is not imported for this."""
    return type(value).__name__ in ("NAType", "NaTType")
