"""Makes first workload files: a user's list of tables, or placeholders, and all other keys.

Tables come from CSV, or from the feature files of other programs, by one table of their keys.
FuxiCTR writes ``feature_map.json``, NVIDIA's recommenders ``feature_spec.yaml``, and TorchEasyRec
and EasyRec read configurations in the text form of protocol buffers. In all of them a feature is a
group of keys, one of which says how many rows its table has. Every value that the user has not
given has a comment that asks for it.

:func:`workload_from_dataframe` makes a workload from a table of tables in memory.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodels.workload import Workload
from planner.errors import refuse
from planner.io import documents
from planner.io.schemas import made
from planner.io.workload import table_list as lists
from planner.io.workload.workload_file import workload_file_of, workload_text

_PROTOBUF: Final = re.compile(r"^\s*(feature_configs?|data_config|model_config)\s*:?\s*\{", re.M)
_TOKEN: Final = re.compile(
    r"""[\s:,;]+|\#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[{}\[\]<>]|[^\s{}\[\]:,;<>"'\#]+)|(?P<fault>.)"""
)
_MARKS: Final = frozenset("{}[]<>")
_MOST_DEPTH: Final = 50


def read_any_list(path: Path, *, dim: int | None = None) -> documents.Document:
    """The tables of a CSV list or of a feature file, whatever the file is called.

    Args:
        path: the file.
        dim: the embedding dimension of tables for which the file has none.

    Raises:
        InvalidInputError: the file is damaged, names no tables, or lacks a dimension and ``dim`` is
            None.
    """
    text = documents.read_text(path)
    value: Any
    if text.lstrip()[:1] in ("{", "["):
        value = documents.parse_json(text, path)
    elif re.search(r"^(feature_spec|channel_spec)\s*:", text, re.M):
        value = documents.parse_yaml(text, str(path))[0]
    elif _PROTOBUF.search(text):
        value = _group(_tokens(text, path), path)
    else:
        return lists.read_table_list(path, dim=dim)
    found = list(_features(value, "", None, 0))
    tables = [lists.entry_of(cells, f"{path}: {cells['features'][0]}") for cells in found]
    bare = [entry["features"][0] for entry in tables if "embedding_dim" not in entry]
    if bare and dim is None:
        refuse(
            f"{path}: {len(bare)} features have no embedding dimension, such as {bare[0]!r}; add "
            "--dim with that of the model"
        )
    document = lists.document_of(path, [{"embedding_dim": dim, **entry} for entry in tables], {})
    settings = value.get("data_config") if isinstance(value, dict) else None
    if isinstance(settings, dict) and settings.get("batch_size") is not None:
        document.value["training"]["batch_size_per_rank"] = settings["batch_size"]
        document.value["assumed"].remove("training.batch_size_per_rank")
    return document


def _features(value: Any, name: str, length: Any, depth: int) -> Iterator[dict[str, Any]]:
    """The cells of each feature below a value.

    Args:
        value: a part of a file.
        name: the key that leads to it.
        length: indices per sample, if a group around it is a sequence of several features.
        depth: how far it is from the top.
    """
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, list):
        for part in value:
            yield from _features(part, name, length, depth + 1)
    if not isinstance(value, dict):
        return
    inner = [value, *(value[k] for k in lists.WORDS["inside"] if isinstance(value.get(k), dict))]
    cells = {
        column: part[key]
        for column, keys in lists.WORDS["features"].items()
        for key in keys
        for part in inner
        if isinstance(part.get(key), int | float | str) and part[key] != ""
    }
    for key, extra in lists.WORDS["extra_rows"].items():
        if key in value and "num_embeddings" not in cells:
            listed = value[key]
            cells["num_embeddings"] = extra + (len(listed) if isinstance(listed, list) else 1)
    length = cells.pop("pooling_factor", length)
    if "num_embeddings" not in cells:
        for key, part in value.items():
            yield from _features(part, str(key), length, depth + 1)
        return
    said = {key: cell for key, cell in value.items() if isinstance(cell, str)}
    feature = next((said[k] for k in lists.WORDS["feature_names"] if k in said), name)
    table = next((said[k] for k in lists.WORDS["table_names"] if said.get(k)), feature)
    factor = {"pooling_factor": length} if length else {}
    yield {**cells, **factor, "name": table, "features": [feature]}


def _tokens(text: str, path: Path) -> Iterator[str]:
    """The words, brackets and quoted texts of a protocol buffer's text form."""
    for found in _TOKEN.finditer(text):
        if found["fault"]:
            line = text.count("\n", 0, found.start()) + 1
            refuse(f"{path}:{line}: not well-formed: {text[found.start() :][:20]!r}")
        if found["text"] or found["word"]:
            yield found["text"] or found["word"]


