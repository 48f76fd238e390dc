"""Reads arrays of one-hot indices: ``day_N_sparse.npy``, samples x features, integers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from planner.errors import InvalidInputError
from planner.profiling.base import ARRAY_ERRORS, AbstractReader, Block, Chunk, arrow, steps

MAGIC: Final = b"\x93NUMPY"
_DIMENSIONS: Final = (1, 2)


@final
@dataclass(frozen=True, slots=True)
class NpyReader(AbstractReader):
    """Reads one integer array: ``[samples, features]``, or ``[samples]`` for a single feature.

    Features are called ``cat_0``, ``cat_1`` ...; a single feature has the name of its file.
    """

    name: ClassVar[str] = "npy"

    def matches(self, path: Path, head: bytes) -> bool:
        """Whether the file starts with the magic bytes of the format."""
        del path
        return head.startswith(MAGIC)

    def feature_names(self, path: Path) -> tuple[str, ...]:
        """One name for each column."""
        array = _open(path)
        if array.ndim == 1:
            return (path.stem,)
        return tuple(f"cat_{i}" for i in range(array.shape[1]))

    def num_samples(self, path: Path) -> int:
        """Rows of the array."""
        return int(_open(path).shape[0])

    def read(self, path: Path, block: Block, names: Sequence[str]) -> Iterator[Chunk]:
        """Rows of the memory-mapped file."""
        array = _open(path)
        table = array.reshape(len(array), -1)
        order = self.feature_names(path)
        for start, stop in steps(block, len(table)):
            rows = np.ascontiguousarray(table[start:stop].T)
            columns = {name: arrow().array(rows[order.index(name)]) for name in names}
            yield Chunk(stop - start, columns, f"{path}: samples {start}..{stop - 1}", rows.nbytes)


def _open(path: Path) -> NDArray[np.generic]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of files that Python 2 has written
            array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ARRAY_ERRORS as error:
        message = f"{path}: not a whole .npy file: {error}"
        raise InvalidInputError(message) from error
    if array.dtype.kind not in "iu":
        message = (
            f"{path}: holds {array.dtype}, not integers; of Criteo's files per day only "
            "day_N_sparse.npy holds indices"
        )
        raise InvalidInputError(message)
    if array.ndim not in _DIMENSIONS or 0 in array.shape:
        message = f"{path}: needs shape [samples] or [samples, features], has {list(array.shape)}"
        raise InvalidInputError(message)
    return array
