"""Makes text safe to print, even with names from unknown sources.

A name from a file can have codes that move the cursor or change the colours of a terminal, or marks
that change the direction of writing, so that a line reads as something else. Such characters are
written as their numbers, in Python's form, and are never passed on.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_HARMLESS: Final = frozenset("\u200c\u200d\u00ad")
"""Joiners and soft hyphens, which some scripts and emoji need; they do not change directions."""

_CODES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control, format (with the marks of direction), surrogate, line breaks."""


def printable(text: str) -> str:
    """The text on one line; line breaks are written as their numbers too."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """The safe text with its line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else _shown(c) for c in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) in _CODES and character not in _HARMLESS:
        return character.encode("unicode_escape").decode("ascii")
    return character
