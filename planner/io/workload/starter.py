"""Makes first workload files: a user's list of tables, or placeholders, and all other keys.

Tables come from CSV, or from the feature files of other programs, by one table of their keys.
FuxiCTR writes ``feature_map.json``, NVIDIA's recommenders ``feature_spec.yaml``, and TorchEasyRec
and EasyRec read configurations in the text form of protocol buffers. In all of them a feature is a
group of keys, one of which says how many rows its table has. Every value that the user has not
given has a comment that asks for it.

:func:`workload_from_dataframe` makes a workload from a table of tables in memory.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from costmodels.errors import InvalidValueError
from costmodels.workload import Workload
from planner.errors import InvalidInputError, refuse
from planner.io.documents import Document, parse_json, parse_scalar, parse_yaml, read_text
from planner.io.workload.table_list import (
    ASSUMED,
    document_of,
    entry_of,
    joined,
    known_column,
    named_columns,
    read_table_list,
)
from planner.io.workload.workload_file import workload_file_of, workload_text

_KEYS: Final = {
    "num_embeddings": "vocab_size cardinality num_buckets hash_bucket_size zch_size max_capacity",
    "embedding_dim": "embedding_dim embedding_size",
    "pooling_factor": "hotness max_len sequence_length",
    "pooling": "pooling combiner",
    "zipf_exponent": "alpha",
}
"""What the files call the columns of a list of tables."""
_TABLE: Final = ("embedding_name", "share_embedding")
_NAME: Final = ("feature_name", "sequence_name", "input_names")
_INSIDE: Final = ("zch", "dynamicembedding")
_ABOVE: Final = ("pooling_factor",)
"""Read from the group around a feature, too: the length of a sequence of several features."""
_EXTRA_ROWS: Final = {"boundaries": 1, "vocab_list": 2}
"""Lists that stand for rows: bins between boundaries; words, the default and the unknown word."""
_PROTOBUF: Final = re.compile(r"^\s*(feature_configs?|data_config|model_config)\s*:?\s*\{", re.M)
_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<mark>[{}\[\]:,;<>])"""
    r"""|(?P<word>[^\s{}\[\]:,;<>"'\#]+)"""
)
_MOST_DEPTH: Final = 50


def read_any_list(path: Path, *, dim: int | None = None) -> Document:
    """The tables of a CSV list or of a feature file, whatever the file is called.

    Args:
        path: the file.
        dim: the embedding dimension of tables for which the file has none.

    Raises:
        InvalidInputError: the file is damaged, names no tables, or lacks a dimension and ``dim`` is
            None.
    """
    text = read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        value = parse_json(text, path)
    elif re.search(r"^(feature_spec|channel_spec)\s*:", text, re.M):
        value = parse_yaml(text, str(path))[0]
    elif _PROTOBUF.search(text):
        value = _protobuf(text, path)
    else:
        return read_table_list(path, dim=dim)
    found = list(_features(value, "", {}, 0))
    tables = [entry_of(cells, f"{path}: {cells['features'][0]}") for cells in found]
    bare = [entry["features"][0] for entry in tables if "embedding_dim" not in entry]
    if bare and dim is None:
        refuse(
            f"{path}: {len(bare)} features have no embedding dimension, such as {bare[0]!r}; add "
            "--dim with that of the model"
        )
    for entry in tables:
        entry.setdefault("embedding_dim", dim)
    document = document_of(path, tables, {})
    batch = value.get("data_config", {}) if isinstance(value, dict) else {}
    batch = batch.get("batch_size") if isinstance(batch, dict) else None
    if batch is not None:
        document.value["training"]["batch_size_per_rank"] = batch
        document.value["assumed"].remove("training.batch_size_per_rank")
    return document


def _features(value: Any, name: str, above: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """The cells of each feature below a value; ``name`` is the key that leads to it."""
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, list):
        for part in value:
            yield from _features(part, name, above, depth + 1)
    if not isinstance(value, dict):
        return
    inner = [value, *(value[k] for k in _INSIDE if isinstance(value.get(k), dict))]
    cells = {
        column: part[key]
        for column, keys in _KEYS.items()
        for key in keys.split()
        for part in inner
        if isinstance(part.get(key), int | float | str) and part[key] != ""
    }
    for key, extra in _EXTRA_ROWS.items():
        if key in value and "num_embeddings" not in cells:
            listed = value[key]
            cells["num_embeddings"] = extra + (len(listed) if isinstance(listed, list) else 1)
    known = {column: above[column] for column in _ABOVE if column in above} | cells
    if "num_embeddings" not in cells:
        for key, part in value.items():
            yield from _features(part, str(key), known, depth + 1)
        return
    feature = str(next((value[k] for k in _NAME if isinstance(value.get(k), str)), name))
    table = next((value[k] for k in _TABLE if isinstance(value.get(k), str) and value[k]), feature)
    if known.get("pooling_factor") == 0:
        del known["pooling_factor"]
    yield {**known, "name": table, "features": [feature]}


