"""Which files are read because another file names them: statistics, a base, curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from planner.errors import InvalidInputError
from planner.io.documents import read_json, read_yaml
from planner.io.yaml_reader import parse_yaml


def with_named_files(paths: Iterable[Path]) -> set[Path]:
    """The files among the paths, and every file beside one of them that it names, also indirectly.

    A text in a file counts as the name of a file if there is such a file. What is neither YAML nor
    JSON names none.

    Args:
        paths: files, or anything else, such as names of shipped systems.

    Returns:
        Paths without symbolic links.
    """
    found: set[Path] = set()
    left = [path.resolve() for path in paths if is_file(path)]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            beside = (path.parent / name for name in _texts(_content(path)))
            left += [other.resolve() for other in beside if is_file(other)]
    return found


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _content(path: Path) -> Any:
    try:
        return read_json(path) if path.suffix.lower() == ".json" else read_yaml(path).value
    except InvalidInputError:
        return None


def texts_of_yaml(text: str) -> list[str]:
    """All texts in a value that is written in YAML, but its keys; none if it is not well formed."""
    try:
        return list(_texts(parse_yaml(text, "")[0]))
    except InvalidInputError:
        return []


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value but its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
