"""Reads MLPerf's multi-hot indices: ``day_N_sparse_multi_hot.npz``, one array for each table."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Final, final

import numpy as np
from numpy.lib import format as npy_format

from planner.errors import InvalidInputError
from planner.profiling.base import (
    ARRAY_ERRORS,
    CHUNK_SAMPLES,
    READ_ERRORS,
    AbstractReader,
    Block,
    Chunk,
    arrow,
    steps,
)

_ZIP_MAGIC: Final = b"PK\x03\x04"
_LOCAL_HEADER_BYTES: Final = 30
_DIMENSIONS: Final = (1, 2)
_CHUNK_BYTES: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class _Member:
    """One array: its name in the archive, shape ``[samples, multi-hot size]`` and type."""

    file: str
    feature: str
    num_samples: int
    hot_size: int
    dtype: np.dtype[np.generic]

    @property
    def row_bytes(self) -> int:
        return self.hot_size * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class NpzReader(AbstractReader):
    """Reads an archive of integer arrays ``[samples, multi-hot size]`` with equally many samples.

    Arrays called ``0``, ``1`` ... become features ``cat_0``, ``cat_1`` ... A block in the middle is
    reached by reading what is before it.
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

    def num_samples(self, path: Path) -> int:
        """Rows of every array."""
        return _members(path)[0].num_samples

    def read(self, path: Path, block: Block, names: Sequence[str]) -> Iterator[Chunk]:
        """The same samples of all arrays, chunk by chunk."""
        members = [member for member in _members(path) if member.feature in names]
        row_bytes = sum(member.row_bytes for member in members)
        size = max(1, min(CHUNK_SAMPLES, _CHUNK_BYTES // max(row_bytes, 1)))
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            files = [stack.enter_context(archive.open(member.file)) for member in members]
            for file, member in zip(files, members, strict=True):
                _header(file)
                file.seek(block.start * member.row_bytes, 1)
            for start, stop in steps(block, members[0].num_samples, size):
                where = f"{path}: samples {start}..{stop - 1}"
                columns = {
                    member.feature: _read_rows(file, member, stop - start, where)
                    for member, file in zip(members, files, strict=True)
                }
                yield Chunk(stop - start, columns, where, (stop - start) * row_bytes)


def _read_rows(file: IO[bytes], member: _Member, count: int, where: str) -> Any:
    place = f"{where}, array {member.feature}"
    try:
        data = file.read(count * member.row_bytes)
    except (zipfile.BadZipFile, *READ_ERRORS) as error:
        message = f"{place}: damaged: {error}"
        raise InvalidInputError(message) from error
    if len(data) != count * member.row_bytes:
        message = f"{place}: the file ends early"
        raise InvalidInputError(message)
    values = arrow().array(np.frombuffer(data, dtype=member.dtype))
    if member.hot_size == 1:
        return values
    return arrow().FixedSizeListArray.from_arrays(values, member.hot_size)


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
    )


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read shape, order and type of an array; the file is then at the data."""
    version = npy_format.read_magic(file)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(file)
    return npy_format.read_array_header_2_0(file)
