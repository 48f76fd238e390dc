"""What a lookup on a CPU does, as counts that its time is linear in.

A CPU core takes the tables of a call one after the other. Forward: every index costs instructions,
and a cache line fetched from wherever its row was left. Backward: indices are sorted byte by byte,
gradients of bags are gathered row by row, and every distinct row is read, updated and written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LINE_BYTES: Final = 64.0
_ELEMENT_BYTES: Final = 4.0
_STEPS: Final = 60

FORWARD: Final = (
    "call",
    "bags",
    "output elements",
    "indices",
    "looked up elements",
    "L2 misses",
    "L2 missed lines",
    "L3 misses",
    "L3 missed lines",
)
BACKWARD: Final = (
    "call",
    "bags",
    "indices",
    "sort passes",
    "gathered elements",
    "gathered lines beyond L2",
    "distinct rows",
    "distinct elements",
    "L2 misses",
    "L2 missed lines",
    "L3 misses",
    "L3 missed lines",
)
DENSE_BACKWARD: Final = (*BACKWARD, "table elements", "table elements beyond L3")
SHAPE: Final = (
    "indices",
    "distinct rows",
    "columns",
    "rows",
    "bags",
    "reuse",
    "repeats",
    "L2 misses per index",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How one shard is accessed in an iteration: ids per frequency bin, draws, and its shape."""

    rows: FloatArray
    probability: FloatArray
    draws: float
    num_indices: float
    num_bags: float
    num_cols: int
    num_rows: int

    @property
    def row_bytes(self) -> float:
        """Bytes of a row of the shard, whole cache lines."""
        return max(LINE_BYTES, self.num_cols * _ELEMENT_BYTES)

    @property
    def lines(self) -> float:
        """Cache lines per row."""
        return max(1.0, self.num_cols * _ELEMENT_BYTES / LINE_BYTES)

    def distinct(self) -> float:
        """Rows touched at least once."""
        touched = -np.expm1(self.draws * np.log1p(-np.minimum(self.probability, 1.0 - 1e-12)))
        return min(float(self.rows @ touched), self.num_indices)

    def repeats(self) -> float:
        """Chance that two indices are the same row; how hot the hottest rows are."""
        share = float(self.rows @ self.probability)
        return float(self.rows @ np.square(self.probability)) / max(share * share, 1e-300)

    def misses(self, cache_bytes: float) -> float:
        """Misses of an LRU cache that starts without a row of this shard (Che et al. 2002)."""
        capacity = cache_bytes / self.row_bytes
        distinct = self.distinct()
        if distinct <= capacity:
            return distinct
        low, high = 0.0, self.draws
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            held = float(self.rows @ -np.expm1(-self.probability * middle))
            low, high = (low, middle) if held > capacity else (middle, high)
        hits = self.rows * self.probability * -np.expm1(-self.probability * low)
        share = float(self.rows @ self.probability)
        missed = capacity + (self.draws - low) * (share - float(hits.sum()))
        return float(min(max(missed, distinct), self.num_indices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Counts of one shard: forward, backward, and its shape (logarithms) for the residual."""

    forward: FloatArray
    backward: FloatArray
    shape: FloatArray


def features(access: Access, *, l2_bytes: float, l3_bytes: float, dense: bool) -> Features:
    """Counts in the order of FORWARD, BACKWARD (or DENSE_BACKWARD) and SHAPE."""
    indices, bags, cols = access.num_indices, access.num_bags, float(access.num_cols)
    distinct = access.distinct()
    in_l2, in_l3 = access.misses(l2_bytes), access.misses(l3_bytes)
    table_bytes = access.num_rows * access.row_bytes
    cold = max(0.0, 1.0 - l3_bytes / max(table_bytes, 1.0))
    from_memory = cold * in_l3
    lines = access.lines
    passes = max(1.0, math.ceil(math.log2(max(access.num_rows, 2)) / 8.0))
    beyond = max(0.0, 1.0 - l2_bytes / max(bags * cols * _ELEMENT_BYTES, 1.0))
    forward = [1.0, bags, bags * cols, indices, indices * cols]
    forward += [in_l2, in_l2 * lines, from_memory, from_memory * lines]
    backward = [1.0, bags, indices, indices * passes, indices * cols, indices * lines * beyond]
    backward += [distinct, distinct * cols, in_l2, in_l2 * lines]
    backward += [from_memory, from_memory * lines]
    if dense:
        cells = float(access.num_rows) * cols
        backward += [cells, max(0.0, cells - l3_bytes / _ELEMENT_BYTES)]
    shape = [indices, distinct, cols, access.num_rows, bags, indices / max(distinct, 1e-9)]
    shape += [access.repeats(), in_l2 / max(indices, 1e-9)]
    return Features(
        forward=np.array(forward),
        backward=np.array(backward),
        shape=np.log(np.maximum(np.array(shape, dtype=float), 1e-9)),
    )
