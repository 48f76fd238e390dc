"""Imports PARAM's table-batched lookup: the JSON that its benchmark of operators reads.

The form is ``{"SplitTableBatchedEmbeddingBagsCodegen": {"config": [{"build": [{"args",
"kwargs"}], "input": [{"args"}]}]}}``. Under ``build`` there are ``num_tables, rows, dim, pooling,
weighted, weights_precision``, and under ``input`` there are ``batch_size, pooling_factor``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from costmodels.workload import DataType, Optimizer, Pooling, Table
from planner.errors import refuse
from planner.io.documents import Document, Keys, read_json
from planner.io.importers.base import (
    BatchSize,
    Columns,
    Imported,
    Rows,
    TableCount,
    imported_of,
    plain_table,
)
from planner.io.schemas import Loose, PoolingFactor, each, validate

OPERATORS: Final = (
    "SplitTableBatchedEmbeddingBagsCodegen",
    "SplitTableBatchedEmbeddingBagsCodegenOp",
)
_BUILD: Final = ("num_tables", "rows", "dim", "pooling", "weighted", "weights_precision")
_INPUT: Final = ("batch_size", "pooling_factor")
_POOLING: Final = (Pooling.SUM, Pooling.MEAN, Pooling.NONE)
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


class _Argument(Loose):
    name: str | None = None
    value: Any = None
    swept: Any = Field(default=None, validation_alias="__range__")
    listed: Any = Field(default=None, validation_alias="__list__")


class _Part(Loose):
    args: list[_Argument]
    kwargs: dict[str, _Argument] = Field(default_factory=dict)


class _Setup(Loose):
    build: Annotated[list[_Part], Field(min_length=1, max_length=1)]
    input: Annotated[list[_Part], Field(min_length=1, max_length=1)]


class _Benchmark(Loose):
    config: Annotated[list[_Setup], Field(min_length=1, max_length=1)]


class _Values(Loose):
    """The arguments by their names."""

    num_tables: TableCount
    rows: Rows | list[Rows]
    dim: Columns | list[Columns]
    pooling: Annotated[int, Field(ge=0, lt=len(_POOLING))]
    weighted: bool
    weights_precision: Literal["fp32", "fp16", "bf16", "fp8", "int8"]
    batch_size: BatchSize
    pooling_factor: PoolingFactor | list[PoolingFactor]


def import_param(path: Path) -> Imported:
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
    document = Document(path, top[operator], {}, above=(operator,))
    setup = validate(_Benchmark, document).config[0]
    found = Document(path, {}, {})
    _add_named(found, document, "build", setup.build[0], _BUILD)
    _add_named(found, document, "input", setup.input[0], _INPUT)
    values = validate(_Values, found)
    assumed = dict(_ASSUMED)
    optimizer: Any = "rowwise_adagrad"
    if "optimizer" in setup.build[0].kwargs:
        optimizer = setup.build[0].kwargs["optimizer"].value
        if not isinstance(optimizer, str) or optimizer not in _OPTIMIZERS:
            keys = ("config", 0, "build", 0, "kwargs", "optimizer")
            document.refuse(keys, optimizer, f"must be one of {', '.join(_OPTIMIZERS)}")
    else:
        assumed["training.optimizer"] = "the file does not name it"
    others = [name for name in names if name != operator]
    return imported_of(
        path,
        "PARAM configuration",
        {
            "tables": _tables(values, found),
            "batch_size_per_rank": values.batch_size,
            "optimizer": _OPTIMIZERS[optimizer],
        },
        assumed=assumed,
        unsaid=(f"operators {', '.join(others[:5])}",) if others else (),
        law_is_known=False,
    )


def _tables(values: _Values, found: Document) -> tuple[Table, ...]:
    rows, columns, factors = (
        each(getattr(values, key), values.num_tables, found, (key,))
        for key in ("rows", "dim", "pooling_factor")
    )
    return tuple(
        plain_table(
            f"t{i}",
            rows[i],
            columns[i],
            [(f"t{i}", factors[i])],
            dtype=DataType(values.weights_precision),
            pooling=_POOLING[values.pooling],
            is_weighted=values.weighted,
        )
        for i in range(values.num_tables)
    )


def _add_named(
    found: Document, document: Document, section: str, part: _Part, names: tuple[str, ...]
) -> None:
    """Add each argument by its name; arguments without names are taken in order."""
    where: Keys = ("config", 0, section, 0, "args")
    for position, argument in enumerate(part.args):
        place = (*where, position)
        if argument.swept is not None or argument.listed is not None:
            document.refuse(place, argument.value, "sweeps over values; write one")
        name = argument.name or (names[position] if position < len(names) else None)
        if name not in names or name in found.value:
            document.refuse((*place, "name"), name, f"must be one of {', '.join(names)}, once")
        value = argument.value
        if isinstance(value, list):
            value = [v["value"] if isinstance(v, dict) and "value" in v else v for v in value]
        found.value[name] = value
        found.origins[name,] = document.where((*place, "value"))
    for name in names:
        if name not in found.value:
            given = [a.name for a in part.args]
            document.refuse(where, given, f"argument {name!r} is missing; add it")
