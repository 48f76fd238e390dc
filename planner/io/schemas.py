"""What all schemas of files share: strict models, types with units and sources, and errors.

A schema says which keys a file has, and their units. Pydantic checks a document against it; what
is wrong becomes one line with file, line, key, value, rule and remedy.

A frozen dataclass gives the keys, types and defaults of sections that are nouns: :func:`schema_of`
makes the schema of a section from a noun, :func:`noun_of` the noun from values that a schema has
checked, and :func:`entry_of` the section that reads back as a noun.
"""

import difflib
import functools
import inspect
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic import BaseModel, Field

from costmodels.errors import CostModelError
from costmodels.estimates import Source
from costmodels.fields import Range
from costmodels.layers.base import AbstractLayer
from costmodels.units import DIMENSIONS, parse_quantity
from planner.errors import InvalidInputError, refuse
from planner.io.documents import FILE_KINDS, Document, Keys, read_words, refuse_other_kind, show

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


def quantity(
    dimension: str | None,
    example: str,
    low: float = 0.0,
    high: float = 1e30,
    *,
    is_whole: bool = False,
) -> Any:
    """The type of a number that is written as text with its unit and its source.

    In ``2.97 TB/s (measured, BabelStream triad)`` there are value, unit, kind of source, and
    reference. A number without parentheses is the user's own.

    Args:
        dimension: one of :data:`costmodels.units.DIMENSIONS`; None for a number without unit.
        example: shown by editors.
        low: least allowed value in SI units.
        high: largest allowed value in SI units.
        is_whole: whether the number has to be whole.
    """

    def read(written: object) -> Sourced:
        if isinstance(written, int | float):
            written = str(written)
        short = isinstance(written, str) and len(written) <= _MOST_CHARACTERS
        match = _SOURCED.fullmatch(str(written)) if short else None
        if match is None:
            refuse(
                "must be a number with its unit, then its source in parentheses if known, such as "
                f"'{example} (datasheet, H100)'"
            )
        text, kind = match["value"], match["source"] or Source.USER.value
        if kind not in list(Source):
            known = ", ".join(Source)
            refuse(f"source {kind!r} is not one of {known}; write '(source, reference)'")
        value = float(text) if dimension is None else parse_quantity(text, dimension)
        if not low <= value <= high:
            refuse(f"must be {low:g}..{high:g} in SI units, got {value:g}")
        if is_whole and not value.is_integer():
            refuse(f"must be a whole number, got {value:g}")
        value = int(value) if is_whole else value
        return Sourced(value, text, Source(kind), match["reference"] or "")

    units = "|".join(map(re.escape, DIMENSIONS[dimension])) if dimension else ""
    unit = f"({units})\\s*" if units else ""
    sourced = f"{example} (datasheet, where it is from)"
    told = {"type": "string", "pattern": f"{_DIGITS}\\s*{unit}(\\(|$)", "examples": [sourced]}
    schema = told if units else {"anyOf": [told, {"type": "number"}]}
    return Annotated[Sourced, pydantic.PlainValidator(read), pydantic.WithJsonSchema(schema)]


def _digits(number: dict[str, Any]) -> pydantic.WithJsonSchema:
    """Also allows text of digits: editors that follow YAML 1.2 take ``40_000_000`` for text."""
    return pydantic.WithJsonSchema(
        {"anyOf": [number, {"type": "string", "pattern": "^[0-9][0-9_]*$"}]}
    )


Name = Annotated[
    str, pydantic.StringConstraints(min_length=1, max_length=500, pattern=r"^\S(.*\S)?$")
]
Positive = Annotated[int, Field(ge=1, le=2**53), _digits({"type": "integer", "minimum": 1})]
Count = Annotated[int, Field(ge=0, le=2**53), _digits({"type": "integer", "minimum": 0})]


Samples = Annotated[
    float, Field(gt=0, le=10**8), _digits({"type": "number", "exclusiveMinimum": 0})
]
"""Samples of a rank: a whole number, or a fraction where several ranks share samples."""
Amount = Annotated[float, Field(ge=0, le=2**53)]
PoolingFactor = Annotated[float, Field(ge=0, le=1e6)]
Ratio = Annotated[float, Field(gt=0, lt=1)]
Bytes: Any = quantity("bytes", "6 GiB")
Duration: Any = quantity("s", "2 ms")


M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_LONGEST_RULE: Final = 400
_MOST_PROBLEMS: Final = 100
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)
"""The entry of a field in a docstring."""


