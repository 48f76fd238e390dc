"""The leaf keys of a JSON schema, and other legal values of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Keys = tuple[str | int, ...]
_QUANTITY = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)([^(]*)")
_FACTORS = (0.25, 4.0)


def leaves(schema: Json) -> dict[str, list[Json]]:
    """By path, such as ``tables[].distribution.kind``, what the schema allows there."""
    found: dict[str, list[Json]] = {}
    _collect(schema, schema.get("$defs", {}), "", found)
    return found


def _collect(part: Json, known: Json, path: str, found: dict[str, list[Json]]) -> None:
    part = _resolved(part, known)
    items = _resolved(part["items"], known) if isinstance(part.get("items"), dict) else {}
    branches = part.get("anyOf", part.get("oneOf"))
    if branches:
        for branch in branches:
            _collect(branch, known, path, found)
    elif "properties" in part:
        for key, inner in part["properties"].items():
            _collect(inner, known, f"{path}.{key}".lstrip("."), found)
    elif items.get("properties"):
        _collect(items, known, f"{path}[]", found)
    elif part.get("type") != "null":
        found.setdefault(path, []).append(part)


def _resolved(part: Json, known: Json) -> Json:
    while "$ref" in part:
        part = known[part["$ref"].rpartition("/")[2]]
    return part


def places(document: Any, leaf: str) -> Iterator[Keys]:
    """Key paths of a leaf in a document: one in each entry of its lists, there or not yet there."""
    first, _, rest = leaf.partition(".")
    key = first.removesuffix("[]")
    if not rest:
        yield (key,)
    elif key != first:
        for number, entry in enumerate(document.get(key, ())):
            yield from ((key, number, *keys) for keys in places(entry, rest))
    else:
        yield from ((key, *keys) for keys in places(document.get(key, {}), rest))


def value_at(document: Any, keys: Keys) -> Any:
    """The value there; None where the document gives none."""
    for key in keys:
        if isinstance(document, dict) and key not in document:
            return None
        document = document[key]
    return document


def with_value(document: Any, keys: Keys, value: object) -> Any:
    """A copy with another value there; sections on the way are begun."""
    if not keys:
        return value
    first, *rest = keys
    changed = document.copy()
    inner = document[first] if isinstance(first, int) else document.get(first, {})
    changed[first] = with_value(inner, tuple(rest), value)
    return changed


def other_values(allowed: list[Json], old: Any) -> list[Any]:
    """Values that the schema allows beside the old one: a quarter and four times, other words."""
    found: list[Any] = []
    for part in allowed:
        kind = part.get("type")
        old = part.get("default") if old is None else old
        if "enum" in part or "const" in part:
            found += part.get("enum", [part.get("const")])
        elif kind == "boolean":
            found.append(not old)
        elif kind in ("integer", "number") and not isinstance(old, str | list):
            low = part.get("minimum", part.get("exclusiveMinimum", 0))
            scaled = [max(low, factor * (old or 1)) for factor in _FACTORS]
            is_whole = kind == "integer" or isinstance(old, int)
            found += [max(low, int(v)) if is_whole else v for v in scaled]
        elif kind == "string" and "examples" in part:
            number, unit = _QUANTITY.match(str(old or part["examples"][0])).groups()  # type: ignore[union-attr]
            found += [f"{factor * float(number)!r} {unit}".strip() for factor in _FACTORS]
    return [value for value in found if value != old]
