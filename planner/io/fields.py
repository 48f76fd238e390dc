"""Types of values that several kinds of files share."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import (
    Field,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from planner.io.numbers import Unit

_DIGITS: Final = {"type": "string", "pattern": "^[0-9][0-9_]*$"}
"""Also allows text of digits, because editors that follow YAML 1.2 take ``40_000_000`` for text."""

_MOST_SAMPLES: Final = 10**8

Name = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^\S(.*\S)?$")]
Positive = Annotated[
    int,
    Field(ge=1, le=2**53),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _DIGITS]}),
]
Count = Annotated[
    int,
    Field(ge=0, le=2**53),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, _DIGITS]}),
]


def _or_a_part(value: Any, whole: ValidatorFunctionWrapHandler) -> Any:
    """A decimal fraction as it is; anything else has to be a whole number."""
    is_part = isinstance(value, float) and 0 < value <= _MOST_SAMPLES and not value.is_integer()
    return value if is_part else whole(value)


Samples = Annotated[
    int,
    Field(ge=1, le=_MOST_SAMPLES),
    WrapValidator(_or_a_part),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": _MOST_SAMPLES},
                _DIGITS,
            ]
        }
    ),
]
"""Samples of a rank: a whole number, or a fraction where several ranks share samples."""
Width = Annotated[Positive, Field(le=10**6)]
PoolingFactor = Annotated[float, Field(ge=0, le=1e6)]
Ratio = Annotated[float, Field(gt=0, lt=1)]
Bytes = Annotated[float, Unit(dimension="bytes", example="6 GiB")]
Duration = Annotated[float, Unit(dimension="s", example="2 ms")]
