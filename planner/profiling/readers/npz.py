"""Reads MLPerf's multi-hot indices: ``day_N_sparse_multi_hot.npz``, one array for each table."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Final, final

import numpy as np
from numpy.lib import format as npy_format

from costmodels.datatypes import IntArray
from planner.errors import InvalidInputError
from planner.profiling.base import (
    ARRAY_ERRORS,
    CHUNK_SAMPLES,
    READ_ERRORS,
    AbstractReader,
    Chunk,
    Jagged,
    Slice,
    checked_indices,
    fixed_lengths,
    limited,
)

_ZIP_MAGIC: Final = b"PK\x03\x04"
_LOCAL_HEADER_BYTES: Final = 30
_DIMENSIONS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class _Member:
    """One array: its name in the archive, shape ``[samples, multi-hot size]`` and type."""

    file: str
    feature: str
    num_samples: int
    hot_size: int
    dtype: np.dtype[np.generic]
    data_offset: int | None

    @property
    def row_bytes(self) -> int:
        return self.hot_size * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class NpzReader(AbstractReader):
    """Reads an archive of integer arrays ``[samples, multi-hot size]`` with equally many samples.

    Arrays called ``0``, ``1`` ... become features ``cat_0``, ``cat_1`` ... Archives of
    ``numpy.savez`` can be read from any sample on, compressed ones only from start to end.
    """

    name: ClassVar[str] = "npz"

    def matches(self, path: Path, head: bytes) -> bool:
        """Whether it has the format's name, or is a zip archive whose first file is an array."""
        if not head.startswith(_ZIP_MAGIC):
            return False
        length = int.from_bytes(head[26:28], "little")
        first = head[_LOCAL_HEADER_BYTES : _LOCAL_HEADER_BYTES + length]
        return path.suffix == ".npz" or first.endswith(b".npy")

    def feature_names(self, path: Path) -> tuple[str, ...]:
        """One name for each array."""
        return tuple(member.feature for member in _members(path))

    def num_positions(self, path: Path) -> int:
        """The number of samples: a position is a sample."""
        return _members(path)[0].num_samples

    def num_samples(self, path: Path) -> int:
        """Rows of every array."""
        return self.num_positions(path)

    def cut(self, path: Path, limit: int) -> tuple[int, int]:
        """The first ``limit`` samples, because a position is a sample."""
        samples = min(limit, self.num_positions(path))
        return samples, samples

    def can_split(self, path: Path) -> bool:
        """Whether the arrays are not compressed."""
        return all(member.data_offset is not None for member in _members(path))

    def read(self, piece: Slice) -> Iterator[Chunk]:
        """The same samples of all arrays, chunk by chunk."""
        return limited(self._chunks(piece), piece.limit)

    def _chunks(self, piece: Slice) -> Iterator[Chunk]:
        members = _members(piece.path)
        with ExitStack() as stack:
            files = [_open_at(stack, piece.path, m, piece.start) for m in members]
            for start in range(piece.start, piece.stop, CHUNK_SAMPLES):
                stop = min(start + CHUNK_SAMPLES, piece.stop)
                where = f"{piece.path}: samples {start}..{stop - 1}"
                features = {
                    member.feature: Jagged(
                        _read_rows(file, member, stop - start, where),
                        fixed_lengths(stop - start, member.hot_size),
                    )
                    for member, file in zip(members, files, strict=True)
                }
                yield Chunk(stop - start, features)


def _read_rows(file: IO[bytes], member: _Member, count: int, where: str) -> IntArray:
    place = f"{where}, array {member.feature}"
    try:
        data = file.read(count * member.row_bytes)
    except (zipfile.BadZipFile, *READ_ERRORS) as error:
        message = f"{place}: damaged: {error}"
        raise InvalidInputError(message) from error
    if len(data) != count * member.row_bytes:
        message = f"{place}: the file ends early"
        raise InvalidInputError(message)
    return checked_indices(np.frombuffer(data, dtype=member.dtype), place)


def _open_at(stack: ExitStack, path: Path, member: _Member, start: int) -> IO[bytes]:
    """Open the data of an array at sample ``start``."""
    if member.data_offset is not None:
        plain = stack.enter_context(path.open("rb"))
        plain.seek(member.data_offset + start * member.row_bytes)
        return plain
    archive = stack.enter_context(zipfile.ZipFile(path))
    packed = stack.enter_context(archive.open(member.file))
    _header(packed)
    packed.read(start * member.row_bytes)
    return packed


def _members(path: Path) -> list[_Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            found = [_member(path, archive, info) for info in archive.infolist()]
    except (zipfile.BadZipFile, *ARRAY_ERRORS) as error:
        if isinstance(error, InvalidInputError):
            raise
        message = f"{path}: not a whole .npz file: {error}"
        raise InvalidInputError(message) from error
    if not found:
        message = f"{path}: holds no arrays"
        raise InvalidInputError(message)
    sizes = {member.feature: member.num_samples for member in found}
    if len(set(sizes.values())) > 1 or not found[0].num_samples:
        message = f"{path}: arrays must have as many samples each, at least 1; they have {sizes}"
        raise InvalidInputError(message)
    return found


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as file:
        shape, in_columns, dtype = _header(file)
        header_bytes = file.tell()
    if dtype.kind not in "iu" or len(shape) not in _DIMENSIONS or (in_columns and len(shape) > 1):
        message = (
            f"{path}: array {name!r} must hold integers in rows, [samples, multi-hot size]; "
            f"it is {dtype} {list(shape)}"
        )
        raise InvalidInputError(message)
    return _Member(
        file=info.filename,
        feature=f"cat_{name}" if name.isdigit() else name,
        num_samples=shape[0],
        hot_size=shape[1] if len(shape) > 1 else 1,
        dtype=dtype,
        data_offset=_data_offset(path, info, header_bytes),
    )


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read shape, order and type of an array; the file is then at the data."""
    version = npy_format.read_magic(file)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(file)
    return npy_format.read_array_header_2_0(file)


def _data_offset(path: Path, info: zipfile.ZipInfo, header_bytes: int) -> int | None:
    """Where the data of a stored array begins in the file; None if it is compressed."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(_LOCAL_HEADER_BYTES)
    names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    return info.header_offset + _LOCAL_HEADER_BYTES + names + header_bytes
