"""Element types: of weights, activations and messages, and of the arrays that signatures name."""

from enum import StrEnum
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_NUM_BYTES: Final[dict[str, float]] = {
    **{"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
}
_WIDE: Final = ("tf32", "fp32")
_HALVES: Final = ("fp16", "bf16", *_WIDE)
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    **{"fp32": (), "tf32": ("fp32",), "fp16": _WIDE, "bf16": _WIDE},
    **{"fp8": _HALVES, "int8": _HALVES, "fp4": ("fp8", *_HALVES)},
}
"""For each type, those that hold all its values, by the widths of exponent and significand."""


class DataType(StrEnum):
    """Element type of weights or messages."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"

    @property
    def num_bytes(self) -> float:
        """Bytes per element in memory; a whole number for all types but fp4."""
        return _NUM_BYTES[self._value_]

    @property
    def wider(self) -> tuple[Self, ...]:
        """The types that hold every value of this one."""
        return tuple(type(self)(name) for name in _WIDER[self._value_])


def changes(*columns: IntArray | FloatArray) -> BoolArray:
    """True for each entry that differs from the entry before it in any of the columns."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return new


def distinct(*columns: IntArray | FloatArray) -> tuple[IntArray, IntArray]:
    """The different rows of some columns.

    Returns:
        The position of one row of each kind, and for each row ``[n]`` the number of its kind.
    """
    order = np.lexsort(columns[::-1])
    new = changes(*(column[order] for column in columns))
    back = np.empty(len(new), dtype=np.int64)
    back[order] = np.cumsum(new) - 1
    return order[new], back
