"""Name what stands in the place of something else, such as a file name in the place of a plan."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from pathlib import Path

from costmodels.fields import shown
from planner.errors import InvalidInputError


def require_kind(
    name: str, value: object, kind: type, hint: str, *, optional: bool = False
) -> None:
    """Refuse a value of another class.

    Args:
        name: of the argument.
        value: what was given for it.
        kind: the class that it has to be of.
        hint: what makes one, to end the message with.
        optional: whether None will do too.

    Raises:
        InvalidInputError: it is of another class.
    """
    if isinstance(value, kind) or (optional and value is None):
        return
    message = f"{name}: {shown(value)} is no {kind.__name__}; {hint}"
    raise InvalidInputError(message)


def require_amount(name: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no finite number of 0 or more, or no whole one; None will do.

    Raises:
        InvalidInputError: names the argument and the value.
    """
    kind = Integral if whole else Real
    if value is None or (isinstance(value, kind) and 0 <= float(value) < math.inf):
        return
    wanted = "whole number" if whole else "finite number"
    message = f"{name} must be a {wanted} of 0 or more, or None, got {shown(value)}"
    raise InvalidInputError(message)


def require_function(name: str, value: object) -> None:
    """Refuse what cannot be called; None will do.

    Raises:
        InvalidInputError: names the argument and the value.
    """
    if value is not None and not callable(value):
        message = f"{name}: {shown(value)} is no function; give one, or None"
        raise InvalidInputError(message)


def path_of(source: object, what: str) -> Path:
    """The path that a text or a path is.

    Args:
        source: as given.
        what: it is the path of, for the message.

    Raises:
        InvalidInputError: it is neither.
    """
    if isinstance(source, str | os.PathLike):
        return Path(source)
    message = f"{what}: {shown(source)} is no path; give a text or a pathlib.Path"
    raise InvalidInputError(message)
