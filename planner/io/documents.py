"""Read YAML and JSON strictly: no duplicate keys, no tricks, and every key knows its line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from planner.errors import InvalidInputError

_LARGEST_BYTES = 64 * 1024**2
_MOST_NODES = 2_000_000
_UNDERSCORED = re.compile(r"^[+-]?[1-9][0-9]*(_[0-9]{3})+$")

Path_ = tuple[str | int, ...]
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Document:
    """Plain values of a file, and the line of each key path."""

    path: Path
    value: Any
    lines: dict[Path_, int]

    def where(self, keys: Path_) -> str:
        """``file:line: tables[3].rows`` of a key path, as far as it exists."""
        known = keys
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known)
        place = f"{self.path}:{line}" if line else str(self.path)
        return f"{place}: {dotted(keys)}" if keys else place


def dotted(keys: Path_) -> str:
    """``tables[3].rows``."""
    text = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)
    return text.removeprefix(".")


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InvalidInputError: missing, a folder, too large, unreadable or not UTF-8.
    """
    try:
        if path.is_dir():
            message = f"{path}: is a folder; name a file in it"
            raise InvalidInputError(message)
        size = path.stat().st_size
        if size > _LARGEST_BYTES:
            message = f"{path}: {size} bytes; files may have {_LARGEST_BYTES} at most"
            raise InvalidInputError(message)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise InvalidInputError(message) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"{path}: cannot be read: {reason}"
        raise InvalidInputError(message) from error


def read_yaml(path: Path) -> Document:
    """A YAML file that holds one mapping.

    Raises:
        InvalidInputError: not well formed, duplicate keys, more than one document, or too large once
            its aliases are written out.
    """
    text = read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InvalidInputError(_syntax_problem(path, error)) from error
    except (ValueError, RecursionError) as error:
        message = f"{path}: not well-formed YAML: {error}"
        raise InvalidInputError(message) from error
    if not isinstance(node, yaml.MappingNode):
        message = f"{path}: must hold keys and values at the top, such as 'tables:'"
        raise InvalidInputError(message)
    reader = _Reader(path)
    try:
        value = reader.read(node, ())
    except RecursionError as error:
        message = f"{path}: nested too deeply"
        raise InvalidInputError(message) from error
    if reader.problems:
        raise InvalidInputError(reader.problems)
    return Document(path, value, reader.lines)


def _syntax_problem(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or str(error)
    return f"{path}{line}: not well-formed YAML: {' '.join(str(problem).split())}"


class _Reader:
    """Turns nodes into plain values; collects lines and problems."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Path_, int] = {}
        self.problems: list[str] = []
        self.num_nodes = 0

    def read(self, node: yaml.Node, keys: Path_) -> Any:
        self.num_nodes += 1
        if self.num_nodes > _MOST_NODES:
            message = f"{self.path}: more than {_MOST_NODES} values once aliases are written out"
            raise InvalidInputError(message)
        self.lines.setdefault(keys, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*keys, i)) for i, child in enumerate(node.value)]
        return self._scalar(node, keys)

    def _mapping(self, node: yaml.MappingNode, keys: Path_) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE or not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"{self.path}:{line}: keys must be plain text")
                continue
            key = str(key_node.value)
            if key in values:
                self.problems.append(f"{self.path}:{line}: {dotted((*keys, key))}: key given twice")
            self.lines[*keys, key] = line
            values[key] = self.read(value_node, (*keys, key))
        return values

    def _scalar(self, node: yaml.Node, keys: Path_) -> Any:
        if _UNDERSCORED.match(str(node.value)) and node.tag.endswith((":int", ":str")):
            return int(str(node.value).replace("_", ""))
        if node.tag.endswith((":timestamp", ":binary")) or "tag:yaml.org" not in node.tag:
            if node.tag.endswith(":timestamp"):
                return str(node.value)
            line = node.start_mark.line + 1
            self.problems.append(
                f"{self.path}:{line}: {dotted(keys)}: tag {node.tag} is not allowed"
            )
            return None
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            line = node.start_mark.line + 1
            self.problems.append(f"{self.path}:{line}: {dotted(keys)}: {error}")
            return None


def read_json(path: Path) -> Any:
    """A JSON file, without NaN, infinity or duplicate keys.

    Raises:
        InvalidInputError: not well formed.
    """
    text = read_text(path)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        message = f"{path}:{error.lineno}: not well-formed JSON: {error.msg}"
        raise InvalidInputError(message) from error
    except (ValueError, RecursionError) as error:
        message = f"{path}: not well-formed JSON: {error}"
        raise InvalidInputError(message) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            message = f"key {key!r} given twice"
            raise ValueError(message)
        values[key] = value
    return values


def _refuse_constant(name: str) -> float:
    message = f"{name} is not a number"
    raise ValueError(message)
