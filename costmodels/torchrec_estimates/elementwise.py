"""Arithmetic for one shard or many: of floats, which is fast, or of the elements of arrays."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray

Values = float | FloatArray
"""A float for one shard, or an array ``[n]`` of floats for n shards."""
Flags = bool | BoolArray
"""A bool for one shard, or an array ``[n]`` of bools for n shards."""


def ceil(values: Values) -> Values:
    """The least whole number that is not smaller than the value."""
    return np.ceil(values) if isinstance(values, np.ndarray) else math.ceil(values)


def rounded(values: Values) -> Values:
    """The nearest whole number; halves are rounded to even numbers."""
    return np.rint(values) if isinstance(values, np.ndarray) else round(values)


def at_least(values: Values, floor: float) -> Values:
    """The value, or ``floor`` if the value is below it."""
    if isinstance(values, np.ndarray):
        return cast("FloatArray", np.maximum(values, floor))
    return max(values, floor)


def choose(condition: Flags, yes: Values, no: Values) -> Values:
    """``yes`` where the condition is true, ``no`` elsewhere."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no
