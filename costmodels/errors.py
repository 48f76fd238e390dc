"""What can go wrong in a cost model.

CostModelError
├── UnitError            a quantity without, or with an unknown, unit
├── InvalidValueError    a value that breaks a rule of the domain (negative rows, unknown rank ...)
└── UnknownNameError     a model or distribution asked for by a name that no file has
"""

from typing import NoReturn


class CostModelError(Exception):
    """Root of all errors raised by :mod:`costmodels`."""


class UnitError(CostModelError, ValueError):
    """A quantity has no unit or one that does not fit."""


class InvalidValueError(CostModelError, ValueError):
    """A value breaks a rule of the domain; the message states rule, value and remedy."""


class UnknownNameError(CostModelError, KeyError):
    """No plug-in file has this name."""

    def __str__(self) -> str:
        """Message without the quotes that ``KeyError`` adds."""
        return str(self.args[0]) if self.args else ""


def refuse(message: str) -> NoReturn:
    """Raise :class:`InvalidValueError` with ``message``."""
    raise InvalidValueError(message)


def require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise :class:`InvalidValueError` with ``message`` unless ``condition`` holds."""
    if not condition:
        refuse(message)
