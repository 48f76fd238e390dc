"""Imports table-batched lookups: FBGEMM's TBE data configuration, and PARAM's (both JSON).

The keys are those of FBGEMM 1.8 ``tbe/bench/tbe_data_config.py``: ``T`` features with rows ``E`` or
``Es`` and columns ``D`` or ``Ds``; ``batch_params.B``; ``pooling_params.L`` or ``Ls``;
``indices_params`` with the probabilities of the hottest rows and a law (x + q)^-s of the rest; or
``embedding_specs`` and ``feature_table_map``.

PARAM's benchmark of operators reads the form ``{"SplitTableBatchedEmbeddingBagsCodegen": {"config":
[{"build": [{"args", "kwargs"}], "input": [{"args"}]}]}}``. Under ``build`` there are ``num_tables,
rows, dim, pooling, weighted, weights_precision``, and under ``input`` there are ``batch_size,
pooling_factor``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf
from costmodels.workload import Optimizer, Table
from planner.errors import refuse
from planner.io.documents import Document, read_json, read_words
from planner.io.importers import base
from planner.io.schemas import each, present, schemas_of, validate

_WORDS: Final = read_words("fbgemm")
_ASSUMED, _INDEX_BYTES = _WORDS["assumed"], _WORDS["index_bytes"]


def _at_most_all(ratios: list[float]) -> list[float]:
    if sum(ratios) > 1 + 1e-5:
        refuse(f"must sum to at most 1, got {sum(ratios):.6g}")
    return ratios


def _optimizer(name: object) -> str:
    return str(name).removeprefix("exact_").replace("row_wise", "rowwise")


_KEYS: Final = schemas_of(
    _WORDS,
    **base.KINDS,
    ratios=Annotated[
        list[Annotated[float, Field(ge=0, le=1)]],
        Field(max_length=100),
        AfterValidator(_at_most_all),
    ],
    shape=Annotated[tuple[base.Rows, base.Columns], Field(strict=False)],
    optimizer=Annotated[Optimizer, Field(strict=False), BeforeValidator(_optimizer)],
)


def _law_of(law: Any, rows: int) -> AbstractIndexDistribution:
    """The law of a table: probabilities of the hottest rows, and a power law of the rest.

    The row at position k, counted from 0 over all rows, has a probability proportional to
    (k + q)^-s (FBGEMM ``tbe/eeg/indices_generator.cpp``: heavy rows shift q by their number). Our
    law counts from 1, hence q - 1.
    """
    heavy = np.sort(np.array((law.heavy_hitters or [])[:rows], dtype=float))[::-1]
    if not len(heavy) or not heavy[0]:
        if law.zipf_q >= 1 or rows == 1:
            shift = max(law.zipf_q - 1, 0.0)
            return Zipf(num_embeddings=rows, exponent=law.zipf_s, shift=shift)
        # The shift of a law here cannot be negative, so that the first row is one by itself.
        second = float(_tail(law, rows, 1).frequency_bins()[1][0])
        others = (1.0 + law.zipf_q) ** -law.zipf_s / second
        heavy = np.array([1.0 / (1.0 + others * law.zipf_q**law.zipf_s)])
    counts, probability = np.ones(len(heavy)), heavy
    if rows > len(heavy):
        tail_rows, tail_probability = _tail(law, rows, len(heavy)).frequency_bins()
        mass = max(1.0 - float(heavy.sum()), 0.0)
        counts = np.concatenate([counts, tail_rows])
        probability = np.concatenate([heavy, tail_probability * mass])
    order = np.argsort(-probability, kind="stable")
    return Empirical.from_bins(counts[order], probability[order], rows)


def _tail(law: Any, rows: int, num_heavy: int) -> Zipf:
    shift = law.zipf_q + num_heavy - 1
    return Zipf(num_embeddings=rows - num_heavy, exponent=law.zipf_s, shift=shift)


_MAP: Final = ("feature_table_map",)


def import_fbgemm(path: Path) -> base.Imported:
    """Import the tables of one configuration, of a list of them, or of an object with names.

    The batch is that of the first configuration; the indices of others are scaled to it.

    Raises:
        InvalidInputError: a value is missing or out of range; the message names its key path.
    """
    found = list(_configurations(path, read_json(path)))
    configs = [config for _, _, config in found]
    num_tables = sum(config.T for config in configs)
    if not 1 <= num_tables <= base.MAX_IMPORTED_TABLES:
        refuse(f"{path}: {num_tables:,} tables: must be 1 to {base.MAX_IMPORTED_TABLES:,}")
    laws = [config.indices_params for config in configs if config.indices_params is not None]
    widths = {_INDEX_BYTES[law.index_dtype] for law in laws if law.index_dtype in _INDEX_BYTES}
    unsaid = list(dict.fromkeys(line for config in configs for line in _unsaid(config)))
    read = base.Reading(Document(path, None, {}), dict(_ASSUMED["fbgemm"]), unsaid)
    if len(widths) != 1:
        read.assume("training.index_bytes", "8; the file does not say one width for all")
    num_samples = configs[0].B or (configs[0].Bs or [1])[0]
    return read.imported(
        f"the FBGEMM configuration {path.name}",
        {
            "name": path.stem,
            "tables": (table for part in found for table in _tables(*part, num_samples)),
            "batch_size_per_rank": num_samples,
            "index_bytes": widths.pop() if len(widths) == 1 else 8,
        },
    )


def _configurations(path: Path, value: Any) -> Iterator[tuple[Document, str, Any]]:
    """The place of each configuration, the prefix of its tables' names, and the configuration."""
    named: dict[tuple[Any, ...], tuple[str, Any]] = {(): ("", value)}
    if isinstance(value, list):
        named = {(i,): (f"tbe{i}_", part) for i, part in enumerate(value)}
    elif isinstance(value, dict) and all(isinstance(part, dict) for part in value.values()):
        named = {(key,): (f"{key}_", part) for key, part in value.items()}
    for keys, (prefix, part) in named.items():
        document = Document(path, part, {}, above=keys)
        yield document, prefix, validate(_KEYS["configuration"], document)


