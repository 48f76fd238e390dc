"""Sections of files that are nouns: a frozen dataclass gives their keys, types and defaults.

:func:`schema_of` makes the schema of a section from a noun, :func:`noun_of` the noun from values
that a schema has checked, and :func:`entry_of` the section that reads back as a noun.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field, create_model

from costmodels.layers.base import AbstractLayer
from planner.io.schemas import Amount, Count, Name, Strict

T = TypeVar("T")

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
