"""Turns pydantic's errors into lines with file, line, key, value, rule and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from costmodels.errors import CostModelError
from planner.errors import InvalidInputError
from planner.io.documents import Document
from planner.io.file_kinds import CONSTRAINTS, SYSTEM, WORKLOAD, refuse_other_kind
from planner.io.yaml_reader import Keys

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_LONGEST_VALUE: Final = 60
_LONGEST_RULE: Final = 400
_MOST_PROBLEMS: Final = 100

_RULES: Final = {
    "int_type": "must be a whole number, without quotes, point or exponent",
    "float_type": "must be a number, without quotes",
    "bool_type": "must be true or false",
    "string_type": "must be text; put quotes around it",
    "list_type": "must be a list, such as [a, b]",
    "dict_type": "must hold keys and values",
    "model_type": "must hold keys and values",
    "model_attributes_type": "must hold keys and values",
    "finite_number": "must be finite",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries, got {actual_length}",
    "too_long": "must have at most {max_length} entries, got {actual_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be one of {expected}",
}


class Strict(BaseModel):
    """The base of every schema: unknown keys are refused, and values are not converted."""

    model_config = ConfigDict(
        defer_build=True, extra="forbid", strict=True, allow_inf_nan=False, frozen=True
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the object itself: schemas never change, so that all entries share one default."""
        del memo
        return self


_KINDS = {"WorkloadSchema": WORKLOAD, "SystemSchema": SYSTEM, "ConstraintFileSchema": CONSTRAINTS}
"""The schemas of whole files, and the kinds of these files."""


def validate(schema: type[M], document: Document) -> M:
    """The values of a document as a ``schema``.

    Raises:
        InvalidInputError: the document breaks rules; there is one line for each of them.
    """
    try:
        return schema.model_validate(document.value)
    except ValidationError as error:
        if schema.__name__ in _KINDS:
            refuse_other_kind(document.path, document.value, _KINDS[schema.__name__])
        items = _telling(document, error.errors(include_url=False))
        found = [_line(document, schema, item) for item in items]
        problems = list(dict.fromkeys(found))
        if len(problems) > _MOST_PROBLEMS:
            rest = len(problems) - _MOST_PROBLEMS
            problems = [*problems[:_MOST_PROBLEMS], f"{document.path}: and {rest} more"]
        raise InvalidInputError(problems) from error


def nearest(word: str, known: list[str]) -> str:
    """``did you mean 'x'? `` if there is a similar known word; otherwise empty."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def show(value: object) -> str:
    """A value as messages quote it: its text, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def collect(problems: list[str], where: str, build: Callable[[], T]) -> T | None:
    """Run ``build``; if it raises because a rule is broken, add lines to ``problems``."""
    try:
        return build()
    except (CostModelError, InvalidInputError) as error:
        problems.extend(f"{where}: {line}" for line in str(error).splitlines())
        return None


def _telling(document: Document, items: Sequence[Any]) -> list[Any]:
    """The errors that tell users something, for keys that allow values of several types.

    Pydantic reports an error for each allowed type. If the value has one of the types, only the
    errors for this type are kept: where a number or a list is allowed, -1 is too small, and it is
    not worth saying that it is not a list.
    """
    places = [_keys(document, item) for item in items]
    typed = {
        keys for keys, item in zip(places, items, strict=True) if not item["type"].endswith("_type")
    }
    return [
        item
        for keys, item in zip(places, items, strict=True)
        if keys not in typed or not item["type"].endswith("_type")
    ]


def _line(document: Document, schema: type[BaseModel], item: Any) -> str:
    keys = _keys(document, item)
    if item["type"] == "missing":
        return f"{document.where(keys[:-1])}: key {str(keys[-1])!r} is missing; add it"
    rule = _rule(schema, keys, item)
    if len(rule) > _LONGEST_RULE:
        rule = f"{rule[:_LONGEST_RULE]}..."
    return f"{document.where(keys)}: value {show(item['input'])}: {rule}"


def _keys(document: Document, item: Any) -> Keys:
    """The place of an error in the file: pydantic's, without the names of the allowed types."""
    keys: list[str | int] = []
    value = document.value
    for position, part in enumerate(item["loc"]):
        last = position == len(item["loc"]) - 1
        if _holds(value, part):
            value = value[part]
        elif not (last and item["type"] == "missing"):
            continue
        keys.append(part)
    return tuple(keys)


def _holds(value: object, part: str | int) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _rule(schema: type[BaseModel], keys: Keys, item: Any) -> str:
    context = item.get("ctx", {})
    kind = item["type"]
    if kind == "extra_forbidden":
        known = _known_keys(schema, keys[:-1])
        hint = nearest(str(keys[-1]), known)
        return f"unknown key; {hint}known here: {', '.join(known)}"
    if kind == "enum":
        known = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return f"must be one of {', '.join(known)}; {nearest(str(item['input']), known)}".strip(
            "; "
        )
    if kind in _RULES:
        return _RULES[kind].format(**context)
    return str(item["msg"]).removeprefix("Value error, ")


def _known_keys(schema: type[BaseModel], keys: Keys) -> list[str]:
    """The keys of the schema that a key path leads to."""
    model = schema
    for key in keys:
        if isinstance(key, str) and key in model.model_fields:
            inner = _model_in(model.model_fields[key].annotation)
            model = inner or model
    return list(model.model_fields)


def _model_in(hint: object) -> type[BaseModel] | None:
    """The first schema in a type such as ``list[TableSchema]`` or ``LinkSchema | None``."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint
    for part in get_args(hint):
        found = _model_in(part)
        if found is not None:
            return found
    return None
