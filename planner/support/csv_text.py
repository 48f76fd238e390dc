"""CSV that people open in spreadsheets, whoever wrote the names in it.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, and looks past
a leading tab or line break for one. Texts that begin so get a quotation mark in front, which every
spreadsheet takes for "this is text" (OWASP, CSV injection); numbers stay numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import Final

_MARK: Final = "'"
_RUN: Final = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters; the last four are the wide forms of the first four."""
_BLANKS: Final = " \u00a0"
_SUSPECT: Final = _RUN | set(_BLANKS) | {_MARK}
"""First characters of texts that are looked at more closely."""
_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?%?|[-+]?inf")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header and rows, each ended by a line feed; None is an empty cell."""
    lines = _Lines()
    # Python quotes a cell with a line break only if its own rows end with the same break.
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow([guarded(name) for name in header])
    writer.writerows([guarded(value) for value in row] for row in rows)
    return "".join(lines.found)


class _Lines:
    """What :func:`csv.writer` writes to: one call per row."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def write(self, line: str) -> None:
        """Keep a row, ended by a line feed alone."""
        self.found.append(line[:-2] + "\n")


def guarded(value: object) -> object:
    """The value of a cell; a text that a spreadsheet would run has a mark in front."""
    if isinstance(value, str) and value[:1] in _SUSPECT and _wants_mark(value):
        return f"{_MARK}{value}"
    return value


def unguarded(text: str) -> str:
    """The text of a cell without its mark; the inverse of :func:`guarded`."""
    return text[1:] if text[:1] == _MARK and _wants_mark(text[1:]) else text


def _wants_mark(text: str) -> bool:
    """Whether a text is run, or looks like one that has its mark already."""
    return _runs(text.lstrip(_MARK))


def _runs(text: str) -> bool:
    inner = text.lstrip(_BLANKS)
    if inner[:1] not in _RUN or not inner:
        return False
    return inner != "-" and _NUMBER.fullmatch(inner) is None
