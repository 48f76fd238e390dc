"""Element types: of weights, activations and messages, and of the arrays that signatures name."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_NUM_BYTES: Final = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


class DataType(StrEnum):
    """Element type of weights or messages."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def num_bytes(self) -> int:
        """Bytes per element in memory."""
        return _NUM_BYTES[self._value_]
