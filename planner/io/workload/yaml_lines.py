"""Makes lines of YAML files for people: one-line mappings, quoted texts, and comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from costmodels import units
from planner.io.yaml_reader import parse_scalar

_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_LAST_PRINTABLE: Final = 0xFFFF
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_WIDTH: Final = 100
_LONGEST_LINE: Final = 240
"""A table is written on one line of at most about this many characters."""
_COMMA: Final = re.compile(r", (?! )")

Notes = Mapping[str, str]
"""Comments by key, such as ``training.batch_size_per_rank``, ``dense``, ``tables``, or ``tables.``
with the name of a table."""


class Raw(str):
    """Text that is already YAML."""

    __slots__ = ()


def head_line(key: str, notes: Notes) -> str:
    """The line of a key whose values follow on other lines."""
    return f"{key}:{note_text(notes.get(key))}"


def section_lines(section: str, values: Mapping[str, Any], notes: Notes) -> list[str]:
    """The lines of a section: its keys with their values and comments."""
    lines = []
    for key, value in values.items():
        note = note_text(notes.get(f"{section}.{key}"))
        lines += block_lines(key, value, "  ", note)
    return lines


def block_lines(key: str, value: object, indent: str, note: str = "") -> list[str]:
    """The lines of a key with its value; lists of mappings take several lines."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [f"{indent}{key}:{note}", *(f"{indent}  - {flow_text(item)}" for item in value)]
    if isinstance(value, dict):
        inner = [line for k, v in value.items() for line in block_lines(k, v, f"{indent}  ")]
        return [f"{indent}{key}:{note}", *inner]
    return [f"{indent}{key}: {flow_text(value)}{note}"]


def flow_text(value: object) -> str:
    """A value in YAML's one-line form."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow_text(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow_text(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return number_text(value)
    return value if isinstance(value, Raw) else scalar_text(str(value))


def folded_lines(line: str, indent: str) -> list[str]:
    """A long line, broken after commas that one blank follows, so that YAML reads the same value.

    A quoted text can be broken too, because YAML reads a line's end there as a blank.
    """
    if len(line) <= _LONGEST_LINE:
        return [line]
    lines = [""]
    for part in _COMMA.split(line):
        if lines[-1].strip() and len(lines[-1]) + len(part) + 2 > _WIDTH:
            lines[-1] += ","
            lines.append(f"{indent}{part}")
        else:
            lines[-1] += f", {part}" if lines[-1] else part
    return lines


def number_text(value: float) -> str:
    """The shortest text that reads back as exactly this number."""
    whole = value.is_integer() and abs(value) < 10**15
    return str(int(value)) if whole else repr(value)


def bytes_text(value: float) -> str:
    """Bytes as text, in the largest unit in which they are a whole number."""
    for unit, size in (("GiB", units.GIB), ("MiB", units.MIB)):
        if value and value % size == 0:
            return f"{value / size:.0f} {unit}"
    return f"{number_text(float(value))} B"


def scalar_text(text: str) -> str:
    """A word without quotes if it reads back as this text; otherwise quoted, with escapes."""
    if _BARE.fullmatch(text) and parse_scalar(text) == text:
        return text
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if code <= _LAST_PRINTABLE and not character.isprintable():
        return f"\\u{code:04x}"
    return character if character.isprintable() else f"\\U{code:08x}"


def note_text(text: str | None) -> str:
    """A comment to write behind a value; empty for no text."""
    return f" # {on_one_line(text)}" if text else ""


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Wrapped lines of a comment."""
    import textwrap

    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(on_one_line(line), _WIDTH - 2, subsequent_indent="  ") or [""]
    return [f"# {line}".rstrip() for line in wrapped]


def on_one_line(text: str) -> str:
    """The text on one line, so that it cannot end a comment early."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
