"""Reads a list of tables as a workload document; what no list says is assumed, and named.

The list is CSV, with commas, semicolons, tabs or bars between cells, or a DataFrame. The columns
are ``name``, ``num_embeddings`` (``rows``), ``embedding_dim`` (``dim``) and optionally other keys
of a table, or usual names of these. Empty cells mean the default. Under ``pooling``, a number is a
pooling factor, and a word says how rows are pooled.

Also reads which feature belongs to which table, from a file or the command line.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from planner.errors import InvalidInputError, refuse, refuse_any
from planner.io import documents
from planner.io.documents import Document, Keys, parse_scalar, read_text, read_words, show
from planner.io.schemas import nearest, schemas_of, validate
from planner.io.workload import workload_schema as spec
from planner.profiling.statistics import ByFeature

LAW_COLUMNS: Final = {"zipf_exponent": "exponent", "zipf_shift": "shift"}
KNOWN: Final = (*spec.TableSchema.model_fields, *LAW_COLUMNS)
NEEDED: Final = ("name", "num_embeddings", "embedding_dim")
WHOLE: Final = frozenset({"num_embeddings", "embedding_dim", "count"})

WORDS: Final = read_words("tables")
_BY_WORD: Final = {
    **{word: key for key, words in WORDS["columns"].items() for word in words},
    **{key.replace("_", ""): key for key in KNOWN},
}
_MOST_WHOLE: Final = 2.0**53


def known_column(name: str) -> str:
    """The key of a workload file that a column stands for; the column's own name if none."""
    known: str = _BY_WORD.get(re.sub(r"[^a-z0-9]", "", name.lower()), name.strip())
    return known


def named_columns(header: Iterable[str], where: str, needed: Sequence[str] = NEEDED) -> list[str]:
    """The key of each column; a list of features alone names its tables after them.

    Raises:
        InvalidInputError: a column is unknown or there twice, or one that is needed is missing;
            there is one message for each column.
    """
    given = list(header)
    columns = [known_column(name) for name in given]
    if "name" not in columns and columns.count("features") == 1:
        columns[columns.index("features")] = "name"
    known = f"known here: {', '.join(KNOWN)}, and usual names of these, such as rows and dim"
    problems = [
        f"{where}: column {show(name)}: unknown; {nearest(key, list(KNOWN))}{known}; rename or "
        "drop it"
        for name, key in zip(given, columns, strict=True)
        if key not in KNOWN
    ]
    twice = sorted({key for key in columns if columns.count(key) > 1})
    for key in twice:
        same = [repr(name) for name, k in zip(given, columns, strict=True) if k == key]
        problems.append(f"{where}: column {key!r} is there twice ({', '.join(same)}); keep one")
    problems += [
        f"{where}: column {key!r} is missing; it may also be called {WORDS['columns'][key][0]}"
        for key in needed
        if key not in columns
    ]
    refuse_any(problems)
    return columns


