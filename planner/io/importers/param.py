"""Imports PARAM's table-batched lookup: the JSON that its benchmark of operators reads.

The form is ``{"SplitTableBatchedEmbeddingBagsCodegen": {"config": [{"build": [{"args",
"kwargs"}], "input": [{"args"}]}]}}``. Under ``build`` there are ``num_tables, rows, dim, pooling,
weighted, weights_precision``, and under ``input`` there are ``batch_size, pooling_factor``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodels.distribution.uniform import Uniform
from costmodels.workload import DataType, Feature, Optimizer, Pooling, Table
from planner.errors import InvalidInputError
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import (
    MAX_COLUMNS,
    MAX_IMPORTED_TABLES,
    Imported,
    Reader,
    make_workload,
)
from planner.io.schemas import collect

OPERATORS: Final = (
    "SplitTableBatchedEmbeddingBagsCodegen",
    "SplitTableBatchedEmbeddingBagsCodegenOp",
)
_BUILD: Final = ("num_tables", "rows", "dim", "pooling", "weighted", "weights_precision")
_INPUT: Final = ("batch_size", "pooling_factor")
_POOLING: Final = (Pooling.SUM, Pooling.MEAN, Pooling.NONE)
_DTYPES: Final = {
    "fp32": DataType.FP32,
    "fp16": DataType.FP16,
    "bf16": DataType.BF16,
    "fp8": DataType.FP8,
    "int8": DataType.INT8,
}
_OPTIMIZERS: Final = {
    "exact_row_wise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    "exact_rowwise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    "rowwise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    "exact_adagrad": Optimizer.ADAGRAD,
    "exact_sgd": Optimizer.SGD,
    "sgd": Optimizer.SGD,
    "adam": Optimizer.ADAM,
    "partial_row_wise_adam": Optimizer.ROWWISE_ADAM,
    "partial_rowwise_adam": Optimizer.ROWWISE_ADAM,
    "none": Optimizer.NONE,
}
_ASSUMED: Final = {
    "tables": "uniform indices; the file does not say how they fall on rows",
    "training.output_dtype": "fp32; the file does not say it",
    "dense": "none, for the file holds lookups only",
}


def import_param(path: Path) -> Imported:
    """Import the tables of one configured lookup.

    Raises:
        InvalidInputError: there is no such operator, there are several configurations, or a value
            is missing, a range, or out of range; the message names the key path.
    """
    reader = Reader(Document(path, read_json(path), {}))
    top = reader.mapping(reader.document.value, ())
    operator = next((name for name in OPERATORS if name in top), None)
    if operator is None:
        message = f"{path}: has no operator {OPERATORS[0]!r}; it holds {', '.join(list(top)[:5])}"
        raise InvalidInputError(message)
    entry = reader.mapping(top[operator], (operator,))
    config, keys = _only(reader, entry, "config", (operator,))
    build, build_keys = _only(reader, config, "build", keys)
    given, given_keys = _only(reader, config, "input", keys)
    values = _named(reader, build, build_keys, _BUILD) | _named(reader, given, given_keys, _INPUT)
    tables = _tables(reader, values)
    kwargs_keys = (*build_keys, "kwargs")
    kwargs = reader.mapping(build.get("kwargs", {}), kwargs_keys)
    assumed = dict(_ASSUMED)
    if "optimizer" not in kwargs:
        assumed["training.optimizer"] = "the file does not name it"
    batch, batch_keys = values["batch_size"]
    workload = make_workload(
        str(path),
        name=path.stem,
        tables=tables,
        batch_size_per_rank=reader.whole(batch, batch_keys, high=10**8),
        optimizer=_optimizer(reader, kwargs, kwargs_keys),
    )
    others = [name for name in top if name != operator]
    return Imported(
        workload=workload,
        source=f"the PARAM configuration {path.name}",
        assumed=assumed,
        unsaid=(f"operators {', '.join(others[:5])}",) if others else (),
        law_is_known=False,
    )


def _only(reader: Reader, values: dict[str, Any], key: str, keys: Keys) -> tuple[Any, Keys]:
    """The only entry of a list; several entries would be several benchmarks, and not one model."""
    where = (*keys, key)
    entries = reader.sequence(reader.required(values, key, keys), where)
    if len(entries) != 1:
        raise reader.fail(where, entries, f"must have 1 entry, got {len(entries)}; keep one")
    return reader.mapping(entries[0], (*where, 0)), (*where, 0)


def _named(
    reader: Reader, part: dict[str, Any], keys: Keys, names: tuple[str, ...]
) -> dict[str, tuple[Any, Keys]]:
    """The value of each argument, with its place; arguments without names are taken in order."""
    where = (*keys, "args")
    args = reader.sequence(reader.required(part, "args", keys), where)
    found: dict[str, tuple[Any, Keys]] = {}
    for position, arg in enumerate(args):
        place = (*where, position)
        spec = reader.mapping(arg, place)
        swept = [mark for mark in ("__range__", "__list__") if mark in spec]
        if swept:
            raise reader.fail(place, spec, f"{swept[0]} sweeps over values; write one")
        by_order = names[position] if position < len(names) else None
        name = spec.get("name", by_order)
        if name not in names or name in found:
            raise reader.fail((*place, "name"), name, f"must be one of {', '.join(names)}, once")
        found[name] = (_value(reader, spec, place), (*place, "value"))
    missing = [name for name in names if name not in found]
    if missing:
        raise reader.fail(where, args, f"argument {missing[0]!r} is missing; add it")
    return found


def _value(reader: Reader, spec: dict[str, Any], keys: Keys) -> Any:
    """The value of a specification; elements of a list can be specifications themselves."""
    value = reader.required(spec, "value", keys)
    if isinstance(value, list):
        return [v["value"] if isinstance(v, dict) and "value" in v else v for v in value]
    return value


def _tables(reader: Reader, values: dict[str, tuple[Any, Keys]]) -> tuple[Table, ...]:
    num = reader.whole(*values["num_tables"], high=MAX_IMPORTED_TABLES)
    rows = [reader.whole(v, k) for v, k in _each(reader, values["rows"], num)]
    columns = [reader.whole(v, k, high=MAX_COLUMNS) for v, k in _each(reader, values["dim"], num)]
    factors = [reader.number(v, k) for v, k in _each(reader, values["pooling_factor"], num)]
    pooling = _POOLING[reader.whole(*values["pooling"], low=0, high=len(_POOLING) - 1)]
    precision, keys = values["weights_precision"]
    if not isinstance(precision, str) or precision not in _DTYPES:
        raise reader.fail(keys, precision, f"must be one of {', '.join(_DTYPES)}")
    is_weighted = reader.flag(*values["weighted"])
    problems: list[str] = []
    tables: list[Table] = []
    for i in range(num):
        build = partial(
            Table,
            name=f"t{i}",
            num_embeddings=rows[i],
            embedding_dim=columns[i],
            features=(Feature(name=f"t{i}", pooling_factor=factors[i]),),
            distribution=Uniform(num_embeddings=rows[i]),
            dtype=_DTYPES[precision],
            pooling=pooling,
            is_weighted=is_weighted,
        )
        table = collect(problems, str(reader.document.path), build)
        tables += [table] if table is not None else []
    if problems:
        raise InvalidInputError(problems)
    return tuple(tables)


def _each(reader: Reader, given: tuple[Any, Keys], num: int) -> list[tuple[Any, Keys]]:
    """One value for each table: a list has one for each, a number holds for all."""
    value, keys = given
    if isinstance(value, list):
        return [(v, (*keys, i)) for i, v in enumerate(reader.sequence(value, keys, length=num))]
    return [(value, keys)] * num


def _optimizer(reader: Reader, kwargs: dict[str, Any], keys: Keys) -> Optimizer:
    if "optimizer" not in kwargs:
        return Optimizer.ROWWISE_ADAGRAD
    where = (*keys, "optimizer")
    value = _value(reader, reader.mapping(kwargs["optimizer"], where), where)
    if not isinstance(value, str) or value not in _OPTIMIZERS:
        raise reader.fail(where, value, f"must be one of {', '.join(_OPTIMIZERS)}")
    return _OPTIMIZERS[value]