def _described(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Give the keys in a JSON Schema what docstrings of the schema and its noun say of them."""
    told = [m.__doc__ or "" for m in (*reversed(model.__mro__), _NOUNS.get(model, model))]
    keys = {to: field for field, to in _KEYS.get(model, {}).items()}
    texts = dict(match for doc in told for match in _ATTRIBUTE.findall(inspect.cleandoc(doc)))
    if "description" in schema:
        schema["description"] = schema["description"].partition("\n\nAttributes:")[0]
    for key, part in schema.get("properties", {}).items():
        if found := texts.get(key) or texts.get(keys.get(key, key)):
            part.setdefault("description", " ".join(found.split()))


class Loose(BaseModel):
    """The base of schemas for files that other programs write too: unknown keys are left alone."""

    model_config = pydantic.ConfigDict(
        defer_build=True,
        extra="ignore",
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        json_schema_extra=_described,
    )


class Lax(Loose):
    """The base of schemas for values that are all texts, such as flags and cells of tables."""

    model_config = pydantic.ConfigDict(strict=False)


class Strict(Loose):
    """The base of our schemas: unknown keys are refused, and values are not converted."""

    model_config = pydantic.ConfigDict(extra="forbid")


def row_schema(title: str = "Row", base: type[Loose] = Loose, /, **keys: Any) -> type[Loose]:
    """The schema of values that need these keys, unless they come with a default."""
    kinds: dict[str, Any] = {k: v if isinstance(v, tuple) else (v, ...) for k, v in keys.items()}
    return pydantic.create_model(title, __base__=base, **kinds)


_NUMBERS: Final = re.compile(r"(int|float) (>?)([-\d.e]+)\.\.([\d.e]*)")
_LISTED: Final = re.compile(r"(.+)\[(\d*)(\.\.)?(\d*)\]")


def schemas_of(
    words: Mapping[str, Any], base: type[Loose] = Loose, /, **kinds: Any
) -> dict[str, Any]:
    """The schemas of files of another program, by their names, from tables of their keys.

    A key has the kind of its value: ``any``, ``bool``, ``text``, a range of numbers such as
    ``int 1..1000`` or ``float >0..``, a list of words of which one is meant, or the name of a kind
    or of a schema above. Behind it, ``[]`` means a list of such values, ``[26]`` and ``[1..100]``
    one of this length, and `` by ,`` that a text holds them with commas between. `` | `` is between
    kinds, and a key that may be ``none`` may be missing.
    A mapping with ``kind``, the ``default`` and the paths that a value may be ``at`` says more.
    Attributes have the names of keys, without dashes around them and with ``_`` for those inside.

    Args:
        words: a file of ``configs/imports``, with tables under ``keys``; ``kinds`` has names of its
            own for kinds.
        base: the base of the schemas.
        kinds: further kinds by their names.
    """
    known: dict[str, Any] = {"any": Any, "none": None, "bool": bool, "text": str, **kinds}
    known |= {name: _kind(told, known) for name, told in words.get("kinds", {}).items()}
    made: dict[str, Any] = {}
    for name, keys in words["keys"].items():
        fields = {key.strip("-_").replace("-", "_"): _field(key, keys[key], known) for key in keys}
        made[name] = known[name] = row_schema(name, base, **fields)
    return made


def _field(key: str, told: Any, known: Mapping[str, Any]) -> tuple[Any, Any]:
    """The type of a key, and its default with the places where it may be."""
    entry = told if isinstance(told, dict) else {"kind": told}
    default = entry.get("default", None if str(entry["kind"]).endswith(" | none") else ...)
    return _kind(entry["kind"], known), at(entry.get("at", key), default)


def _kind(told: Any, known: Mapping[str, Any]) -> Any:
    """The type of what a table of keys says."""
    if isinstance(told, list):
        return Literal[tuple(told)]
    if " | " in told:
        return functools.reduce(operator.or_, [_kind(t, known) for t in told.split(" | ")])
    if " by " in told:
        items, _, mark = told.partition(" by ")
        return Annotated[_kind(items, known), pydantic.BeforeValidator(lambda t: t.split(mark))]
    if numbers := _NUMBERS.fullmatch(told):
        number = int if numbers[1] == "int" else float
        low, high = (number(float(text)) if text else math.inf for text in numbers.groups()[2:])
        return _within(number, Range(low, high, bool(numbers[2])))
    if listed := _LISTED.fullmatch(told):
        least, most = (int(text) if text else None for text in (listed[2], listed[4]))
        most = most if listed[3] else least
        several: Any = list[_kind(listed[1], known)]  # type: ignore[misc]
        return Annotated[several, Field(min_length=least, max_length=most)]
    return known[told]


def at(paths: str, default: Any = None) -> Any:
    """A field that is at one of some paths of keys, such as ``batch.B``."""
    keys = [pydantic.AliasPath(*path.split(".")) for path in paths.split()]
    return Field(default=default, validation_alias=pydantic.AliasChoices(*keys))


def validate(schema: type[M], document: Document) -> M:
    """The values of a document as a ``schema``.

    Raises:
        InvalidInputError: the document breaks rules; there is one line for each of them.
    """
    try:
        return schema.model_validate(document.value)
    except pydantic.ValidationError as error:
        if schema.__name__ in FILE_KINDS:
            refuse_other_kind(document.path, document.value, FILE_KINDS[schema.__name__])
        found = [(_keys(document.value, e), e) for e in error.errors(include_url=False)]
        # Pydantic reports an error for each allowed type. If the value has one of the types, only
        # the errors for this type tell users something.
        typed = {keys for keys, item in found if not item["type"].endswith("_type")}
        told = [f for f in found if f[0] not in typed or not f[1]["type"].endswith("_type")]
        problems = list(dict.fromkeys(_line(document, schema, *one) for one in told))
        raise InvalidInputError(shortened(problems, document.path, _MOST_PROBLEMS)) from error


def shortened(problems: list[str], path: Path, most: int) -> list[str]:
    """The first problems of a file, and how many more there are."""
    rest = len(problems) - most
    return problems if rest <= 0 else [*problems[:most], f"{path}: and {rest} more"]


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
        file = f"{where.partition(':')[0]}:"
        found = str(error).splitlines()
        lines = [line if line.startswith(file) else f"{where}: {line}" for line in found]
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


def _line(document: Document, schema: type[BaseModel], keys: Keys, item: Any) -> str:
    kind, value = item["type"], item["input"]
    if kind in ("missing", "union_tag_not_found"):
        *above, key = (*keys, "kind") if kind != "missing" else keys
        return f"{document.where((*above,))}: key {str(key)!r} is missing; add it"
    if kind == "union_tag_invalid":
        keys, value = (*keys, "kind"), item["ctx"]["tag"]
    rule = _rule(schema, str(keys[-1:] and keys[-1]), value, item)
    if len(rule) > _LONGEST_RULE:
        rule = f"{rule[:_LONGEST_RULE]}..."
    return f"{document.where(keys)}: value {show(value)}: {rule}"


def _keys(value: Any, item: Any) -> Keys:
    """The place of an error in the file: pydantic's, without the names of the allowed types."""
    keys: list[str | int] = []
    for position, part in enumerate(item["loc"]):
        is_missing = position == len(item["loc"]) - 1 and item["type"] == "missing"
        if (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            value = value[part]
        elif not is_missing:
            continue
        keys.append(part)
    return tuple(keys)


def _rule(schema: type[BaseModel], key: str, value: object, item: Any) -> str:
    context = item.get("ctx", {})
    kind = item["type"]
    if kind == "extra_forbidden":
        known = _known_keys(schema, item["loc"][:-1])
        return f"unknown key; {nearest(key, known)}known here: {', '.join(known)}"
    if kind in ("enum", "literal_error", "union_tag_invalid"):
        listed = context.get("expected", context.get("expected_tags"))
        known = [word.strip("'") for word in listed.replace(" or ", ", ").split(", ")]
        return f"must be one of {', '.join(known)}; {nearest(str(value), known)}".strip("; ")
    if written := read_words("errors")["rules"].get(kind):
        return str(written.format(**context))
    told = str(item["msg"]).removeprefix("Value error, ")
    return told.replace("could not convert string to float:", "must be a number, got")


def _known_keys(schema: type[BaseModel], places: Keys) -> list[str]:
    """The keys of the schema that the place of an error leads to."""
    models = {"": schema}
    for part in places:
        first = next(iter(models.values()))
        if part in first.model_fields:
            models = dict(_models_in(first.model_fields[str(part)].annotation)) or models
        elif part in models:
            models = {"": models[str(part)]}
    model = next(iter(models.values()))
    return [*dict.fromkeys([*_KEYS.get(model, {}).values(), *model.model_fields])]


def _models_in(hint: object, tag: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The schemas in a type such as ``list[TableSchema]``, with their tags in a union."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield tag or hint.__name__, hint
    parts = get_args(hint)
    for part in parts:
        own = next((p.tag for p in parts if isinstance(p, pydantic.Tag)), tag)
        yield from _models_in(part, own)


# ------------------------------------------------------------------ nouns

_NOUNS: Final[dict[type[BaseModel], type]] = {}
"""The noun that each schema was made from."""
_KEYS: Final[dict[type, dict[str, str]]] = {}
"""For each schema of a noun, and for the noun as it is written, the fields and their keys."""
_PLAIN: Final[dict[Any, Any]] = {int: Count, float: Amount, str: Name, bool: bool}
_UNIT: Final = re.compile(r"_(bytes_per_s|bytes|per_s|s|ratio)$")
"""The unit at the end of a field's name."""
_NO_KEYS: Final[Mapping[str, Any]] = types.MappingProxyType({})


def schema_of(
    noun: type,
    name: str,
    *,
    base: type[BaseModel] = Strict,
    without: Collection[str] = (),
    keys: Mapping[str, str] = _NO_KEYS,
    units: Mapping[str, Any] = _NO_KEYS,
    **own: Any,
) -> type[BaseModel]:
    """The schema of a section whose keys are the fields of a noun.

    Args:
        noun: a frozen dataclass. Whole numbers, numbers and texts get the limits that every file
            has.
        name: of the schema.
        base: :class:`Strict`, or the schema of those keys that have limits of their own or are no
            fields; its docstring is that of the section. Otherwise the noun's first line is.
        without: fields that no file gives.
        keys: the keys of fields that a file calls otherwise.
        units: types of values that have their unit, by the unit at the end of a field's name; the
            key does not have it.
        own: the types of further keys, which may come with a default.
    """
    hints = typing.get_type_hints(noun, include_extras=True)
    found, kinds = dict[str, str](), dict[str, Any]()
    for field in fields(noun):
        if field.init and field.name not in without:
            unit = _UNIT.search(field.name) if units else None
            key = _UNIT.sub("", field.name) if unit else keys.get(field.name, field.name)
            found[field.name] = key
            if key not in base.model_fields:
                kind = own.pop(key, None)
                kind = kind or (units[unit[1]] if unit else _written(hints[field.name]))
                if field.default is not MISSING and not isinstance(kind, tuple):
                    kind = (kind | None, None) if unit else (kind, field.default)
                kinds[key] = kind
    kinds = {k: v if isinstance(v, tuple) else (v, ...) for k, v in {**kinds, **own}.items()}
    doc = str(noun.__doc__).partition("\n")[0] if base is Strict else base.__doc__
    schema = pydantic.create_model(name, __base__=base, __doc__=doc, **kinds)
    _NOUNS[schema], _KEYS[schema], _KEYS[noun] = noun, found, found
    return schema


def _within(number: Any, limits: Range) -> Any:
    """The type of a number that has to be in a range."""
    low, high = (limit if math.isfinite(limit) else None for limit in limits[:2])
    least: dict[str, Any] = {"gt" if limits.is_open else "ge": low}
    return Annotated[number, Field(le=high, **least)]


def _written(hint: Any) -> Any:
    """The type of a value in a file, for the type of a field."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        limits = parts[1] if isinstance(parts[1], Range) else Range()
        is_counted = parts[0] is int and limits.least >= 1
        return _within(Positive if is_counted else _written(parts[0]), limits)
    if kind in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_written, parts))
    if kind is tuple:
        return list[_written(parts[0])]  # type: ignore[misc]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Annotated[hint, Field(strict=False)]
    made = next((schema for schema, noun in _NOUNS.items() if noun is hint), hint)
    return hint if kind is Literal else _PLAIN.get(hint, made)


def noun_of(noun: Callable[..., T], values: BaseModel, **more: Any) -> T:
    """The noun that has the values of its keys in a section, and ``more``; None is the default.

    Raises:
        InvalidValueError: values contradict each other.
    """
    given = {f: getattr(values, k) for f, k in _shared(noun, type(values)) if f not in more}
    return noun(**{f: as_noun(value) for f, value in given.items() if value is not None}, **more)


@functools.cache
def _shared(noun: Any, schema: type[BaseModel]) -> tuple[tuple[str, str], ...]:
    keys = _KEYS.get(schema) or {field.name: field.name for field in fields(noun)}
    return tuple((field, key) for field, key in keys.items() if key in schema.model_fields)


def as_noun(value: Any, **more: Any) -> Any:
    """A value of a schema as a noun has it: tuples, numbers, and the nouns that sections are."""
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, list | tuple):
        return tuple(map(as_noun, value))
    if isinstance(value, BaseModel):
        return noun_of(_NOUNS[type(value)], value, **more)
    return value.value if isinstance(value, Sourced) else value


def entry_of(noun: Any, *, always: Collection[str] = ()) -> dict[str, Any]:
    """The section of a noun, without keys at their default.

    Args:
        noun: a dataclass; fields that its schema has not are left out.
        always: fields that are written at their default, too.
    """
    entry: dict[str, Any] = {}
    if isinstance(noun, AbstractLayer):
        entry["kind"] = type(noun).__module__.rpartition(".")[2]
    for field in fields(noun):
        value, keys = getattr(noun, field.name), _KEYS.get(type(noun), {field.name: field.name})
        if field.init and field.name in keys and (value != field.default or field.name in always):
            entry[keys[field.name]] = _plain(value)
    return entry


def _plain(value: Any) -> Any:
    """A value as files have it."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return entry_of(value) if is_dataclass(value) else value