def entry_of(cells: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One table as an entry of a YAML file, from the cells that are not empty.

    Args:
        cells: the value of each column.
        where: the place of the row, with which errors begin.

    Raises:
        InvalidInputError: two cells give the same key, so that one of them would be ignored.
    """
    entry: dict[str, Any] = {}
    said: dict[str, str] = {}
    for column, cell in cells.items():
        key, value = column, cell
        is_number = isinstance(cell, int | float | list) and not isinstance(cell, bool)
        if column in LAW_COLUMNS:
            law = entry.get("distribution", {}) if said.get("distribution") in LAW_COLUMNS else {}
            key, value = "distribution", {"kind": "zipf", **law, LAW_COLUMNS[column]: cell}
        elif column == "pooling" and is_number:
            key = "pooling_factor"
        elif column in ("dtype", "pooling") and isinstance(value, str):
            word = value.lower().rpartition(".")[2]
            value = WORDS["words"].get(word, word)
        elif column == "features" and isinstance(value, str):
            value = [value]
        elif column in WHOLE and isinstance(value, float) and value.is_integer():
            value = int(value) if abs(value) < _MOST_WHOLE else value
        first = said.setdefault(key, column)
        if first != column and not {first, column} <= LAW_COLUMNS.keys():
            one, other = sorted((first, column), key=key.__eq__)
            refuse(f"{where}: {one!r} and {other!r} both say the {key}; keep one")
        entry[key] = value
    return entry


def joined(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one table, each with other features, as one table with all of these features."""
    tables: dict[int | str, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        features: Any = entry.get("features")
        key = repr({k: v for k, v in entry.items() if k not in ("features", "pooling_factor")})
        first = tables.setdefault(key if isinstance(features, list) else number, entry)
        if first is not entry and {*first["features"]} & {*features}:
            tables[number] = entry
        elif first is not entry:
            factors = [*_factors(first), *_factors(entry)]
            first["features"] = [*first["features"], *features]
            first["pooling_factor"] = factors if len(set(factors)) > 1 else factors[0]
    return list(tables.values())


def _factors(entry: Mapping[str, Any]) -> list[Any]:
    factor = entry.get("pooling_factor", 1.0)
    return factor if isinstance(factor, list) else [factor] * len(entry["features"])


LIST_ENDINGS: Final = (".csv", ".tsv")
"""Ends of names of files that are read as lists of tables."""

_SEPARATORS: Final = ",;\t|"
_TEXT_COLUMNS: Final = frozenset({"name", "dtype", "pooling", "module", "row_update"})
_LIST_COLUMNS: Final = frozenset({"features", "pooling_factor", "pooling"})
_MISSING: Final = frozenset({"nan", "na", "n/a", "<na>"})
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
    header, rows = documents.csv_rows(path, body, delimiter=separator, first=first)
    lines: dict[Keys, int] = {}
    tables: list[dict[str, Any]] = []
    header, dropped = _without_index(header)
    needed = NEEDED if dim is None else NEEDED[:-1]
    columns = named_columns(header, f"{path}:{first}", needed) if any(header) else []
    for line, row in rows:
        if len(row) != len(columns) + dropped:
            refuse(
                f"{path}:{line}: {len(row)} cells, the first line names "
                f"{len(columns) + dropped} columns; give one cell for each"
            )
        lines["tables", len(tables)] = line
        cells = {
            column: _value(column, cell.strip(), separator)
            for column, cell in zip(columns, row[dropped:], strict=True)
            if cell.strip() and cell.strip().lower() not in _MISSING
        }
        entry = entry_of(cells, f"{path}:{line}")
        tables.append(entry if dim is None else {"embedding_dim": dim, **entry})
    return document_of(path, tables, lines)


def document_of(path: Path, tables: list[dict[str, Any]], lines: dict[Keys, int]) -> Document:
    """The tables as a workload file whose other keys have defaults.

    Raises:
        InvalidInputError: there are no tables.
    """
    if not tables:
        refuse(f"{path}: no tables; below the line of column names, give one table per line")
    whole = joined(tables)
    value = {
        "name": path.stem,
        **deepcopy(WORDS["assumed"]),
        "assumed": list(spec.ASSUMED),
        "tables": whole,
    }
    return Document(path, value, lines if len(whole) == len(tables) else {})


def _separator(text: str) -> str:
    """What splits the first line into the most columns of a list; a comma where none does."""
    line = text.lstrip().split("\n", 1)[0][:10_000]
    words = {mark: [w.strip().strip("\"'") for w in line.split(mark)] for mark in _SEPARATORS}
    return max(words, key=lambda mark: len({*NEEDED}.intersection(map(known_column, words[mark]))))


def _without_index(header: list[str]) -> tuple[list[str], int]:
    """The header without the index of ``DataFrame.to_csv``; an index of text names the tables."""
    if header and known_column(header[0]) in ("", "Unnamed: 0", "index"):
        if "name" in map(known_column, header[1:]):
            return header[1:], 1
        return ["name", *header[1:]], 0
    return header, 0


def _value(column: str, text: str, separator: str) -> Any:
    if column not in (*WHOLE, "features") and separator != "," and _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    if column in _LIST_COLUMNS and (parts := _parts(text, column)) is not None:
        return parts
    # Spreadsheets write 40,000,000; with semicolons between cells also with other marks.
    mark = "[., ]" if separator == ";" else ","
    if column in WHOLE and re.fullmatch(rf"[0-9]{{1,3}}({mark}[0-9]{{3}})+", text):
        return int(re.sub(mark, "", text))
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


# ------------------------------------------------------------------ which feature is whose


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
            found = _pair(entry) if "=" in entry else _file(Path(entry))
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


def _pair(entry: str) -> ByFeature:
    feature, _, table = map(str.strip, entry.partition("="))
    if not feature or not table:
        refuse(f"--table-map {entry!r}: write feature=table")
    return ByFeature({feature: table})


def _file(path: Path) -> ByFeature:
    where = Path(f"--table-map {path}")
    data, lines = documents.parse_yaml(read_text(path), str(where))
    if isinstance(data, dict) and data and all(isinstance(v, str) for v in data.values()):
        return ByFeature(data)
    tables: dict[str, str] = {}
    rows: dict[str, int] = {}
    for entry in validate(schemas_of(WORDS)["file"], Document(where, data, lines)).tables:
        for name in spec.names_of(entry):
            for feature in spec.features_of(entry, name):
                if feature in tables:
                    refuse(f"{where}: feature {feature!r} is in two tables")
                tables[feature] = name
            if entry.num_embeddings is not None:
                rows[name] = entry.num_embeddings
    return ByFeature(tables, rows)
