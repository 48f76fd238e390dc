"""Changes values of a file from the command line: ``--set tables.3.embedding_dim=64``."""

from __future__ import annotations

import itertools
from typing import Any

from planner.errors import InvalidInputError
from planner.io.documents import Document
from planner.io.yaml_reader import Keys, parse_yaml


def override(document: Document, key: str, text: str) -> None:
    """Set one value of a document, before it is validated.

    The path has to lead through values that exist, but can begin a section that the file has not.

    Args:
        document: the document, which is changed.
        key: a key path, such as ``tables.3.embedding_dim``.
        text: the value as YAML.

    Raises:
        InvalidInputError: there is nothing at the path, or the text is not a YAML value.
    """
    where = f"--set {key}={text}"
    value, _ = parse_yaml(text, where)
    try:
        keys: Keys = tuple(int(p) if p.isdecimal() else p for p in key.split("."))
        holder = document.value
        for part, following in itertools.pairwise(keys):
            if isinstance(holder, dict) and part not in holder and isinstance(following, str):
                holder[part] = {}
            holder = _own(holder, part)
        _put(holder, keys[-1], value)
    except (LookupError, TypeError, ValueError) as error:
        msg = f"{where}: the file has no such key; give a path such as training.pipeline"
        raise InvalidInputError(msg) from error
    document.origins[keys] = where


def _own(holder: Any, key: str | int) -> Any:
    """Replace the value at ``key`` by a copy and return it, so that aliases keep the old value."""
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
