"""Reads Criteo's click logs: tab-separated label, 13 integers, 26 hexadecimal categories."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from costmodels.datatypes import BoolArray, IntArray
from planner.errors import InvalidInputError
from planner.profiling.base import (
    READ_ERRORS,
    AbstractReader,
    Block,
    Chunk,
    arrow,
    first_samples,
    is_gzip,
    open_bytes,
    raw_position,
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


@dataclass(frozen=True, slots=True)
class _Text:
    """Whole lines, where they start, and how many bytes of the file they took."""

    lines: bytes
    offset: int
    num_bytes: int


@final
@dataclass(frozen=True, slots=True)
class CriteoTsvReader(AbstractReader):
    """Reads Criteo Kaggle and Terabyte files, plain or gzip, and test files, which have no label.

    Features are ``cat_0`` to ``cat_25``. The hexadecimal strings are hashes, and not rows. Unless
    ids are taken modulo some number, a table is assumed to have one row for each distinct id.

    Args:
        empty_is_zero: whether an empty category is id 0, as DLRM and TorchRec read it; otherwise
            the sample has no index for that feature.
        jobs: number of threads that read numbers out of text.
    """

    empty_is_zero: bool = True
    jobs: int = 1

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

    def can_seek(self, path: Path) -> bool:
        """Whether the file is not compressed."""
        return not is_gzip(path)

    def num_samples(self, path: Path) -> int:
        """The number of samples, estimated from the length of the first lines."""
        head = read_head(path)
        lines = max(head.count(b"\n"), 1)
        packing = 1 if self.can_seek(path) else 3
        return max(1, path.stat().st_size * packing * lines // (head.rfind(b"\n") + 1 or len(head)))

    def read(self, path: Path, block: Block, names: Sequence[str]) -> Iterator[Chunk]:
        """So many lines, from the first one that starts where the block does by the estimate."""
        columns = _num_columns(read_head(path))
        size, samples, left = path.stat().st_size, self.num_samples(path), block.limit
        whole = block.stop is None or not self.can_seek(path)
        stop = None if whole else size * (block.stop or 0) // samples
        with open_bytes(path) as file:
            offset = _to_line_start(file, size * block.start // samples)
            texts = _texts(file, offset, stop, path)
            for chunk in self._parsed(texts, columns, path, names):
                part = chunk if left is None else first_samples(chunk, left)
                left = None if left is None else left - part.num_samples
                yield part
                if left == 0:
                    return

    def _parsed(
        self, texts: Iterable[_Text], columns: int, path: Path, names: Sequence[str]
    ) -> Iterator[Chunk]:
        """The samples of each text in order; threads parse a few texts ahead."""
        parse = partial(self._parse, columns=columns, path=path, names=names)
        if self.jobs == 1:
            yield from map(parse, texts)
            return
        with ThreadPoolExecutor(self.jobs) as pool:
            waiting: deque[Future[Chunk]] = deque()
            for text in texts:
                waiting.append(pool.submit(parse, text))
                if len(waiting) > self.jobs:
                    yield waiting.popleft().result()
            for future in waiting:
                yield future.result()

    def _parse(self, text: _Text, *, columns: int, path: Path, names: Sequence[str]) -> Chunk:
        data, offset = np.frombuffer(text.lines, dtype=np.uint8), text.offset
        separators = np.flatnonzero((data == _TAB) | (data == _NEWLINE))
        is_line_end = data[separators] == _NEWLINE
        _check_columns(is_line_end, separators, columns, offset, path)
        ends = separators.reshape(-1, columns)
        features: dict[str, Any] = {}
        for name in names:
            number = int(name.removeprefix("cat_"))
            column = columns - _CATEGORIES + number
            starts, stops = ends[:, column - 1] + 1, ends[:, column].copy()
            if column == columns - 1:
                stops -= (data[stops - 1] == _RETURN) & (stops > starts)
            values, lengths = _parse_hex(
                data, starts, stops, f"{path}: category {number} at byte", offset
            )
            missing = None if self.empty_is_zero else lengths == 0
            features[name] = arrow().array(values, mask=missing)
        return Chunk(len(ends), features, f"{path}: near byte {offset}", text.num_bytes)


def _num_columns(head: bytes) -> int:
    return head.split(b"\n", 1)[0].count(b"\t") + 1


def _to_line_start(file: BinaryIO, start: int) -> int:
    """Go to the first line that starts at ``start`` or later; returns its position."""
    if start <= 0:
        return 0
    file.seek(start - 1)
    return start - 1 + len(file.readline())


def _texts(file: BinaryIO, offset: int, stop: int | None, path: Path) -> Iterator[_Text]:
    """Whole lines that start before ``stop``; the last one ends in a newline."""
    rest, told = b"", raw_position(file)
    while stop is None or offset < stop:
        try:
            read = file.read(_BLOCK_BYTES)
        except READ_ERRORS as error:
            message = f"{path}: near byte {offset}: cannot be read: {error}"
            raise InvalidInputError(message) from error
        block = rest + read if read or not rest else rest + b"\n"
        cut = block.rfind(b"\n") + 1
        if stop is not None and offset + cut > stop:
            cut = block.index(b"\n", stop - offset - 1) + 1
        if cut:
            position = raw_position(file)
            yield _Text(block[:cut], offset, position - told)
            told = position
        elif len(block) >= _BLOCK_BYTES:
            message = (
                f"{path}: the line at byte {offset} has more than {_BLOCK_BYTES} bytes; lines of "
                "Criteo files have a few hundred"
            )
            raise InvalidInputError(message)
        if not read:
            return
        offset, rest = offset + cut, block[cut:]


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
    data: NDArray[np.uint8], starts: IntArray, stops: IntArray, where: str, offset: int
) -> tuple[IntArray, IntArray]:
    """Values of all fields of a column, and their lengths in digits."""
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
        row = int(np.argmax(bad))
        start, stop = int(starts[row]), int(stops[row])
        text = data[start : min(stop, start + 24)].tobytes().decode("utf-8", "replace")
        message = (
            f"{where} {offset + start} is {text!r}, not a hexadecimal number of up to 8 digits"
        )
        raise InvalidInputError(message)
    return values, lengths
