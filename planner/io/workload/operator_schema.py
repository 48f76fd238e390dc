"""The keys of a list of operators, under ``dense.operators`` or in a file of its own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from costmodels.datatypes import DataType
from costmodels.operators import Operator, OperatorKind
from costmodels.workload import OperatorList
from planner.io.documents import read_yaml
from planner.io.fields import Count, Name, Positive
from planner.io.problems import Strict, collect, validate

_Amount = Annotated[float, Field(ge=0, le=2**53)]


class OperatorSchema(Strict):
    """One operator; figures are of one repeat of the forward pass."""

    name: Name
    kind: Annotated[OperatorKind, Field(strict=False)]
    shape: Annotated[list[Count], Field(max_length=16)]
    dtype: Annotated[DataType, Field(strict=False)] = DataType.FP32
    read_bytes: _Amount = 0.0
    written_bytes: _Amount = 0.0
    num_parameters: Count = 0
    parameter_bytes: _Amount = 0.0
    saved_bytes: _Amount = 0.0
    num_kernels: Count = 1
    num_calls: Count = 1
    num_repeats: Positive = 1
    left_gradient: bool = True
    right_gradient: bool = True
    is_causal: bool = False
    num_sorted: Count = 0
    num_joined: Count = 0
    backward_bytes: _Amount | None = None
    is_recomputed: bool = False
    flash_version: Annotated[int, Field(ge=1, le=3)] = 2
    is_pointwise: bool = False
    is_vectorized: bool = False
    deviation_ratio: _Amount = 0.0
    most_ratio: _Amount = 0.0
    is_cast: bool = False
    function: Annotated[str, Field(max_length=64)] = ""


class OperatorListSchema(Strict):
    """Operators before and after the looked-up vectors arrive, for one batch size."""

    batch_size_per_rank: Annotated[Positive, Field(le=10**8)]
    source: str = ""
    before_tables: Annotated[list[OperatorSchema], Field(max_length=100_000)] = Field(
        default_factory=list
    )
    after_tables: Annotated[list[OperatorSchema], Field(max_length=100_000)] = Field(
        default_factory=list
    )


def operators_of(schema: OperatorListSchema) -> OperatorList:
    """The operators of a list that was read from a file.

    Raises:
        InvalidValueError: a shape does not suit the kind of its operator.
    """
    return OperatorList(
        local_batch_size=schema.batch_size_per_rank,
        source=schema.source,
        before_tables=tuple(map(_operator, schema.before_tables)),
        after_tables=tuple(map(_operator, schema.after_tables)),
    )


def read_operators(path: Path) -> OperatorList:
    """The operators of a YAML or JSON file.

    Raises:
        InvalidInputError: lists every broken rule with file, line, key and value.
    """
    from planner.errors import InvalidInputError

    schema = validate(OperatorListSchema, read_yaml(path))
    problems: list[str] = []
    found = collect(problems, str(path), lambda: operators_of(schema))
    if found is None:
        raise InvalidInputError(problems)
    return found


def operators_entry(operators: OperatorList) -> dict[str, Any]:
    """The mapping that reads back as ``operators``, without keys at their default."""
    values: dict[str, Any] = {"batch_size_per_rank": operators.local_batch_size}
    if operators.source:
        values["source"] = operators.source
    for key in ("before_tables", "after_tables"):
        listed = getattr(operators, key)
        if listed:
            values[key] = [_entry(operator) for operator in listed]
    return values


def _operator(schema: OperatorSchema) -> Operator:
    values = {name: getattr(schema, name) for name in OperatorSchema.model_fields}
    return Operator(**values | {"shape": tuple(schema.shape)})


def _entry(operator: Operator) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(operator):
        value = getattr(operator, field.name)
        if value != field.default:
            plain = value.value if isinstance(value, OperatorKind | DataType) else value
            values[field.name] = list(plain) if isinstance(plain, tuple) else plain
    return values
