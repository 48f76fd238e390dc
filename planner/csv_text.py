"""CSV that people open in spreadsheets, whoever wrote the names in it.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@`` as a formula, and looks past
a leading tab or line break for one. Texts that begin so get a quotation mark in front, which every
spreadsheet takes for "this is text" (OWASP, CSV injection); numbers stay numbers.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

_MARK: Final = "'"
_BLANK: Final = " \u00a0"
_RUN: Final = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""First characters; the last four are the wide forms of the first four."""
_SUSPECT: Final = _RUN | {_MARK, *_BLANK}
"""First characters of texts that have to be looked at."""
_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?%?|[-+]?inf")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header and rows, each ended by a line feed; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in (header, *rows):
        cells = [guarded(value) for value in row]
        if any(isinstance(cell, str) and "\r" in cell for cell in cells):
            buffer.write(_line(cells))
        else:
            writer.writerow(cells)
    return buffer.getvalue()


def _line(cells: Sequence[object]) -> str:
    """A row with carriage returns, which Python quotes only where its own rows end with them."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def guarded(value: object) -> object:
    """The value of a cell; a text that a spreadsheet would run has a mark in front."""
    if not isinstance(value, str) or value[:1] not in _SUSPECT or not _wants_mark(value):
        return value
    return f"{_MARK}{value}"


def unguarded(text: str) -> str:
    """The text of a cell without its mark; the inverse of :func:`guarded`."""
    return text[1:] if text[:1] == _MARK and _wants_mark(text[1:]) else text


def _wants_mark(text: str) -> bool:
    """Whether a text is run, or looks like one that has its mark already."""
    return _runs(text.lstrip(_MARK))


def _runs(text: str) -> bool:
    inner = text.lstrip(_BLANK)
    if inner[:1] not in _RUN or not inner:
        return False
    return inner != "-" and _NUMBER.fullmatch(inner) is None
