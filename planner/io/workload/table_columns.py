"""The columns of a list of tables, by their usual names, and one row as an entry of a workload.

A list may be a CSV file, a DataFrame, or a file of another program that lists its tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from planner.errors import InvalidInputError
from planner.io.problems import nearest
from planner.io.workload.workload_schema import TableSchema

LAW_COLUMNS: Final = {"zipf_exponent": "exponent", "zipf_shift": "shift"}
KNOWN: Final = (*TableSchema.model_fields, *LAW_COLUMNS)
NEEDED: Final = ("name", "num_embeddings", "embedding_dim")
WHOLE: Final = frozenset({"num_embeddings", "embedding_dim", "count"})

_SYNONYMS: Final = {
    "name": "table tablename embedding embeddingname embeddingtable",
    "num_embeddings": "rows row nrows numrows hashsize hashbucketsize cardinality vocab vocabsize "
    "vocabularysize numbuckets numcategories ncategories numids nunique inputdim numembedding",
    "embedding_dim": "dim dims dimension embeddingsize embdim embeddim embsize embedsize "
    "embeddingdimension embeddingvecsize outputdim columns numcolumns numcols",
    "pooling_factor": "avgpooling meanpooling avgpoolingfactor multihot multihotsize hotness "
    "avghotness meanhotness avglength meanlength avglen idspersample indicespersample bagsize",
    "pooling": "combiner poolingtype poolingmode",
    "dtype": "datatype precision weightdtype",
    "features": "feature featurename featurenames",
    "is_weighted": "weighted",
    "zipf_exponent": "zipf zipfalpha alpha",
}
_BY_WORD: Final = {
    **{word: key for key, words in _SYNONYMS.items() for word in words.split()},
    **{key.replace("_", ""): key for key in KNOWN},
}
_MEANING: Final = {"pooling_factor": "indices per sample", "distribution": "law of the indices"}
_WORDS: Final = {
    "float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "avg": "mean", "average": "mean", "pooled": "sum",
}  # fmt: skip
_MOST_WHOLE: Final = 2.0**53


def known_column(name: str) -> str:
    """The key of a workload file that a column stands for; the column's own name if none."""
    return _BY_WORD.get(re.sub(r"[^a-z0-9]", "", name.lower()), name.strip())


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
        f"{where}: column {name!r}: unknown; {nearest(key, list(KNOWN))}{known}; rename or drop it"
        for name, key in zip(given, columns, strict=True)
        if key not in KNOWN
    ]
    twice = sorted({key for key in columns if columns.count(key) > 1})
    for key in twice:
        same = [repr(name) for name, k in zip(given, columns, strict=True) if k == key]
        problems.append(f"{where}: column {key!r} is there twice ({', '.join(same)}); keep one")
    lacking = [key for key in needed if key not in columns]
    problems += [
        f"{where}: column {key!r} is missing; it may also be called {_SYNONYMS[key].split()[0]}"
        for key in lacking
    ]
    if problems:
        raise InvalidInputError(problems)
    return columns


def entry_of(cells: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One table as an entry of a YAML file, from the cells that are not empty.

    Args:
        cells: the value of each column.
        where: the place of the row, with which errors begin.

    Raises:
        InvalidInputError: two cells give the same key, so that one of them would be ignored.
    """
    pooling = cells.get("pooling")
    is_factor = isinstance(pooling, int | float | list) and not isinstance(pooling, bool)
    for one, other, clash in (
        ("pooling", "pooling_factor", is_factor and "pooling_factor" in cells),
        *((law, "distribution", law in cells and "distribution" in cells) for law in LAW_COLUMNS),
    ):
        if clash:
            message = f"{where}: {one!r} and {other!r} both say the {_MEANING[other]}; keep one"
            raise InvalidInputError(message)
    entry: dict[str, Any] = {}
    law: dict[str, Any] = {}
    for column, cell in cells.items():
        value = _whole(cell) if column in WHOLE else cell
        if column in LAW_COLUMNS:
            law[LAW_COLUMNS[column]] = value
        elif column == "pooling" and is_factor:
            entry["pooling_factor"] = value
        elif column in ("dtype", "pooling") and isinstance(value, str):
            word = value.lower().rpartition(".")[2]
            entry[column] = _WORDS.get(word, word)
        elif column == "features" and isinstance(value, str):
            entry[column] = [value]
        else:
            entry[column] = value
    if law:
        entry["distribution"] = {"kind": "zipf", **law}
    return entry


def joined(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one table, each with other features, as one table with all of these features."""
    tables: dict[str, dict[str, Any]] = {}
    rest: list[dict[str, Any]] = []
    for entry in entries:
        first = tables.get(str(entry.get("name")))
        if first is None or not _is_same_table(first, entry):
            tables.setdefault(str(entry.get("name")), entry)
            rest.append(entry)
            continue
        factors = [*_factors(first), *_factors(entry)]
        first["features"] = [*first["features"], *entry["features"]]
        first["pooling_factor"] = factors if len(set(factors)) > 1 else factors[0]
    return rest


def _is_same_table(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    ours, theirs = (
        {k: v for k, v in e.items() if k not in ("features", "pooling_factor")}
        for e in (one, other)
    )
    listed = all(isinstance(e.get("features"), list) for e in (one, other))
    return listed and ours == theirs and not set(one["features"]) & set(other["features"])


def _factors(entry: Mapping[str, Any]) -> list[Any]:
    factor = entry.get("pooling_factor", 1.0)
    return factor if isinstance(factor, list) else [factor] * len(entry["features"])


def _whole(value: Any) -> Any:
    """A whole number that is written as ``3e6`` or ``3000000.0``; any other value as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE:
        return int(value)
    return value