def _tables(document: Document, prefix: str, config: Any, num_samples: int) -> Iterator[Table]:
    """The tables of one configuration; their indices per sample are for ``num_samples`` of all."""
    num, specs, owner = config.T, config.embedding_specs, config.feature_table_map
    samples = _per_feature(document, config, "B", "batch_params")
    pooling = _per_feature(document, config, "L", "pooling_params")
    laws = config.indices_params_list
    laws = present(config.indices_params, document, ("indices_params",)) if laws is None else laws
    laws = each(laws, num, document, ("indices_params_list",))
    owner = list(range(num)) if owner is None else each(owner, num, document, _MAP)
    if specs is None:
        shapes = list(zip(*(_per_feature(document, config, key) for key in "ED"), strict=True))
    elif {*owner} == {*range(len(specs))}:
        shapes = [specs[table] for table in owner]
    else:
        document.refuse(_MAP, owner, f"must name each of the {len(specs)} embedding_specs")
    features: dict[int, list[int]] = {}
    for feature, table in enumerate(owner):
        own = features.setdefault(table, [])
        own.append(feature)
        if shapes[feature] != shapes[own[0]]:
            document.refuse((*_MAP, feature), table, "features of one table must agree in E and D")
    for number, (_, own) in enumerate(sorted(features.items())):
        rows, columns = shapes[own[0]]
        yield base.plain_table(
            f"{prefix}t{number}",
            rows,
            columns,
            [(f"{prefix}f{f}", pooling[f] * samples[f] / num_samples) for f in own],
            distribution=_law_of(laws[own[0]], rows),
            is_weighted=config.weighted,
        )


def _per_feature(document: Document, config: Any, key: str, *above: str) -> list[Any]:
    """``Es`` if it is given, else ``E`` for all features; in older files ``E`` can be a list."""
    name = f"{key}s" if getattr(config, f"{key}s") is not None else key
    value = present(getattr(config, name), document, (*above, name))
    return each(value, config.T, document, (*above, name))


def _unsaid(config: Any) -> list[str]:
    spread = [key for key in _WORDS["spreads"] if getattr(config, key)]
    places = [_WORDS["keys"]["configuration"][key]["at"] for key in spread]
    told = [f"{place}: a workload holds means, not their spread" for place in places]
    columns = config.embedding_specs or config.Ds or config.D
    if config.mixed_dim and not isinstance(columns, list):
        told.append("mixed_dim: the benchmark draws the columns of each table around D")
    return told


# ------------------------------------------------------------------ PARAM


OPERATORS: Final[list[str]] = _WORDS["operators"]


def import_param(path: Path) -> base.Imported:
    """Import the tables of one configured lookup.

    Raises:
        InvalidInputError: there is no such operator, there are several configurations, or a value
            is missing, a range, or out of range; the message names the key path.
    """
    top = read_json(path)
    names = list(top) if isinstance(top, dict) else []
    operator = next((name for name in OPERATORS if name in names), None)
    if operator is None:
        refuse(f"{path}: has no operator {OPERATORS[0]!r}; it holds {', '.join(names[:5])}")
    found = _arguments(Document(path, top[operator], {}, above=(operator,)))
    values = validate(_KEYS["call"], found)
    read = base.Reading(Document(path, None, {}), dict(_ASSUMED["param"]))
    if values.optimizer is None:
        read.assume("training.optimizer", _ASSUMED["no_optimizer"])
    shapes = [
        each(getattr(values, key), values.num_tables, found, (key,))
        for key in ("rows", "dim", "pooling_factor")
    ]
    if others := [name for name in names if name != operator]:
        read.unsaid.append(f"operators {', '.join(others[:5])}")
    alike = {
        "dtype": values.weights_precision,
        "pooling": _WORDS["pooling"][values.pooling],
        "is_weighted": values.weighted,
    }
    return read.imported(
        f"the PARAM configuration {path.name}",
        {
            "name": path.stem,
            "tables": (
                base.plain_table(f"t{i}", rows, columns, [(f"t{i}", factor)], **alike)
                for i, (rows, columns, factor) in enumerate(zip(*shapes, strict=True))
            ),
            "batch_size_per_rank": values.batch_size,
            "optimizer": values.optimizer or Optimizer.ROWWISE_ADAGRAD,
        },
        law_is_known=False,
    )


def _arguments(document: Document) -> Document:
    """The value of each argument by its name; arguments without names are taken in order."""
    setup = validate(_KEYS["benchmark"], document).config[0]
    found = Document(document.path, {}, {})
    for section, names in _WORDS["arguments"].items():
        (part,) = getattr(setup, section)
        for position, argument in enumerate(part.args):
            place = ("config", 0, section, 0, "args", position)
            if argument.range is not None or argument.list is not None:
                document.refuse(place, argument.value, "sweeps over values; write one")
            name = argument.name or (*names, *[None] * len(part.args))[position]
            if name not in names or name in found.value:
                document.refuse((*place, "name"), name, f"must be one of {', '.join(names)}, once")
            value = argument.value
            if isinstance(value, list):
                value = [v["value"] if isinstance(v, dict) and "value" in v else v for v in value]
            found.value[name] = value
            found.origins[name,] = document.where((*place, "value"))
    if given := setup.build[0].optimizer:
        found.value["optimizer"] = given.value
        keys = ("config", 0, "build", 0, "kwargs")
        found.origins["optimizer",] = document.where(keys)
    return found
