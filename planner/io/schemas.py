"""What all schemas of files share: strict models, types with units and sources, and errors.

A schema says which keys a file has, and their units. Pydantic checks a document against it; what
is wrong becomes one line with file, line, key, value, rule and remedy.

A frozen dataclass gives the keys, types and defaults of sections that are nouns: :func:`schema_of`
makes the schema of a section from a noun, :func:`noun_of` the noun from values that a schema has
checked, and :func:`entry_of` the section that reads back as a noun.
"""

from __future__ import annotations

import difflib
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
)
from pydantic_core import CoreSchema, core_schema

from costmodels.errors import CostModelError
from costmodels.estimates import Source
from costmodels.layers.base import AbstractLayer
from costmodels.units import DIMENSIONS, parse_quantity
from planner.errors import InvalidInputError, refuse
from planner.io.documents import (
    CONSTRAINTS,
    SYSTEM,
    WORKLOAD,
    Document,
    Keys,
    refuse_other_kind,
    show,
)

_SOURCED: Final = re.compile(
    r"\s*(?P<value>[^()]+?)\s*"
    r"(?:\(\s*(?P<source>[A-Za-z]+)\s*(?:[,:]\s*(?P<reference>.+?))?\s*\))?\s*",
    re.DOTALL,
)
_MOST_CHARACTERS: Final = 1000
_DIGITS: Final = r"^\s*[+-]?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]+)?"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number in SI units, its text in the file, and its source."""

    value: float
    text: str
    source: Source
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Marks a number that is written as text: ``Annotated[float, Quantity(...)]``.

    In ``2.97 TB/s (measured, BabelStream triad)`` there are value, unit, kind of source, and
    reference. A number without parentheses is the user's own.

    Args:
        dimension: one of :data:`costmodels.units.DIMENSIONS`; None for a number without unit.
        example: shown by editors.
        low: least allowed value in SI units.
        high: largest allowed value in SI units.
        is_whole: whether the number has to be whole.
        is_sourced: whether a source may follow, so that the value is a :class:`Sourced`; else it is
            a float.
    """

    dimension: str | None
    example: str
    low: float = 0.0
    high: float = 1e30
    is_whole: bool = False
    is_sourced: bool = True

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """A validator that turns text into a number in SI units."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON Schema: text with a number and its unit; or a number, if there is no unit."""
        end = "(\\(|$)" if self.is_sourced else "$"
        pattern, note = f"{_DIGITS}\\s*{end}", ""
        if self.dimension is not None:
            units = "|".join(re.escape(unit) for unit in DIMENSIONS[self.dimension])
            pattern = f"{_DIGITS}\\s*({units})\\s*{end}"
        if self.is_sourced:
            note = " (datasheet, where it is from)"
        text = {"type": "string", "pattern": pattern, "examples": [f"{self.example}{note}"]}
        return text if self.dimension is not None else {"anyOf": [text, {"type": "number"}]}

    def _read(self, written: object) -> Sourced | float:
        if not self.is_sourced and self.dimension is not None:
            return parse_quantity(written, self.dimension)
        if self.dimension is None and isinstance(written, int | float):
            written = str(written)
        text, source, reference = split_source(written, self.example)
        value = _finite(text) if self.dimension is None else parse_quantity(text, self.dimension)
        if not self.low <= value <= self.high:
            refuse(f"must be {self.low:g}..{self.high:g} in SI units, got {value:g}")
        if self.is_whole and not value.is_integer():
            refuse(f"must be a whole number, got {value:g}")
        return Sourced(int(value) if self.is_whole else value, text, source, reference)


def split_source(written: object, example: str) -> tuple[str, Source, str]:
    """Split text such as ``"80 GiB (datasheet, H100)"`` into value, source and reference.

    Raises:
        ValueError: it is not such a text, or its source is not a known kind.
    """
    short = isinstance(written, str) and len(written) <= _MOST_CHARACTERS
    match = _SOURCED.fullmatch(str(written)) if short else None
    if match is None:
        refuse(
            "must be a number with its unit, then its source in parentheses if known, such as "
            f"'{example} (datasheet, H100)'"
        )
    kind = match["source"] or Source.USER.value
    if kind not in list(Source):
        refuse(f"source {kind!r} is not one of {', '.join(Source)}; write '(source, reference)'")
    return match["value"], Source(kind), match["reference"] or ""


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        refuse(f"{text!r} is not a number")
    if not math.isfinite(value):
        refuse(f"{text!r} must be finite")
    return value


_DIGITS_TEXT: Final = {"type": "string", "pattern": "^[0-9][0-9_]*$"}
"""Also allows text of digits, because editors that follow YAML 1.2 take ``40_000_000`` for text."""

_MOST_SAMPLES: Final = 10**8

Name = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^\S(.*\S)?$")]
Positive = Annotated[
    int,
    Field(ge=1, le=2**53),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _DIGITS_TEXT]}),
]
Count = Annotated[
    int,
    Field(ge=0, le=2**53),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, _DIGITS_TEXT]}),
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
                _DIGITS_TEXT,
            ]
        }
    ),
]
"""Samples of a rank: a whole number, or a fraction where several ranks share samples."""
Width = Annotated[Positive, Field(le=10**6)]
Amount = Annotated[float, Field(ge=0, le=2**53)]
PoolingFactor = Annotated[float, Field(ge=0, le=1e6)]
Ratio = Annotated[float, Field(gt=0, lt=1)]
Bytes = Annotated[float, Quantity(dimension="bytes", example="6 GiB", is_sourced=False)]
Duration = Annotated[float, Quantity(dimension="s", example="2 ms", is_sourced=False)]


