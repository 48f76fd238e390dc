"""Reads YAML into plain values, with the line of every key; it is stricter than YAML.

These are refused: duplicate keys, tags, aliases that multiply, deep nesting, several documents.
Words are text, except for ``true``, ``false``, ``null`` and decimal or hexadecimal numbers, whose
digits underscores may group. So ``no``, ``on``, ``1:30``, ``010`` and dates stay text, but ``1e6``
is a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import yaml

from planner.errors import InvalidInputError

Keys = tuple[str | int, ...]
"""The place of a value, such as ``("tables", 3, "name")``."""

MAX_DEPTH: Final = 32
_TOO_DEEP: Final = f"values are nested deeper than {MAX_DEPTH} levels"
MAX_NODES: Final = 4_000_000
MAX_ALIASED_NODES: Final = 4_000_000

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR_TAG: Final = "tag:yaml.org,2002:str"
_WORDS: Final = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    ".inf": math.inf,
    "+.inf": math.inf,
    "-.inf": -math.inf,
    ".nan": math.nan,
}
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9_]{0,39})")
_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F_]{1,16}")
_EXPONENT: Final = r"[eE][-+]?[0-9]{1,4}"
_FLOAT: Final = re.compile(
    rf"[-+]?([0-9][0-9_]{{0,39}}(\.[0-9_]{{0,39}}({_EXPONENT})?|{_EXPONENT})"
    rf"|\.[0-9][0-9_]{{0,39}}({_EXPONENT})?)"
)


def dotted(keys: Keys) -> str:
    """The place of a value in words, such as ``tables[3].name``."""
    text = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)
    return text.removeprefix(".")


def parse_scalar(text: str) -> object:
    """The value of one plain word, read as in a file."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _HEXADECIMAL.fullmatch(text):
        return int(text.replace("_", ""), 16)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def parse_yaml(text: str, source: str) -> tuple[object, dict[Keys, int]]:
    """Read one document.

    Args:
        text: the YAML.
        source: the name of the text in messages.

    Returns:
        Plain values (dict, list, str, int, float, bool, None), and the line of each, from 1.

    Raises:
        InvalidInputError: the text is not YAML, or has something that is refused; the message has
            the place.
    """
    reader = _Reader(text, source)
    try:
        value = reader.document()
    except yaml.YAMLError as error:
        raise InvalidInputError(_syntax_error(error, source)) from error
    return value, reader.lines


class _Reader:
    """One pass over the events of a YAML text."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.lines: dict[Keys, int] = {}
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, tuple[object, int]] = {}
        self._num_nodes = 0
        self._num_aliased = 0

    def document(self) -> object:
        """The value of the only document."""
        value: object = None
        count = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                count += 1
                if count > 1:
                    self._fail(event, "a second document begins; keep one per file, without '---'")
                value = self._value(next(self._events), ())
        return value

    def _value(self, event: Any, keys: Keys) -> object:
        if len(keys) > MAX_DEPTH:
            self._fail(event, _TOO_DEEP)
        self.lines.setdefault(keys, event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._num_nodes + self._num_aliased
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            self._fail(event, f"the file has more than {MAX_NODES:,} values")
        if getattr(event, "tag", None) not in (None, "!", _STR_TAG):
            self._fail(event, f"tag {event.tag!r} is not supported; write plain values")
        value: object
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(keys)
        else:
            value = self._mapping(keys)
        if event.anchor is not None:
            size = self._num_nodes + self._num_aliased - before
            self._anchors[event.anchor] = (value, size)
        return value

    @staticmethod
    def _scalar(event: Any) -> object:
        plain = event.implicit[0] and event.tag is None
        return parse_scalar(event.value) if plain else event.value

    def _sequence(self, keys: Keys) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*keys, len(items))))
        return items

    def _mapping(self, keys: Keys) -> dict[str, object]:
        found: dict[str, object] = {}
        merged: dict[str, object] = {}
        while not isinstance((event := next(self._events)), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                self._fail(event, "a key must be a word, not a list or mapping")
            key = str(event.value)
            if key in found:
                self._fail(event, f"{dotted((*keys, key))}: key given twice; keep one")
            value = self._value(next(self._events), (*keys, key))
            self.lines[*keys, key] = line
            if key == "<<":
                merged = {**self._merge(event, value), **merged}
            else:
                found[key] = value
        return {**merged, **found}

    def _merge(self, event: Any, value: object) -> dict[str, object]:
        parts = value if isinstance(value, list) else [value]
        merged: dict[str, object] = {}
        for part in reversed(parts):
            if not isinstance(part, dict):
                self._fail(event, "'<<' merges mappings only, such as '<<: *defaults'")
            merged.update(part)
        return merged

    def _alias(self, event: Any) -> object:
        if event.anchor not in self._anchors:
            self._fail(event, f"alias '*{event.anchor}' has no anchor '&{event.anchor}' before it")
        value, size = self._anchors[event.anchor]
        self._num_aliased += size
        if self._num_aliased > MAX_ALIASED_NODES:
            self._fail(
                event,
                f"aliases stand for more than {MAX_ALIASED_NODES:,} values; write them out, or "
                "use 'count:' for equal tables",
            )
        return value

    def _fail(self, event: Any, message: str) -> NoReturn:
        msg = f"{self.source}:{event.start_mark.line + 1}: {message}"
        raise InvalidInputError(msg)


def _syntax_error(error: yaml.YAMLError, source: str) -> str:
    """One line with the place, what the parser says, and the usual cause."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    problem = " ".join(problem.split())
    where = f"{source}:{mark.line + 1}" if mark is not None else source
    if "nesting depth" in problem:  # newer versions of the parser have a limit of their own
        return f"{where}: {_TOO_DEEP}"
    hints = {
        "mapping values are not allowed": "a value that contains ': ' needs quotes around it",
        "tab character": "indent with spaces, not tabs",
        "expected node content": "a value is missing, or a bracket is not closed",
        "expected key": "check the indentation of this line and the one before",
        "cannot start any token": "indent with spaces, not tabs; quote text that starts with % @ `",
        "expected <block end>": "check the indentation of this line and the one before",
        "expected ',' or": "a bracket is not closed, or a comma is missing",
        "unexpected end of stream": "quotes are not closed",
        "special characters": "the file holds control characters; is it a text file?",
        "control characters": "the file holds control characters; is it a text file?",
    }
    hint = next((text for key, text in hints.items() if key in problem), "see the line named")
    return f"{where}: not valid YAML: {problem}; {hint}"
