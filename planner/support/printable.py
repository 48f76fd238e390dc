"""Text that people can look at safely, whoever wrote the names in it.

A name from a file may hold codes that move the cursor or change the colours of a terminal, or marks
that turn the direction of writing, so that a line reads as something else than it is. Such
characters are shown by their number, as Python writes it, and are nowhere passed on.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_HARMLESS: Final = frozenset("\u200c\u200d\u00ad")
"""Joiners and soft hyphens, which scripts and pictures are written with; they turn nothing."""

_CODES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control, format (with the marks of direction), surrogate, line breaks."""


def printable(text: str) -> str:
    """The text on one line; line breaks are shown by their number too."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """The text with its line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else _shown(c) for c in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) in _CODES and character not in _HARMLESS:
        return character.encode("unicode_escape").decode("ascii")
    return character
