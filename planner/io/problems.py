"""From pydantic's errors to lines that say file, line, key, value and rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError
from pydantic.json_schema import WithJsonSchema

from costmodels.errors import CostModelError
from costmodels.units import parse_quantity
from planner.errors import InvalidInputError
from planner.io.documents import Document

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_LONGEST_VALUE = 60


class Strict(BaseModel):
    """Base of every schema: no unknown keys, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def quantity(dimension: str, example: str) -> Any:
    """A pydantic type for text with a unit, read as SI."""

    def read(value: object) -> float:
        return parse_quantity(value, dimension)

    schema = {"type": "string", "examples": [example], "description": f"{dimension}, with its unit"}
    return Annotated[
        float,
        BeforeValidator(read),
        PlainSerializer(lambda v: v),
        WithJsonSchema(schema),
    ]


def validate(schema: type[M], document: Document) -> M:
    """The document as ``schema``.

    Raises:
        InvalidInputError: one line per problem, all of them.
    """
    try:
        return schema.model_validate(document.value)
    except ValidationError as error:
        problems = [_line(document, item) for item in error.errors(include_url=False)]
        raise InvalidInputError(list(dict.fromkeys(problems))) from error


def _line(document: Document, item: Any) -> str:
    keys = tuple(k for k in item["loc"] if not _is_branch(k, document, item["loc"]))
    rule = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        rule = "unknown key; remove it or check its spelling"
    if item["type"] == "missing":
        return f"{document.where(keys[:-1])}: key {keys[-1]!r} is missing; add it"
    shown = repr(item.get("input"))
    if len(shown) > _LONGEST_VALUE:
        shown = shown[:_LONGEST_VALUE] + "..."
    return f"{document.where(keys)}: value {shown}: {rule}"


def _is_branch(key: str | int, document: Document, loc: tuple[str | int, ...]) -> bool:
    """Whether a location part names a branch of a union rather than a key of the file."""
    if isinstance(key, int):
        return False
    position = loc.index(key)
    return (*loc[:position], key) not in document.lines and position < len(loc) - 1


def collect(problems: list[str], where: str, build: Callable[[], T]) -> T | None:
    """Run ``build``; a broken domain rule becomes a line in ``problems``."""
    try:
        return build()
    except (CostModelError, InvalidInputError) as error:
        problems.extend(f"{where}: {line}" for line in str(error).splitlines())
        return None
