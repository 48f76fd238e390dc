"""What readers of raw indices have in common, and the pieces into which files are cut."""

from __future__ import annotations

import gzip
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO, ClassVar, Final, cast, final

import numpy as np
from numpy.typing import NDArray

from costmodels.datatypes import IntArray
from planner.errors import InvalidInputError

HEAD_BYTES: Final = 4096
CHUNK_SAMPLES: Final = 65_536
READ_ERRORS: Final = (OSError, EOFError, zlib.error)
ARRAY_ERRORS: Final = (ValueError, TokenError, *READ_ERRORS)
"""What numpy raises for a damaged array; it parses the header as Python text."""
_GZIP_MAGIC: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Jagged:
    """Indices of one feature for consecutive samples: ``values`` of all, ``lengths`` of each."""

    values: IntArray
    lengths: IntArray


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive samples with all features."""

    num_samples: int
    features: Mapping[str, Jagged]


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a file: positions ``start .. stop - 1``, and of these at most ``limit`` samples.

    Each reader decides what a position is: a sample, a byte, or the whole file. ``num_bytes`` is
    about how much has to be read; progress is counted in it.
    """

    path: Path
    start: int
    stop: int
    num_bytes: int
    limit: int | None = None


class AbstractReader(ABC):
    """A reader of one format of raw indices.

    Readers are sent to other processes and machines, so they have options, but no open files.
    """

    name: ClassVar[str]
    splits: ClassVar[bool] = True
    ids_are_hashes: ClassVar[bool] = False

    @abstractmethod
    def matches(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this format; ``head`` are its first bytes, decompressed."""

    @abstractmethod
    def feature_names(self, path: Path) -> tuple[str, ...]:
        """The names of a file's features, in order.

        Raises:
            InvalidInputError: the file is not of this format.
        """

    def left_out(self, path: Path) -> tuple[str, ...]:
        """Columns of a file that are not taken as features, each with its type; most have none."""
        del path
        return ()

    def has_samples(self, path: Path) -> bool:
        """False for a file that is whole and holds none, as jobs leave for their empty parts."""
        del path
        return True

    @abstractmethod
    def num_positions(self, path: Path) -> int:
        """How many positions the file has; 1 if it cannot be split."""

    @abstractmethod
    def num_samples(self, path: Path) -> int:
        """Number of samples of the file; an estimate if counting would mean reading all of it."""

    @abstractmethod
    def cut(self, path: Path, limit: int) -> tuple[int, int]:
        """``(stop, samples)``: the position after the first ``limit`` samples; their number."""

    @abstractmethod
    def read(self, piece: Slice) -> Iterator[Chunk]:
        """The samples of a piece, in order.

        Raises:
            InvalidInputError: the data break a rule; the message has the file, the place and the
                rule.
        """

    @final
    def whole(self, path: Path) -> Slice:
        """The whole file as one piece."""
        return Slice(path, 0, self.num_positions(path), path.stat().st_size)

    def can_split(self, path: Path) -> bool:
        """Whether this file can be read from the middle."""
        del path
        return self.splits


def limited(chunks: Iterator[Chunk], limit: int | None) -> Iterator[Chunk]:
    """The first ``limit`` samples."""
    left = limit
    for chunk in chunks:
        if left is None:
            yield chunk
            continue
        if left > 0:
            yield first_samples(chunk, left)
        left -= chunk.num_samples
        if left <= 0:
            return


def first_samples(chunk: Chunk, count: int) -> Chunk:
    """The first ``count`` samples of a chunk."""
    if chunk.num_samples <= count:
        return chunk
    features = {}
    for name, jagged in chunk.features.items():
        lengths = jagged.lengths[:count]
        features[name] = Jagged(jagged.values[: int(lengths.sum())], lengths)
    return Chunk(count, features)


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed with gzip, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


def open_bytes(path: Path) -> BinaryIO:
    """A file, decompressed on the fly if it is gzip."""
    if is_gzip(path):
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


def read_head(path: Path) -> bytes:
    """The first bytes of a file, decompressed.

    Raises:
        InvalidInputError: the file cannot be read, or is empty.
    """
    try:
        with open_bytes(path) as file:
            head = file.read(HEAD_BYTES)
    except READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{path}: cannot be read: {reason}"
        raise InvalidInputError(message) from error
    if not head:
        message = f"{path}: the file is empty"
        raise InvalidInputError(message)
    return head


def checked_indices(values: NDArray[np.generic], where: str) -> IntArray:
    """Indices as int64.

    Raises:
        InvalidInputError: they are not integers, or one is negative.
    """
    if values.dtype.kind not in "iu":
        message = f"{where}: indices must be integers, not {values.dtype}"
        raise InvalidInputError(message)
    if values.dtype == np.uint64 and values.size and int(values.max()) >= 2**63:
        message = f"{where}: index {int(values.max())} is above 2^63 - 1"
        raise InvalidInputError(message)
    indices = values.astype(np.int64, copy=False)
    if indices.size and int(indices.min()) < 0:
        message = f"{where}: index {int(indices.min())} is negative; indices are rows, from 0"
        raise InvalidInputError(message)
    return indices


def fixed_lengths(num_samples: int, length: int) -> IntArray:
    """The same number of indices for every sample."""
    return np.full(num_samples, length, dtype=np.int64)


def read_all(path: Path) -> io.BytesIO:
    """The whole file, decompressed.

    Raises:
        InvalidInputError: the compressed data are damaged.
    """
    try:
        with open_bytes(path) as file:
            return io.BytesIO(file.read())
    except READ_ERRORS as error:
        message = f"{path}: cannot be read: {error}"
        raise InvalidInputError(message) from error
