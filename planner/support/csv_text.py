"""Writes CSV that is safe to open in spreadsheets, even with names from unknown sources.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, also behind a
tab or line break. Such texts get a quotation mark in front, which every spreadsheet reads as "this
is text" (OWASP, CSV injection). Numbers stay numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import Final

_MARK: Final = "'"
_RUN: Final = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters of formulas; the last four are the wide forms of the first four."""
_BLANKS: Final = " \u00a0"
_SUSPECT: Final = _RUN | set(_BLANKS) | {_MARK}
"""First characters of texts that need a closer check."""
_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?%?|[-+]?inf")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header and rows, each ended by a line feed; None is an empty cell."""
    lines = _Lines()
    # Python quotes a cell with a line break only if rows end with the same characters.
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow([guarded(name) for name in header])
    writer.writerows([guarded(value) for value in row] for row in rows)
    return "".join(lines.found)


class _Lines:
    """The file to which :func:`csv.writer` writes, with one call for each row."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def write(self, line: str) -> None:
        """Keep a row, with only a line feed at its end."""
        self.found.append(line[:-2] + "\n")


def guarded(value: object) -> object:
    """The value for a cell: a text that a spreadsheet would run gets a mark in front."""
    if isinstance(value, str) and value[:1] in _SUSPECT and _wants_mark(value):
        return f"{_MARK}{value}"
    return value


def unguarded(text: str) -> str:
    """The text of a cell without its mark; the inverse of :func:`guarded`."""
    return text[1:] if text[:1] == _MARK and _wants_mark(text[1:]) else text


def _wants_mark(text: str) -> bool:
    """Whether a text needs a mark: it would be run, or looks as if it had its mark already."""
    return _runs(text.lstrip(_MARK))


def _runs(text: str) -> bool:
    inner = text.lstrip(_BLANKS)
    if inner[:1] not in _RUN or not inner:
        return False
    return inner != "-" and _NUMBER.fullmatch(inner) is None
