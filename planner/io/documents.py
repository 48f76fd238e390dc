"""Reads YAML and JSON strictly: no duplicate keys, and the line of every key is known."""

from __future__ import annotations

import codecs
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from costmodels.units import MIB, format_bytes
from planner.errors import InvalidInputError
from planner.io.yaml_reader import Keys, dotted, parse_yaml

MAX_BYTES: Final = 64 * MIB
"""Larger files are refused; workloads and plans are far smaller."""

_DEPTH_ERROR: Final = "values are nested too deeply"


@dataclass(frozen=True, slots=True)
class Document:
    """The plain values of a file, and the line of each key path.

    ``origins`` says where values come from that are not from the file, such as a flag.
    """

    path: Path
    value: Any
    lines: dict[Keys, int] = field(repr=False)
    origins: dict[Keys, str] = field(repr=False, default_factory=dict)

    def where(self, keys: Keys) -> str:
        """A key path in words: ``file:line: tables[3].name``.

        If the path has no line, it is the line of the longest part of the path that has one.
        """
        known = keys
        while known and known not in self.lines and known not in self.origins:
            known = known[:-1]
        line = self.lines.get(known)
        place = f"{self.path}:{line}" if line else str(self.path)
        place = self.origins.get(known, place)
        return f"{place}: {dotted(keys)}" if keys else place


_PIPED: Final[dict[tuple[int, int], bytes]] = {}
"""The bytes that were read from each pipe, by its device and inode."""


def _bytes_of(path: Path) -> bytes:
    """The bytes of a file; of a pipe that is empty by now, those of the first time.

    To open a named pipe waits until some process writes to it. A pipe that was read before is
    opened without waiting.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    number = status.st_dev, status.st_ino
    is_pipe = stat.S_ISFIFO(status.st_mode)
    known = _PIPED.get(number, b"") if is_pipe else b""
    with os.fdopen(os.open(path, os.O_RDONLY | (os.O_NONBLOCK if known else 0)), "rb") as file:
        data = file.read(MAX_BYTES + 1) or known
    if is_pipe:
        _PIPED[number] = data
    return data


def read_text(path: Path) -> str:
    """The text of a file of at most 64 MiB: UTF-8, or UTF-16 if a byte order mark says so.

    A pipe gives its bytes only once; a second call returns the same text.

    Raises:
        InvalidInputError: the file is missing, a folder, too large, not readable, or not UTF-8.
    """
    try:
        data = _bytes_of(path)
    except IsADirectoryError as error:
        msg = f"{path}: is a folder; name a file in it"
        raise InvalidInputError(msg) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"{path}: cannot be read: {reason}"
        raise InvalidInputError(msg) from error
    if len(data) > MAX_BYTES:
        msg = f"{path}: larger than {format_bytes(MAX_BYTES)}, the most that is read"
        raise InvalidInputError(msg)
    is_wide = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        return data.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind, byte = "UTF-16" if is_wide else "UTF-8", data[error.start]
        msg = f"{path}:{line}: not {kind} text (byte {byte:#04x}); save it as UTF-8"
        raise InvalidInputError(msg) from error


def read_yaml(path: Path) -> Document:
    """Read a YAML file that has one mapping.

    Raises:
        InvalidInputError: the file is not well formed, or has something that
            :mod:`planner.io.yaml_reader` refuses.
    """
    return as_yaml(path, read_text(path))


def as_yaml(path: Path, text: str) -> Document:
    """The mapping of a YAML file with this text.

    Raises:
        InvalidInputError: as for :func:`read_yaml`.
    """
    value, lines = parse_yaml(text, str(path))
    if value is None:
        msg = f"{path}: is empty; 'shardplan import tables' writes a file to start from"
        raise InvalidInputError(msg)
    if not isinstance(value, dict):
        msg = f"{path}: must hold keys and values at the top, such as 'tables:'"
        raise InvalidInputError(msg)
    return Document(path, value, lines)


def read_json(path: Path) -> Any:
    """Read a JSON file, which may not have NaN, infinity or duplicate keys.

    Raises:
        InvalidInputError: the file is not well formed.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: Path, *, line: int = 1) -> Any:
    """The JSON value that begins at a line of a file, read as by :func:`read_json`.

    Raises:
        InvalidInputError: it is not well formed.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        cut = "; is the file cut off?" if error.pos >= len(text.rstrip()) else ""
        msg = f"{path}:{line - 1 + error.lineno}: not well-formed JSON: {error.msg}{cut}"
        raise InvalidInputError(msg) from error
    except (ValueError, RecursionError) as error:
        reason = _DEPTH_ERROR if isinstance(error, RecursionError) else error
        at = f":{line}" if line > 1 else ""
        msg = f"{path}{at}: not well-formed JSON: {reason}"
        raise InvalidInputError(msg) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            msg = f"key {key!r} given twice; keep one"
            raise ValueError(msg)
        values[key] = value
    return values


def _refuse_constant(name: str) -> float:
    msg = f"{name} is not a number; write a finite one"
    raise ValueError(msg)
