"""Changes to a file's values from the command line: ``--set tables.3.embedding_dim=64``."""

from __future__ import annotations

import itertools
from typing import Any

from planner.errors import InvalidInputError
from planner.io.documents import Document
from planner.io.yaml_reader import Keys, parse_yaml


def override(document: Document, key: str, text: str) -> None:
    """Set one value before validation.

    The path must lead through what exists; sections that a file left out may be begun.

    Args:
        document: changed in place.
        key: ``tables.3.embedding_dim``.
        text: the value as YAML.

    Raises:
        InvalidInputError: the path leads nowhere or the text is not a YAML value.
    """
    where = f"--set {key}={text}"
    value, _ = parse_yaml(text, where)
    keys: Keys = tuple(int(p) if p.isdecimal() else p for p in key.split("."))
    try:
        holder = document.value
        for part, following in itertools.pairwise(keys):
            if isinstance(holder, dict) and part not in holder and isinstance(following, str):
                holder[part] = {}
            holder = _own(holder, part)
        _put(holder, keys[-1], value)
    except (KeyError, IndexError, TypeError) as error:
        msg = f"{where}: the file has no such key; give a path such as training.pipeline"
        raise InvalidInputError(msg) from error
    document.origins[keys] = where


def _own(holder: Any, key: str | int) -> Any:
    """What is at ``key``, replaced by a copy: an alias elsewhere keeps the old value."""
    inner = holder[key]
    holder[key] = inner.copy() if isinstance(inner, dict | list) else inner
    return holder[key]


def _put(holder: Any, key: str | int, value: object) -> None:
    """Set an existing entry of a list, or any key of a mapping.

    Raises:
        IndexError: the list has no such entry.
        TypeError: the holder has no entries of this kind.
    """
    fits = isinstance(holder, dict if isinstance(key, str) else list)
    if not fits:
        msg = f"no place for {key!r}"
        raise TypeError(msg)
    holder[key] = value
