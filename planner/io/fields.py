"""Types of values that several kinds of files share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, StringConstraints, WithJsonSchema

from planner.io.numbers import Unit

_DIGITS: Final = {"type": "string", "pattern": "^[0-9][0-9_]*$"}
"""Also allows text of digits, because editors that follow YAML 1.2 take ``40_000_000`` for text."""

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
Samples = Annotated[
    float,
    Field(gt=0, le=10**8),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 10**8}, _DIGITS]}
    ),
]
Width = Annotated[Positive, Field(le=10**6)]
PoolingFactor = Annotated[float, Field(ge=0, le=1e6)]
Ratio = Annotated[float, Field(gt=0, lt=1)]
Bytes = Annotated[float, Unit(dimension="bytes", example="6 GiB")]
Duration = Annotated[float, Unit(dimension="s", example="2 ms")]
