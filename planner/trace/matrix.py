"""Writes the all-to-all matrix for ``alltoallv_perf`` of nccl-tests."""

from __future__ import annotations

import numpy as np

from costmodels.datatypes import FloatArray, IntArray

_ALIGNMENT_BYTES = 16


def matrix_text(traffic_bytes: FloatArray) -> str:
    """The matrix as text: row i has the bytes that rank i sends to each rank.

    Numbers are rounded up to 16 bytes, the alignment of NCCL's messages. ``alltoallv_perf`` reads
    the file that ``NCCL_TESTS_ALLTOALLV_MATRIX_FILE`` names. Its flags ``-b`` and ``-e`` have to be
    equal, and at least the largest sum of a row or column (:func:`buffer_bytes`).
    """
    return "".join(" ".join(map(str, row)) + "\n" for row in whole_bytes(traffic_bytes).tolist())


def whole_bytes(traffic_bytes: FloatArray) -> IntArray:
    """Bytes rounded up to the alignment."""
    units = np.ceil(traffic_bytes / _ALIGNMENT_BYTES - 1e-9)
    return np.asarray(units * _ALIGNMENT_BYTES, dtype=np.int64)


def buffer_bytes(traffic_bytes: FloatArray) -> int:
    """Bytes of the buffer to replay the matrix: the largest sum of a row or column."""
    whole = whole_bytes(traffic_bytes)
    return int(max(whole.sum(axis=0).max(), whole.sum(axis=1).max()))
