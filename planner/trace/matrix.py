"""The all-to-all matrix as nccl-tests' ``alltoallv_perf`` reads it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT_BYTES = 16


def matrix_text(traffic_bytes: NDArray[np.float64]) -> str:
    """A square of whole numbers, row i the bytes that rank i sends to each rank.

    Rounded up to 16 bytes, the alignment of NCCL's messages. ``alltoallv_perf`` reads it from the
    file named by ``NCCL_TESTS_ALLTOALLV_MATRIX_FILE``; its ``-b`` and ``-e`` must be equal and at
    least the largest row or column sum, which the caller prints.
    """
    return "".join(" ".join(map(str, row)) + "\n" for row in whole_bytes(traffic_bytes).tolist())


def whole_bytes(traffic_bytes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Bytes rounded up to the alignment."""
    units = np.ceil(traffic_bytes / _ALIGNMENT_BYTES - 1e-9)
    return np.asarray(units * _ALIGNMENT_BYTES, dtype=np.int64)


def buffer_bytes(traffic_bytes: NDArray[np.float64]) -> int:
    """The size that replaying the matrix needs: its largest row or column sum."""
    whole = whole_bytes(traffic_bytes)
    return int(max(whole.sum(axis=0).max(), whole.sum(axis=1).max()))
