"""Reads the entries under ``dense.layers``: each names a kind, which decides its other keys.

A kind is a file in ``costmodels/layers``. The fields of its class are the keys, so that a new kind
needs no change here.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

import costmodels.layers as kinds
from costmodels import discovery
from costmodels.layers.base import AbstractLayer
from planner.io.documents import Document
from planner.io.problems import collect, nearest, show
from planner.io.yaml_reader import Keys

KINDS: Final = discovery.names(kinds)
_LONGEST_NAME: Final = 500


def layers_of(
    entries: list[dict[str, Any]], document: Document, problems: list[str]
) -> tuple[AbstractLayer, ...]:
    """The layers of some entries; broken rules become lines in ``problems``."""
    found = [
        _layer(entry, document, ("dense", "layers", index), problems)
        for index, entry in enumerate(entries)
    ]
    return tuple(layer for layer in found if layer is not None)


def entry_of(layer: AbstractLayer) -> dict[str, Any]:
    """The entry that :func:`layers_of` reads back as ``layer``, without keys at their default."""
    values: dict[str, Any] = {"kind": type(layer).__module__.rpartition(".")[2]}
    for field in dataclasses.fields(layer):
        value = getattr(layer, field.name)
        if value != field.default:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def _layer(
    entry: dict[str, Any], document: Document, keys: Keys, problems: list[str]
) -> AbstractLayer | None:
    kind = entry.get("kind")
    if kind is None:
        problems.append(f"{document.where(keys)}: key 'kind' is missing; add it")
        return None
    if not isinstance(kind, str) or kind not in KINDS:
        hint = nearest(str(kind), list(KINDS))
        where = document.where((*keys, "kind"))
        problems.append(f"{where}: value {show(kind)}: {hint}must be one of {', '.join(KINDS)}")
        return None
    made = discovery.load(kinds, kind, AbstractLayer)
    cls = typing.cast("type[AbstractLayer]", made)
    before = len(problems)
    values = _values(cls, entry, document, keys, problems)
    if len(problems) > before:
        return None
    return collect(problems, document.where(keys), partial(cls, **values))


def _values(
    cls: type[AbstractLayer],
    entry: Mapping[str, Any],
    document: Document,
    keys: Keys,
    problems: list[str],
) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    known = ["kind", *fields]
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "kind":
            continue
        where = document.where((*keys, key))
        if key not in fields:
            problems.append(
                f"{where}: value {show(value)}: unknown key; {nearest(str(key), known)}known here: "
                f"{', '.join(known)}"
            )
            continue
        rule = _broken(hints[key], value)
        if rule:
            problems.append(f"{where}: value {show(value)}: {rule}")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    for name, field in fields.items():
        if name not in entry and field.default is dataclasses.MISSING:
            problems.append(f"{document.where(keys)}: key {name!r} is missing; add it")
    return values


def _broken(hint: Any, value: object) -> str:
    """The rule of a field's type that a value breaks; empty if it breaks none."""
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "" if value in choices else f"must be one of {', '.join(map(str, choices))}"
    if typing.get_origin(hint) is tuple:
        good = isinstance(value, list) and all(_is_whole(item) for item in value)
        return "" if good else "must be a list of whole numbers, such as [256, 64]"
    if hint in (bool, bool | None):
        return "" if isinstance(value, bool) else "must be true or false"
    if hint is str:
        good = isinstance(value, str) and 0 < len(value.strip()) <= _LONGEST_NAME
        return "" if good else f"must be text of 1 to {_LONGEST_NAME} characters"
    return "" if _is_whole(value) else "must be a whole number"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
