"""Fields of a dataclass, each brought to the kind that it has to be of, or refused by its name.

Whoever builds a noun in Python writes ``optimizer="adam"`` or ``bottom_mlp=[64, 16]``, or takes
numbers out of an array. A value that means one of the right kind becomes that; any other is
refused here: later on it would be compared with something that it never equals.
"""

import math
import typing
from dataclasses import fields
from enum import StrEnum
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np

from costmodels.errors import InvalidValueError

_LONGEST: Final = 60


class Range(NamedTuple):
    """The numbers that a field may have, such as ``Annotated[int, Range(1, 100)]``.

    Attributes:
        least: the least number, or the one that all numbers are above; every finite one by default.
        most: the largest number; without one, a number has to be finite.
        is_open: whether ``least`` itself is not allowed.
    """

    least: float = -math.inf
    most: float = math.inf
    is_open: bool = False

    def __str__(self) -> str:
        """What a message says that a number has to be."""
        least, most = _shown_limit(self.least), _shown_limit(self.most)
        if self.most < math.inf:
            return f"{least}..{most}"
        limit = f"{'above' if self.is_open else 'at least'} {least} and "
        return f"{limit if self.least > -math.inf else ''}finite"

    def has(self, number: Any) -> bool:
        """Whether a number is in the range."""
        above = number > self.least if self.is_open else number >= self.least
        return bool(above and number <= self.most and number < math.inf)


Finite = Annotated[float, Range()]
"""A number that is not infinite."""
Amount = Annotated[float, Range(0.0)]
"""A number of 0 or more."""
Positive = Annotated[float, Range(0.0, is_open=True)]
"""A number above 0."""
Count = Annotated[int, Range(0, 2**31)]
"""A whole number of 0 or more."""
Several = Annotated[int, Range(1, 2**31)]
"""A whole number of 1 or more."""


def _shown_limit(limit: float) -> str:
    """A limit as messages show it: ``2^48``, ``1e6`` or ``16384``."""
    if limit >= 2**20 and math.log2(limit).is_integer():
        return f"2^{math.log2(limit):.0f}"
    return f"{limit:g}".replace("e+0", "e").replace("e+", "e")


def settle(owner: Any, where: str = "") -> None:
    """Bring the fields of a frozen dataclass to their annotations, from its ``__post_init__``.

    Whole numbers, texts, flags, enumerations (a text becomes the member), other classes, any of
    these or None or a literal text, and tuples of them, of any or of a fixed length (for which a
    list or an array may stand), are settled. Any real number stays in the place of a ``float`` as
    it is. A number with a :class:`Range` has to be in it. Other annotations are left alone.

    Args:
        owner: the dataclass.
        where: begins every message, such as ``"table 'user': "``.

    Raises:
        InvalidValueError: names the field, what it has to be, and the value.
    """
    for name, kind in _kinds(owner.__class__):
        value = getattr(owner, name)
        if type(value) is kind:
            continue
        settled = _settled(where + name, value, kind)
        if settled is not value:
            object.__setattr__(owner, name, settled)


@cache
def _kinds(owner: Any) -> tuple[tuple[str, Any], ...]:
    """Fields of a dataclass with those annotations that are settled."""
    hints = typing.get_type_hints(owner, include_extras=True)
    return tuple(
        (f.name, hints[f.name]) for f in fields(owner) if f.init and _is_known(hints[f.name])
    )


def _is_known(kind: Any) -> bool:
    _, kind, origin, parts = _taken_apart(kind)
    if origin in (UnionType, Union):
        is_plain = parts[1] is NoneType or get_origin(parts[1]) is Literal
        return len(parts) == 2 and is_plain and _is_known(parts[0])
    if origin is tuple:
        return all(_is_known(part) for part in parts if part is not Ellipsis)
    return isinstance(kind, type) and origin is None


@cache
def _taken_apart(kind: Any) -> tuple[Range | None, Any, Any, tuple[Any, ...]]:
    """The range of an annotation, what it annotates, and the origin and the parts of that."""
    allowed = None
    if get_origin(kind) is Annotated:
        kind, allowed = get_args(kind)
    return allowed, kind, get_origin(kind), get_args(kind)


def _settled(what: str, value: Any, kind: Any) -> Any:
    allowed, kind, origin, parts = _taken_apart(kind)
    settled = value if type(value) is kind else _converted(what, value, kind, origin, parts)
    if allowed is not None and not allowed.has(settled):
        raise _refusal(what, str(allowed), value)
    return settled


def _converted(what: str, value: Any, kind: Any, origin: Any, parts: tuple[Any, ...]) -> Any:
    if origin in (UnionType, Union):
        first, other = parts
        is_other = value is None if other is NoneType else is_in(value, get_args(other))
        return value if is_other else _settled(what, value, first)
    if origin is tuple:
        return _tuple(what, value, parts)
    if kind is int:
        return _whole(what, value)
    if kind is float:
        return _number(what, value)
    if kind is bool and isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, kind):
        return value
    if issubclass(kind, StrEnum):
        if is_in(value, tuple(kind)):
            return kind(value)
        raise _refusal(what, f"one of {', '.join(kind)}", value)
    words = {bool: "True or False", str: "a text"}
    raise _refusal(what, words.get(kind, f"of class {kind.__name__}"), value)


def is_in(value: object, texts: tuple[str, ...]) -> bool:
    """Whether a value is one of these texts; arrays and the like are none."""
    return isinstance(value, str) and value in texts


def _tuple(what: str, value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, tuple | list):
        raise _refusal(what, "a tuple or a list", value)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    elif len(value) != len(kinds):
        raise _refusal(what, f"a tuple of {len(kinds)}", value)
    parts = tuple(
        part if type(part) is kind else _settled(f"{what}[{i}]", part, kind)
        for i, (part, kind) in enumerate(zip(value, kinds, strict=True))
    )
    if isinstance(value, tuple) and all(a is b for a, b in zip(parts, value, strict=True)):
        return value
    return parts


def _number(what: str, value: Any) -> Any:
    if type(value) in (bool, np.bool_) or not isinstance(value, Real):
        raise _refusal(what, "a number", value)
    return value


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, also as a float without a fraction."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, Integral) and value is not True and value is not False


def _whole(what: str, value: Any) -> int:
    if not is_whole(value):
        raise _refusal(what, "a whole number", value)
    return int(value)


def shown(value: object) -> str:
    """A value as messages show it: its class where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"a {type(value).__name__}"


def _refusal(what: str, wanted: str, value: object) -> InvalidValueError:
    return InvalidValueError(f"{what} must be {wanted}, got {shown(value)}")
