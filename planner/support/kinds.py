"""Checks the types of arguments, such as a file name that is given instead of a plan."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from costmodels.errors import InvalidValueError
from costmodels.fields import settle, shown
from planner.errors import refuse

FUNCTION: Final = (FunctionType, Callable)
"""A kind of which messages name the first class."""


def require_kind(name: str, value: object, kind: Any, hint: str, *, optional: bool = False) -> None:
    """Refuse a value of another class.

    Args:
        name: the name of the argument.
        value: the value that was given.
        kind: the class that the value has to have, or several such as :data:`FUNCTION`.
        hint: how to make such a value; it ends the message.
        optional: whether None is allowed too.

    Raises:
        InvalidInputError: the value is of another class.
    """
    if isinstance(value, kind) or (optional and value is None):
        return
    wanted = kind[0] if isinstance(kind, tuple) else kind
    refuse(f"{name}: {shown(value)} is no {wanted.__name__}; {hint}")


def require_settled(owner: object, **hints: str) -> None:
    """Bring the fields of a frozen dataclass to their kinds, from its ``__post_init__``.

    Args:
        owner: the dataclass.
        hints: by the name of a field, how to make its value; ends the message.

    Raises:
        InvalidInputError: names the field, what it has to be, and the value.
    """
    try:
        settle(owner)
    except InvalidValueError as error:
        hint = hints.get(re.split(r"\W", str(error))[0])
        refuse(f"{error}; {hint}" if hint else str(error))


def path_of(source: object, what: str) -> Path:
    """A text or a path as a path.

    Args:
        source: the value that was given.
        what: what it is the path of, for the message.

    Raises:
        InvalidInputError: the value is neither.
    """
    if not isinstance(source, str | os.PathLike):
        refuse(f"{what}: {shown(source)} is no path; give a text or a pathlib.Path")
    return Path(source)
