"""Arithmetic for one shard or many: floats stay floats, which is quick; arrays go by element."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray

Values = float | FloatArray
"""A float, or an array of them ``[n]``."""
Flags = bool | BoolArray


def ceil(values: Values) -> Values:
    """Least whole number that is no smaller."""
    return np.ceil(values) if isinstance(values, np.ndarray) else math.ceil(values)


def rounded(values: Values) -> Values:
    """Nearest whole number, halves to even."""
    return np.rint(values) if isinstance(values, np.ndarray) else round(values)


def at_least(values: Values, floor: float) -> Values:
    """The values, or the floor where they are below it."""
    if isinstance(values, np.ndarray):
        return cast("FloatArray", np.maximum(values, floor))
    return max(values, floor)


def choose(condition: Flags, yes: Values, no: Values) -> Values:
    """``yes`` where the condition holds, ``no`` elsewhere."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no
