"""Reads Criteo's click logs: tab-separated label, 13 integers, 26 hexadecimal categories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from costmodels.datatypes import BoolArray, IntArray
from planner.errors import InvalidInputError
from planner.profiling.base import (
    READ_ERRORS,
    AbstractReader,
    Chunk,
    Jagged,
    Slice,
    is_gzip,
    limited,
    open_bytes,
    read_head,
)

_BLOCK_BYTES: Final = 1 << 23
_CATEGORIES: Final = 26
_INTEGERS: Final = 13
_COLUMNS: Final = (1 + _INTEGERS + _CATEGORIES, _INTEGERS + _CATEGORIES)
_HEX_DIGITS: Final = 8
_TAB, _NEWLINE, _RETURN = 9, 10, 13
_BAD: Final = 255


def _hex_values() -> NDArray[np.uint8]:
    values = np.full(256, _BAD, dtype=np.uint8)
    for digit, character in enumerate("0123456789abcdef"):
        values[ord(character)] = values[ord(character.upper())] = digit
    return values


_HEX: Final = _hex_values()


@final
@dataclass(frozen=True, slots=True)
class CriteoTsvReader(AbstractReader):
    """Reads Criteo Kaggle and Terabyte files, plain or gzip, and test files, which have no label.

    Features are ``cat_0`` to ``cat_25``. The hexadecimal strings are hashes, and not rows. Unless
    ids are taken modulo some number, a table is assumed to have one row for each distinct id.

    Args:
        empty_is_zero: whether an empty category is id 0, as DLRM and TorchRec read it; otherwise
            the sample has no index for that feature.
    """

    empty_is_zero: bool = True

    name: ClassVar[str] = "criteo_tsv"
    ids_are_hashes: ClassVar[bool] = True

    def matches(self, path: Path, head: bytes) -> bool:
        """Whether the first line has the right number of columns."""
        del path
        return _num_columns(head) in _COLUMNS and b"\0" not in head

    def feature_names(self, path: Path) -> tuple[str, ...]:
        """The names of the 26 features."""
        columns = _num_columns(read_head(path))
        if columns not in _COLUMNS:
            message = (
                f"{path}: line 1 has {columns} tab-separated columns; Criteo files have "
                f"{_COLUMNS[0]} (label, 13 integers, 26 categories) or {_COLUMNS[1]} without label"
            )
            raise InvalidInputError(message)
        return tuple(f"cat_{i}" for i in range(_CATEGORIES))

    def num_positions(self, path: Path) -> int:
        """A position is a byte; a compressed file has only one."""
        return path.stat().st_size if self.can_split(path) else 1

    def can_split(self, path: Path) -> bool:
        """Whether the file is not compressed."""
        return not is_gzip(path)

    def num_samples(self, path: Path) -> int:
        """The number of samples, estimated from the length of the first lines."""
        head = read_head(path)
        lines = max(head.count(b"\n"), 1)
        packing = 1 if self.can_split(path) else 3
        return max(1, path.stat().st_size * packing * lines // (head.rfind(b"\n") + 1 or len(head)))

    def cut(self, path: Path, limit: int) -> tuple[int, int]:
        """Find the end of the first ``limit`` lines by counting."""
        samples, stop, last = 0, 0, b"\n"
        with open_bytes(path) as file:
            while block := file.read(_BLOCK_BYTES):
                lines = block.count(b"\n")
                if samples + lines >= limit:
                    ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == _NEWLINE)
                    stop += int(ends[limit - samples - 1]) + 1
                    return (stop if self.can_split(path) else 1), limit
                samples, stop, last = samples + lines, stop + len(block), block[-1:]
        samples += last != b"\n"
        return (stop if self.can_split(path) else 1), samples

    def read(self, piece: Slice) -> Iterator[Chunk]:
        """The lines that start inside the piece."""
        return limited(self._chunks(piece), piece.limit)

    def _chunks(self, piece: Slice) -> Iterator[Chunk]:
        columns = _num_columns(read_head(piece.path))
        stop = piece.stop if self.can_split(piece.path) else None
        with open_bytes(piece.path) as file:
            offset = _to_line_start(file, piece.start)
            for block in _blocks(file, offset, stop, piece.path):
                yield self._parse(block, columns, offset, piece.path)
                offset += len(block)

    def _parse(self, block: bytes, columns: int, offset: int, path: Path) -> Chunk:
        data = np.frombuffer(block, dtype=np.uint8)
        separators = np.flatnonzero((data == _TAB) | (data == _NEWLINE))
        is_line_end = data[separators] == _NEWLINE
        _check_columns(is_line_end, separators, columns, offset, path)
        ends = separators.reshape(-1, columns)
        stops = ends[:, -_CATEGORIES:].copy()
        starts = ends[:, -_CATEGORIES - 1 : -1] + 1
        stops[:, -1] -= (data[stops[:, -1] - 1] == _RETURN) & (stops[:, -1] > starts[:, -1])
        values, lengths = _parse_hex(data, starts, stops, offset, path)
        present = (lengths > 0).astype(np.int64)
        features = {}
        for i in range(_CATEGORIES):
            column, have = values[:, i], present[:, i]
            if self.empty_is_zero:
                jagged = Jagged(np.ascontiguousarray(column), np.ones_like(have))
            else:
                jagged = Jagged(column[have > 0], np.ascontiguousarray(have))
            features[f"cat_{i}"] = jagged
        return Chunk(len(ends), features)


def _num_columns(head: bytes) -> int:
    return head.split(b"\n", 1)[0].count(b"\t") + 1


def _to_line_start(file: BinaryIO, start: int) -> int:
    """Go to the first line that starts at ``start`` or later; returns its position."""
    if start == 0:
        return 0
    file.seek(start - 1)
    return start - 1 + len(file.readline())


def _blocks(file: BinaryIO, offset: int, stop: int | None, path: Path) -> Iterator[bytes]:
    """Whole lines, block by block, that start before ``stop``; the last one ends in a newline."""
    rest = b""
    while stop is None or offset < stop:
        want = _BLOCK_BYTES if stop is None else min(_BLOCK_BYTES, stop - offset - len(rest))
        try:
            read = file.read(want) if want > 0 else b""
            if want > 0 and stop is not None and offset + len(rest) + len(read) >= stop:
                read += file.readline() if not read.endswith(b"\n") else b""
        except READ_ERRORS as error:
            message = f"{path}: near byte {offset}: cannot be read: {error}"
            raise InvalidInputError(message) from error
        block = rest + read
        if not read:
            if block:
                yield block + b"\n"
            return
        cut = block.rfind(b"\n") + 1
        rest = block[cut:]
        offset += cut
        if cut:
            yield block[:cut]


def _check_columns(
    is_line_end: BoolArray, ends: IntArray, columns: int, offset: int, path: Path
) -> None:
    """Refuse lines with another number of columns."""
    per_line = np.diff(np.flatnonzero(is_line_end), prepend=-1)
    wrong = np.flatnonzero(per_line != columns)
    if not len(wrong):
        return
    line = int(wrong[0])
    before = int(per_line[:line].sum())
    start = offset + (int(ends[before - 1]) + 1 if before else 0)
    message = (
        f"{path}: the line at byte {start} has {int(per_line[line])} columns, "
        f"the first line of the file {columns}"
    )
    raise InvalidInputError(message)


def _parse_hex(
    data: NDArray[np.uint8], starts: IntArray, stops: IntArray, offset: int, path: Path
) -> tuple[IntArray, IntArray]:
    """Values of all fields, and their lengths in digits."""
    lengths = stops - starts
    values = np.zeros(lengths.shape, dtype=np.int64)
    bad = lengths > _HEX_DIGITS
    last = len(data) - 1
    for i in range(_HEX_DIGITS):
        inside = lengths > i
        digits = _HEX[data[np.minimum(starts + i, last)]]
        bad |= inside & (digits == _BAD)
        values = np.where(inside, (values << 4) | digits, values)
    if bad.any():
        row, column = (int(x[0]) for x in np.nonzero(bad))
        start, stop = int(starts[row, column]), int(stops[row, column])
        text = data[start : min(stop, start + 24)].tobytes().decode("utf-8", "replace")
        message = (
            f"{path}: category {column} at byte {offset + start} is {text!r}, "
            "not a hexadecimal number of up to 8 digits"
        )
        raise InvalidInputError(message)
    return values, lengths
