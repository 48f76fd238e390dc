"""Text and numbers for people, safe to print; what callers give brought to its kind."""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Container
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Final, Union, get_args, get_origin, get_type_hints

from costmodels.fields import shown
from planner.errors import InvalidInputError

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


# ------------------ kinds
#
# Checks the types of arguments, such as a file name that is given instead of a plan.


def require_kind(
    name: str, value: object, kind: type, hint: str, *, optional: bool = False
) -> None:
    """Refuse a value of another class.

    Args:
        name: the name of the argument.
        value: the value that was given.
        kind: the class that the value has to have.
        hint: how to make such a value; it ends the message.
        optional: whether None is allowed too.

    Raises:
        InvalidInputError: the value is of another class.
    """
    if isinstance(value, kind) or (optional and value is None):
        return
    message = f"{name}: {shown(value)} is no {kind.__name__}; {hint}"
    raise InvalidInputError(message)


def require_amount(name: str, value: object, *, whole: bool = False) -> None:
    """Refuse a value that is not a finite number of 0 or more (or not whole); None is allowed.

    Raises:
        InvalidInputError: it is such a value; the message names the argument and the value.
    """
    kind = Integral if whole else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if value is None or (is_number and 0 <= float(value) < math.inf):  # type: ignore[arg-type]
        return
    wanted = "whole number" if whole else "finite number"
    message = f"{name} must be a {wanted} of 0 or more, or None, got {shown(value)}"
    raise InvalidInputError(message)


def check_fields(values: object, *, signed: Container[str] = ()) -> None:
    """Refuse fields of a dataclass that no file of ours has; ints may stand for floats.

    Args:
        values: an instance whose fields were read from a file.
        signed: the names of numbers that may be below 0.

    Raises:
        TypeError: a field is of another class than its type hint.
        ValueError: a number is not finite, or below 0.
    """
    for name, hint in get_type_hints(type(values)).items():
        value = getattr(values, name)
        kinds = [get_origin(k) or k for k in (get_args(hint) if _is_union(hint) else (hint,))]
        kinds += [int] if float in kinds else []
        if not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds):
            message = f"{name} is {shown(value)}"
            raise TypeError(message)
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            is_number = isinstance(part, int | float)
            if is_number and not (math.isfinite(part) and (part >= 0 or name in signed)):
                message = f"{name} is {shown(value)}"
                raise ValueError(message)


def _is_union(hint: object) -> bool:
    return get_origin(hint) in (Union, UnionType)


def require_function(name: str, value: object, *, optional: bool = True) -> None:
    """Refuse a value that cannot be called.

    Args:
        name: the name of the argument.
        value: the value that was given.
        optional: whether None is allowed too.

    Raises:
        InvalidInputError: it is such a value; the message names the argument and the value.
    """
    if callable(value) or (optional and value is None):
        return
    message = f"{name}: {shown(value)} is no function; give one" + ", or None" * optional
    raise InvalidInputError(message)


def require_list(name: str, value: object, hint: str) -> None:
    """Refuse a value that is neither a list nor a tuple.

    Raises:
        InvalidInputError: it is such a value; the message ends with the hint.
    """
    if not isinstance(value, list | tuple):
        message = f"{name}: {shown(value)} is no list; {hint}"
        raise InvalidInputError(message)


def path_of(source: object, what: str) -> Path:
    """A text or a path as a path.

    Args:
        source: the value that was given.
        what: what it is the path of, for the message.

    Raises:
        InvalidInputError: the value is neither.
    """
    if isinstance(source, str | os.PathLike):
        return Path(source)
    message = f"{what}: {shown(source)} is no path; give a text or a pathlib.Path"
    raise InvalidInputError(message)