def _protobuf(text: str, path: Path) -> dict[str, Any]:
    """The groups of a protocol buffer's text form; a key that is there twice has a list."""
    top: dict[str, Any] = {}
    open_groups = [top]
    key, position = "", 0
    in_list = False
    while position < len(text):
        found = _TOKEN.match(text, position)
        line = text.count("\n", 0, position) + 1
        if found is None:
            refuse(f"{path}:{line}: not well-formed: {text[position : position + 20]!r}")
        position = found.end()
        mark, word = found["mark"], found["word"] or found["text"]
        if mark in ("{", "<") and key and len(open_groups) < _MOST_DEPTH:
            group: dict[str, Any] = {}
            _add(open_groups[-1], key, group)
            open_groups.append(group)
            key = ""
        elif mark in ("}", ">") and len(open_groups) > 1:
            open_groups.pop()
        elif mark in ("[", "]"):
            in_list = mark == "["
            key = key if in_list else ""
        elif mark and mark not in ":,;":
            refuse(f"{path}:{line}: not well-formed: {mark!r} has no place here")
        elif word and key:
            _add(open_groups[-1], key, parse_scalar(word) if found["word"] else word[1:-1])
            key = key if in_list else ""
        elif word:
            key = word
    if len(open_groups) > 1:
        refuse(f"{path}: {len(open_groups) - 1} groups are not closed; is the file cut off?")
    return top


def _add(group: dict[str, Any], key: str, value: Any) -> None:
    if key not in group:
        group[key] = value
    elif isinstance(group[key], list):
        group[key].append(value)
    else:
        group[key] = [group[key], value]


_NOTES: Final = {
    "training.batch_size_per_rank": "samples per GPU and step: assumed, put yours",
    "training.optimizer": "assumed, put yours",
    "training.output_dtype": "of pooled embeddings on the wire: assumed, put yours",
    "training.gradient_dtype": "of dense gradients on the wire: assumed, put yours",
    "training.pipeline": "assumed, put yours",
    "training.index_bytes": "assumed, put yours",
    "dense": "layers: assumed, put yours, or leave the section out for embeddings only",
    "memory": "per GPU: framework, allocator, NCCL: assumed, put yours",
    "tables": "where an entry has no pooling_factor, it is 1; no dtype is fp32: assumed",
}

_MEDIAN_ROWS: Final = 3e5
_MEDIAN_POOLING: Final = 5.0
_DIMS: Final = (16, 32, 64, 128, 256)


def listed_text(source: Path, name: str, *, dim: int | None = None) -> str:
    """The tables of a list (whatever its file is called) as a workload file to edit.

    ``dim`` is the embedding dimension of tables for which the list has none.

    Raises:
        InvalidInputError: the list breaks rules; the message names every line that does.
    """
    document = read_any_list(source, dim=dim)
    file = workload_file_of(document)
    kept = {"tables", "memory", *file.assumed}
    notes = {key: text for key, text in _NOTES.items() if key in kept}
    header = (
        f"Tables of {source.name}. Lines with 'assumed' are not from it; 'shardplan profile' finds",
        "how indices fall on rows, which is taken as uniform where a table has no distribution.",
    )
    return workload_text(
        replace(file.workload, name=name),
        header=header,
        notes=notes,
        law_is_known=False,
        assumed=file.assumed,
    )


def placeholder_text(num_tables: int, name: str) -> str:
    """A workload of made-up tables, the same at every call, to try sizes and to edit.

    Rows and pooling factors are log-normal (medians 300,000 and 5), dimensions are 16..256, and
    exponents of the Zipf law 0.6..1.3, as in the shipped ``synthetic_300``.
    """
    import numpy as np

    rng = np.random.default_rng(num_tables)
    rows = np.clip(_MEDIAN_ROWS * rng.lognormal(0.0, 2.0, num_tables), 1e3, 1e8).astype(int)
    dims = rng.choice(_DIMS, num_tables)
    pooling = np.clip(_MEDIAN_POOLING * rng.lognormal(0.0, 1.1, num_tables), 0.3, 200.0).round(1)
    exponents = rng.uniform(0.6, 1.3, num_tables).round(2)
    digits = len(str(num_tables - 1))
    entries = [
        {
            "name": f"table_{i:0{digits}d}",
            "num_embeddings": int(rows[i]),
            "embedding_dim": int(dims[i]),
            "pooling_factor": float(pooling[i]),
            "distribution": {"kind": "zipf", "exponent": float(exponents[i])},
        }
        for i in range(num_tables)
    ]
    header = (
        f"{num_tables} made-up tables, one per line: overwrite them with yours. 'shardplan import",
        "tables --list tables.csv' writes this file from a list of your tables.",
    )
    notes = {key: text for key, text in _NOTES.items() if key != "tables"}
    file = workload_file_of(document_of(Path(name), entries, {}))
    whole = replace(file.workload, name=name)
    return workload_text(
        whole, header=header, notes=notes, law_is_known=False, assumed=dict.fromkeys(ASSUMED, ())
    )


# ------------------------------------------------------------------ tables in memory


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
    found = workload_file_of(Document(Path("DataFrame"), value, {}))
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
    """A number or array of numpy as plain Python values; any other value as it is."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def _present(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row that are not missing, as plain values, by the keys of a workload file.

    Raises:
        InvalidInputError: two columns mean the same key.
    """
    cells: dict[str, Any] = {}
    by_name: dict[str, str] = {}
    for column, cell in row.items():
        value = _plain(cell)
        # The marks of pandas are known by name, so that it is not imported for them.
        is_mark = value is None or type(value).__name__ in ("NAType", "NaTType")
        if is_mark or (isinstance(value, float) and math.isnan(value)):
            continue
        name = known_column(str(column))
        first = by_name.setdefault(name, str(column))
        if name in cells:
            refuse(f"DataFrame: columns {first!r} and {column!r} both mean {name}; drop one")
        cells[name] = list(value) if isinstance(value, tuple) else value
    return cells
