"""What can go wrong in a cost model.

CostModelError
├── UnitError            a quantity without, or with an unknown, unit
├── InvalidValueError    a value that breaks a rule of the domain (negative rows, unknown rank ...)
├── UnknownNameError     a model or distribution asked for by a name that no file has
└── OutOfDomainError     a prediction asked for outside the range a model was fitted on
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray

_ROUNDING_S: Final = 1e-12
"""Seconds below 0 that a difference of two equal times can have."""


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


class OutOfDomainError(CostModelError, ValueError):
    """The model was not fitted for these inputs."""


def require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise :class:`InvalidValueError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise InvalidValueError(message)


def require_times(seconds: FloatArray | float, what: str) -> None:
    """Raise :class:`InvalidValueError` unless all times, in any shape, are finite and at least 0.

    Args:
        seconds: what a cost model has given.
        what: what takes so long, for the message.
    """
    values = np.asarray(seconds)
    least, most = (values.min(), values.max()) if values.size else (0.0, 0.0)
    if not (least >= -_ROUNDING_S and most < np.inf):
        wrong = most if least >= -_ROUNDING_S else least
        message = (
            f"{what} takes {wrong:.4g} s by the cost models, but times must be finite and at least "
            "0; correct the model that gives it"
        )
        raise InvalidValueError(message)