def _group(tokens: Iterator[str], path: Path, depth: int = 0) -> dict[str, Any]:
    """The keys of a group up to its end; a key that is there twice has a list."""
    found: dict[str, list[Any]] = defaultdict(list)
    for key in tokens:
        if depth and key in ("}", ">"):
            break
        word = next(tokens, "")
        if key in _MARKS or word in ("}", ">", "]") or depth > _MOST_DEPTH:
            refuse(f"{path}: not well-formed: {key} {word} has no place here")
        if word in ("{", "<"):
            found[key].append(_group(tokens, path, depth + 1))
        elif word == "[":
            found[key] += map(_scalar, iter(lambda: next(tokens, "]"), "]"))
        else:
            found[key].append(_scalar(word))
    else:
        if depth:
            refuse(f"{path}: {depth} groups are not closed; is the file cut off?")
    return {key: each if len(each) > 1 else each[0] for key, each in found.items() if each}


def _scalar(word: str) -> object:
    return word[1:-1] if word[:1] in ("'", '"') else documents.parse_scalar(word)


_NOTE: Final = "assumed, put yours"


def listed_text(source: Path, name: str, *, dim: int | None = None) -> str:
    """The tables of a list (whatever its file is called) as a workload file to edit.

    ``dim`` is the embedding dimension of tables for which the list has none.

    Raises:
        InvalidInputError: the list breaks rules; the message names every line that does.
    """
    return _text(
        read_any_list(source, dim=dim),
        name,
        f"Tables of {source.name}. Lines with 'assumed' are not from it; 'shardplan profile' finds",
        "how indices fall on rows, which is taken as uniform where a table has no distribution.",
        tables="where an entry has no pooling_factor, it is 1; no dtype is fp32: assumed",
    )


def _text(document: documents.Document, name: str, *header: str, tables: str = "") -> str:
    """A workload file with comments at all keys whose values are assumed, and at the tables."""
    file = workload_file_of(document)
    return workload_text(
        replace(file.workload, name=name),
        header=header,
        notes={**dict.fromkeys((*file.assumed, "memory"), _NOTE), "tables": tables},
        law_is_known=False,
        assumed=file.assumed,
    )


def placeholder_text(num_tables: int, name: str) -> str:
    """A workload of made-up tables, to try sizes and to edit: those of ``synthetic_300``.

    Where more tables are asked for than that has, they begin again with its first one.
    """
    made_up = documents.read_yaml(documents.locate("synthetic_300", "workloads")).value["tables"]
    digits = len(str(num_tables - 1))
    entries = [
        {**entry, "name": f"table_{i:0{digits}d}"}
        for i, entry in zip(range(num_tables), itertools.cycle(made_up), strict=False)
    ]
    return _text(
        lists.document_of(Path(name), entries, {}),
        name,
        f"{num_tables} made-up tables, one per line: overwrite them with yours. 'shardplan import",
        "tables --list tables.csv' writes this file from a list of your tables.",
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
        frame: a pandas DataFrame, or mappings from column to value.
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
    if "tables" in changes:
        refuse("workload_from_dataframe takes the tables from the rows; drop tables=...")
    unknown = changes.keys() - {f.name for f in fields(Workload)}
    if unknown:
        refuse(f"{sorted(unknown)[0]} is no field of a workload; see planner.Workload")
    value = {
        "name": name,
        "training": {"batch_size_per_rank": _plain(batch_size_per_rank)},
        "tables": lists.joined(_entries(frame)),
    }
    found = workload_file_of(documents.Document(Path("DataFrame"), value, {}))
    if found.constraints.tables:
        refuse(
            "DataFrame: column 'constraints' is no part of a workload; drop it, and give "
            "planner.plan(..., constraints=planner.Constraints(...))"
        )
    return made("DataFrame", partial(replace, found.workload, **changes))


def _entries(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a DataFrame, or of a list of mappings, as entries of a workload file.

    Raises:
        InvalidInputError: it is neither of them, has no rows, or columns of one meaning.
    """
    import pandas

    if not isinstance(frame, pandas.DataFrame):
        rows = list(frame) if isinstance(frame, Iterable) else [frame]
        if not all(isinstance(row, Mapping) for row in rows):
            refuse(
                "workload_from_dataframe takes a DataFrame, or a list of mappings from column to "
                f"value, got a {type(frame).__name__}; pandas.DataFrame(...) makes one"
            )
        frame = pandas.DataFrame(rows)
    if frame.empty:
        refuse("DataFrame: no rows; give one row for each table")
    columns = lists.named_columns(map(str, frame.columns), "DataFrame")
    for row in frame.itertuples(index=False, name=None):
        cells = {key: _plain(cell) for key, cell in zip(columns, row, strict=True)}
        present = {k: v for k, v in cells.items() if isinstance(v, list) or not pandas.isna(v)}
        yield lists.entry_of(present, "DataFrame")


def _plain(value: Any) -> Any:
    """A number or list, of numpy or not, as plain Python values; any other value as it is."""
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value
