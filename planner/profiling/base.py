"""What readers of raw indices have in common."""

from __future__ import annotations

import gzip
import importlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from costmodels import units as si
from costmodels.datatypes import IntArray
from planner.errors import InvalidInputError

HEAD_BYTES: Final = 4096
CHUNK_SAMPLES: Final = 65_536
READ_ERRORS: Final = (OSError, EOFError, zlib.error)
ARRAY_ERRORS: Final = (ValueError, TokenError, *READ_ERRORS)
"""What numpy raises for a damaged array; it parses the header as Python text."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_LEAST_LIMIT_BYTES: Final = 256 * si.MIB
_MOST_PACKING: Final = 100
"""Indices are packed 2 to 10 times; a file that unpacks to more than this is no data."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive samples: for each feature a column of Arrow, integers or lists of integers.

    ``where`` names the file and the place in it, for messages. ``num_bytes`` is about how much of
    the file was read for it; progress is counted in it.
    """

    num_samples: int
    features: Mapping[str, Any]
    where: str
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Samples ``start .. stop - 1`` of a file, by its reader's count, and of these the first.

    Attributes:
        start: the first sample.
        stop: the sample after the last one; None for all that follow.
        limit: so many samples are read at most; None for all.
    """

    start: int = 0
    stop: int | None = None
    limit: int | None = None

    def end(self, num_samples: int) -> int:
        """The sample after the last one, in a file of so many samples."""
        stop = num_samples if self.stop is None else min(self.stop, num_samples)
        return stop if self.limit is None else min(stop, self.start + self.limit)


class AbstractReader(ABC):
    """A reader of one format of raw indices."""

    name: ClassVar[str]
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

    def can_seek(self, path: Path) -> bool:
        """Whether blocks from the middle of this file can be read; otherwise only the first one."""
        del path
        return True

    @abstractmethod
    def num_samples(self, path: Path) -> int:
        """Number of samples of the file; an estimate if counting would mean reading all of it."""

    @abstractmethod
    def read(self, path: Path, block: Block, names: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a block, in order, with these features.

        Raises:
            InvalidInputError: the data break a rule; the message has the file, the place and the
                rule.
        """


def steps(block: Block, num_samples: int, size: int = CHUNK_SAMPLES) -> Iterator[tuple[int, int]]:
    """``start, stop`` of the chunks of a block in a file of so many samples."""
    end = block.end(num_samples)
    for start in range(block.start, end, size):
        yield start, min(start + size, end)


def first_samples(chunk: Chunk, count: int) -> Chunk:
    """The first ``count`` samples of a chunk."""
    if chunk.num_samples <= count:
        return chunk
    features = {name: column.slice(0, count) for name, column in chunk.features.items()}
    return Chunk(count, features, chunk.where, chunk.num_bytes)


def arrow() -> Any:
    """The module pyarrow.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        message = "raw indices need DuckDB and pyarrow: pip install 'shardplan[data]'"
        raise InvalidInputError(message) from error


def bags(values: NDArray[np.generic], lengths: IntArray) -> Any:
    """A column of lists: the indices of all samples, and how many each sample has."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return arrow().LargeListArray.from_arrays(ends, values)


def is_list(kind: Any) -> bool:
    """Whether a type of Arrow is one of lists."""
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def check_indices(chunk: Chunk) -> dict[str, int]:
    """Refuse what cannot be a row; returns the highest index of each feature, -1 without any.

    Raises:
        InvalidInputError: indices are not integers, negative, above 2^63 - 1, or missing in a list.
    """
    compute = importlib.import_module("pyarrow.compute")
    highest = {}
    for name, column in chunk.features.items():
        where = f"{chunk.where}, {name}"
        values = column.drop_null()
        values = values.flatten() if is_list(column.type) else values
        if not arrow().types.is_integer(values.type):
            message = f"{where}: indices must be integers, not {values.type}"
            raise InvalidInputError(message)
        if values.null_count:
            message = f"{where}: a list holds a missing index"
            raise InvalidInputError(message)
        limits = compute.min_max(values).as_py()
        low, high = (-1 if limits[end] is None else limits[end] for end in ("min", "max"))
        if low < 0 and len(values):
            message = f"{where}: index {low} is negative; indices are rows, from 0"
            raise InvalidInputError(message)
        if high >= 2**63:
            message = f"{where}: index {high} is above 2^63 - 1"
            raise InvalidInputError(message)
        highest[name] = high
    return highest


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed with gzip, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


def open_bytes(path: Path) -> BinaryIO:
    """A file, decompressed on the fly if it is gzip."""
    if is_gzip(path):
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


def raw_position(file: BinaryIO) -> int:
    """How many bytes of a file that :func:`open_bytes` opened were read, before unpacking."""
    raw = getattr(file, "fileobj", None)
    return cast("BinaryIO", raw or file).tell()


def read_head(path: Path) -> bytes:
    """The first bytes of a file, decompressed.

    Raises:
        InvalidInputError: the file cannot be read, or is empty.
    """
    head = _read(path, HEAD_BYTES)
    if not head:
        message = f"{path}: the file is empty"
        raise InvalidInputError(message)
    return head


def read_all(path: Path) -> bytes:
    """The whole file, decompressed.

    Raises:
        InvalidInputError: the file cannot be read, or unpacks to over a hundred times its size.
    """
    if not is_gzip(path):
        return _read(path, -1)
    limit = int(max(_LEAST_LIMIT_BYTES, _MOST_PACKING * path.stat().st_size))
    data = _read(path, limit + 1)
    if len(data) > limit:
        message = (
            f"{path}: unpacks to more than {limit} bytes, over {_MOST_PACKING} times its size; "
            "unpack it with gunzip if it is good"
        )
        raise InvalidInputError(message)
    return data


def _read(path: Path, size: int) -> bytes:
    try:
        with open_bytes(path) as file:
            return file.read(size)
    except READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{path}: cannot be read: {reason}"
        raise InvalidInputError(message) from error