M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_LONGEST_RULE: Final = 400
_MOST_PROBLEMS: Final = 100

_RULES: Final = {
    "int_type": "must be a whole number, without quotes, point or exponent",
    "int_parsing": "must be a whole number",
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
}


class Strict(BaseModel):
    """The base of every schema: unknown keys are refused, and values are not converted."""

    model_config = ConfigDict(
        defer_build=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        use_attribute_docstrings=True,
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the object itself: schemas never change, so that all entries share one default."""
        del memo
        return self


class Loose(BaseModel):
    """The base of schemas for files that other programs write too: unknown keys are left alone."""

    model_config = ConfigDict(
        defer_build=True, extra="ignore", strict=True, allow_inf_nan=False, frozen=True
    )


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


def present(value: T | None, document: Document, keys: Keys) -> T:
    """The value of a key that other values make necessary.

    Raises:
        InvalidInputError: it is missing.
    """
    if value is None:
        refuse(f"{document.where(keys[:-1])}: key {str(keys[-1])!r} is missing; add it")
    return value


def each(value: Any, count: int, document: Document, keys: Keys) -> list[Any]:
    """``count`` values: those of a list, or a single one for all.

    Raises:
        InvalidInputError: the list has another length.
    """
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        document.refuse(keys, value, f"must have {count} entries, got {len(value)}")
    return value


def made(where: str, build: Callable[[], T]) -> T:
    """What ``build`` returns.

    Raises:
        InvalidInputError: a rule is broken; the message begins with the place.
    """
    try:
        return build()
    except (CostModelError, InvalidInputError) as error:
        found = str(error).splitlines()
        lines = [line if line.startswith(where) else f"{where}: {line}" for line in found]
        raise InvalidInputError(lines) from error


def nearest(word: str, known: list[str]) -> str:
    """``did you mean 'x'? `` if there is a similar known word; otherwise empty."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def collect(problems: list[str], where: str, build: Callable[[], T]) -> T | None:
    """As :func:`made`; if a rule is broken, lines are added to ``problems`` instead."""
    try:
        return made(where, build)
    except InvalidInputError as error:
        problems.extend(error.problems)
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
    if kind in ("enum", "literal_error"):
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


# ------------------------------------------------------------------ nouns

_NOUNS: Final[dict[type[BaseModel], type]] = {}
"""The noun that each schema was made from."""
_PLAIN: Final[dict[Any, Any]] = {int: Count, float: Amount, str: Name, bool: bool}


def schema_of(
    noun: type, name: str, doc: str, *, without: Collection[str] = (), **own: Any
) -> type[BaseModel]:
    """The schema of a section whose keys are the fields of a noun.

    Args:
        noun: a frozen dataclass. Whole numbers, numbers and texts get the limits that every file
            has.
        name: of the schema.
        doc: what the section is, for editors.
        without: fields that no file gives.
        own: the types of keys with limits of their own, and of keys beside the fields, which may
            come with a default.
    """
    hints, keys = typing.get_type_hints(noun), dict[str, Any]()
    for field in fields(noun):
        if field.name not in without:
            kind = own.pop(field.name, None) or _written(hints[field.name])
            keys[field.name] = (kind, ... if field.default is MISSING else field.default)
    keys |= {k: kind if isinstance(kind, tuple) else (kind, ...) for k, kind in own.items()}
    schema = create_model(name, __base__=Strict, __doc__=doc, **keys)
    _NOUNS[schema] = noun
    return schema


def _written(hint: Any) -> Any:
    """The type of a value in a file, for the type of a field."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_written, parts))
    if kind is tuple:
        return list[_written(parts[0])]  # type: ignore[misc]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Annotated[hint, Field(strict=False)]
    made = next((schema for schema, noun in _NOUNS.items() if noun is hint), hint)
    return hint if kind is Literal else _PLAIN.get(hint, made)


def noun_of(noun: Callable[..., T], values: BaseModel, **more: Any) -> T:
    """The noun that has the values of fields of the same names, and ``more``.

    Raises:
        InvalidValueError: values contradict each other.
    """
    names = _shared(noun, type(values)) - more.keys()
    return noun(**{name: as_noun(getattr(values, name)) for name in names}, **more)


@functools.cache
def _shared(noun: Any, schema: type[BaseModel]) -> frozenset[str]:
    return frozenset({field.name for field in fields(noun)} & schema.model_fields.keys())


def as_noun(value: Any) -> Any:
    """A value of a schema as a noun has it: lists as tuples, sections as the nouns they are."""
    if isinstance(value, list):
        return tuple(map(as_noun, value))
    if isinstance(value, BaseModel):
        return noun_of(_NOUNS[type(value)], value)
    return value


def entry_of(
    noun: Any, keys: Mapping[str, str] | None = None, *, always: Collection[str] = ()
) -> dict[str, Any]:
    """The section of a noun, without keys at their default.

    Args:
        noun: a dataclass.
        keys: the keys of fields that a file calls otherwise.
        always: fields that are written at their default, too.
    """
    entry: dict[str, Any] = {}
    if isinstance(noun, AbstractLayer):
        entry["kind"] = type(noun).__module__.rpartition(".")[2]
    for field in fields(noun):
        value = getattr(noun, field.name)
        if field.init and (value != field.default or field.name in always):
            entry[(keys or {}).get(field.name, field.name)] = _plain(value)
    return entry


def _plain(value: Any) -> Any:
    """A value as files have it."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return entry_of(value) if is_dataclass(value) else value
