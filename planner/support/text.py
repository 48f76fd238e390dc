"""Text and numbers for people, safe to print."""

import unicodedata
from decimal import Decimal
from typing import Final

# ------------------ digits
#
# Writes numbers for people: counts with a noun, and numbers without an exponent.

_LEAST_PERCENT: Final = 0.01
"""Gaps of fewer percent than this are written as 0."""


def significant(value: float, digits: int = 3) -> str:
    """A finite number with ``digits`` digits, such as ``0.0123``, ``4.5``, ``12,874``.

    Digits before the point are never rounded, and are in groups of three.

    Args:
        value: any finite number.
        digits: the digits to which a number with a fractional part is rounded, at least 1.
    """
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def unsigned_zero(value: float, decimals: int) -> float:
    """The value rounded to ``decimals`` decimals; minus zero becomes zero."""
    return round(value, decimals) + 0.0


def counted(count: float, noun: str) -> str:
    """A count and its noun: ``1 table``, ``26 tables``. The plural is the noun with an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_gap(gap_ratio: float) -> str:
    """The gap between a plan and its bound, 0..1, in percent: ``0.07 %``, ``23 %``."""
    percent = 100 * gap_ratio
    return f"{significant(percent, 2)} %" if percent >= _LEAST_PERCENT else "0 %"


# ------------------ printable
#
# Makes text safe to print, even with names from unknown sources.
#
# A name from a file can have codes that move the cursor or change the colours of a terminal, or
# marks that change the direction of writing, so that a line reads as something else. Such
# characters are written as their numbers, in Python's form, and are never passed on.

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
