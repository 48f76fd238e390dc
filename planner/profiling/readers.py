"""Readers of raw indices: Criteo's text, NumPy's arrays and archives, Parquet."""

from __future__ import annotations

import gzip
import importlib
import lzma
import math
import re
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, BinaryIO, ClassVar, Final, cast, final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from costmodels import units as si
from costmodels.datatypes import IntArray
from planner.errors import InvalidInputError, refuse

HEAD_BYTES: Final = 4096
CHUNK_SAMPLES: Final = 65_536
_READ_ERRORS: Final = (OSError, EOFError, zlib.error)
_ARRAY_ERRORS: Final = (
    ValueError, TypeError, TokenError, OverflowError, RecursionError, MemoryError, *_READ_ERRORS
)  # fmt: skip
"""What numpy raises for a damaged array; it parses the header as Python text, of any shape."""
_ZIP_ERRORS: Final = (zipfile.BadZipFile, lzma.LZMAError, RuntimeError, *_ARRAY_ERRORS)
"""What zipfile raises too for a damaged archive: a method, version or encryption it has not."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_LEAST_LIMIT_BYTES: Final = 256 * si.MIB
_MOST_PACKING: Final = 100
"""Indices are packed 2 to 10 times; a file that unpacks to more than this is no data."""
_DIMENSIONS: Final = (1, 2)
"""Dimensions of an array of indices."""
_MANY_FEATURES: Final = 1000
"""An array with more columns than this and than rows has its samples in columns."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive samples: for each feature a column of Arrow, integers or lists of integers.

    ``where`` names the file and the place in it, for messages.
    """

    num_samples: int
    features: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class SampleBlock:
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

    def can_seek(self, path: Path) -> bool:
        """Whether blocks from the middle of this file can be read; otherwise only the first one."""
        del path
        return True

    @abstractmethod
    def num_samples(self, path: Path) -> int:
        """Number of samples of the file; an estimate if counting would mean reading all of it."""

    @abstractmethod
    def read(self, path: Path, block: SampleBlock, names: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a block, in order, with these features.

        Raises:
            InvalidInputError: the data break a rule; the message has the file, the place and the
                rule.
        """


def steps(
    block: SampleBlock, num_samples: int, size: int = CHUNK_SAMPLES
) -> Iterator[tuple[int, int]]:
    """``start, stop`` of the chunks of a block in a file of so many samples."""
    end = block.end(num_samples)
    for start in range(block.start, end, size):
        yield start, min(start + size, end)


def first_samples(chunk: Chunk, count: int) -> Chunk:
    """The first ``count`` samples of a chunk."""
    if chunk.num_samples <= count:
        return chunk
    features = {name: column.slice(0, count) for name, column in chunk.features.items()}
    return Chunk(count, features, chunk.where)


def arrow() -> Any:
    """The module pyarrow.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        refuse("raw indices need DuckDB and pyarrow: pip install 'shardplan[data]'")


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
            refuse(f"{where}: indices must be integers, not {values.type}")
        if values.null_count:
            refuse(f"{where}: a list holds a missing index")
        limits = compute.min_max(values).as_py()
        low, high = (-1 if limits[end] is None else limits[end] for end in ("min", "max"))
        if low < 0 and len(values):
            refuse(f"{where}: index {low} is negative; indices are rows, from 0")
        if high >= 2**63:
            refuse(f"{where}: index {high} is above 2^63 - 1")
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


def read_head(path: Path) -> bytes:
    """The first bytes of a file, decompressed.

    Raises:
        InvalidInputError: the file cannot be read, or is empty.
    """
    head = _read(path, HEAD_BYTES)
    if not head:
        refuse(f"{path}: the file is empty")
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
        refuse(
            f"{path}: unpacks to more than {limit} bytes, over {_MOST_PACKING} times its size; "
            "unpack it with gunzip if it is good"
        )
    return data


def _read(path: Path, size: int) -> bytes:
    try:
        with open_bytes(path) as file:
            return file.read(size)
    except _READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        refuse(f"{path}: cannot be read: {reason}")


# ------------------------------------------------------------------ Criteo's text

_BLOCK_BYTES: Final = 1 << 23
_CATEGORIES: Final = 26
_INTEGERS: Final = 13
_COLUMNS: Final = (1 + _INTEGERS + _CATEGORIES, _INTEGERS + _CATEGORIES)
_HEX: Final = "[0-9a-fA-F]{0,8}"


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
            refuse(
                f"{path}: line 1 has {columns} tab-separated columns; Criteo files have "
                f"{_COLUMNS[0]} (label, 13 integers, 26 categories) or {_COLUMNS[1]} without label"
            )
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

    def read(self, path: Path, block: SampleBlock, names: Sequence[str]) -> Iterator[Chunk]:
        """So many lines, from the first one that starts where the block does by the estimate."""
        columns = _num_columns(read_head(path))
        size, samples, left = path.stat().st_size, self.num_samples(path), block.limit
        whole = block.stop is None or not self.can_seek(path)
        stop = None if whole else size * (block.stop or 0) // samples
        with open_bytes(path) as file:
            for lines, offset in _texts(file, size * block.start // samples, stop, path):
                chunk = self._parsed(lines, columns, f"{path}: near byte {offset}", names)
                part = chunk if left is None else first_samples(chunk, left)
                left = None if left is None else left - part.num_samples
                yield part
                if left == 0:
                    return

    def _parsed(self, lines: bytes, columns: int, where: str, names: Sequence[str]) -> Chunk:
        """The samples of some lines; every column is read as text first."""
        pyarrow, csv = arrow(), importlib.import_module("pyarrow.csv")
        titles = [f"cat_{i - columns + _CATEGORIES}" for i in range(columns)]
        try:
            table = csv.read_csv(
                pyarrow.BufferReader(lines),
                read_options=csv.ReadOptions(column_names=titles),
                parse_options=csv.ParseOptions(
                    delimiter="\t", quote_char=False, ignore_empty_lines=False
                ),
                convert_options=csv.ConvertOptions(
                    include_columns=list(names),
                    column_types=dict.fromkeys(names, pyarrow.string()),
                    strings_can_be_null=False,
                ),
            )
        except pyarrow.ArrowInvalid as error:
            refuse(f"{where}: {error}")
        features = {name: self._ids(table[name], f"{where}, {name}") for name in names}
        return Chunk(table.num_rows, features, where)

    def _ids(self, texts: Any, where: str) -> Any:
        """The numbers that hexadecimal texts of up to 8 digits stand for."""
        compute = importlib.import_module("pyarrow.compute")
        if not compute.all(compute.match_substring_regex(texts, f"^{_HEX}$")).as_py():
            bad = next(t for t in texts.to_pylist() if not re.fullmatch(_HEX, t))[:24]
            refuse(f"{where}: {bad!r} is not a hexadecimal number of up to 8 digits")
        digits = "".join(compute.ascii_lpad(texts, 8, "0").to_pylist())
        ids = np.frombuffer(bytes.fromhex(digits), dtype=">u4").astype(np.int64)
        missing = None if self.empty_is_zero else np.array(compute.equal(texts, ""))
        return arrow().array(ids, mask=missing)


def _num_columns(head: bytes) -> int:
    return head.split(b"\n", 1)[0].count(b"\t") + 1


def _texts(file: BinaryIO, start: int, stop: int | None, path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines that start at ``start`` or later and before ``stop``, with their position."""
    offset, rest = 0, b""
    if start > 0:
        file.seek(start - 1)
        offset = start - 1 + len(file.readline())
    while stop is None or offset < stop:
        try:
            read = file.read(_BLOCK_BYTES)
        except _READ_ERRORS as error:
            refuse(f"{path}: near byte {offset}: cannot be read: {error}")
        text = rest + read if read or not rest else rest + b"\n"
        cut = text.rfind(b"\n") + 1
        if stop is not None and offset + cut > stop:
            cut = text.index(b"\n", stop - offset - 1) + 1
        if cut:
            yield text[:cut], offset
        elif len(text) >= _BLOCK_BYTES:
            refuse(
                f"{path}: the line at byte {offset} has more than {_BLOCK_BYTES} bytes; lines of "
                "Criteo files have a few hundred"
            )
        if not read:
            return
        offset, rest = offset + cut, text[cut:]


# ------------------------------------------------------------------ NumPy's arrays


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
        return head.startswith(b"\x93NUMPY")

    def feature_names(self, path: Path) -> tuple[str, ...]:
        """One name for each column."""
        array = _open_npy(path)
        if array.ndim == 1:
            return (path.stem,)
        return tuple(f"cat_{i}" for i in range(array.shape[1]))

    def num_samples(self, path: Path) -> int:
        """Rows of the array."""
        return int(_open_npy(path).shape[0])

    def read(self, path: Path, block: SampleBlock, names: Sequence[str]) -> Iterator[Chunk]:
        """Rows of the memory-mapped file."""
        array = _open_npy(path)
        table = array.reshape(len(array), -1)
        order = self.feature_names(path)
        for start, stop in steps(block, len(table)):
            rows = np.ascontiguousarray(_native(table[start:stop]).T)
            columns = {name: arrow().array(rows[order.index(name)]) for name in names}
            yield Chunk(stop - start, columns, f"{path}: samples {start}..{stop - 1}")


def _open_npy(path: Path) -> NDArray[np.generic]:
    """The array as a map of the file; NumPy maps only what the header says to be integers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of files that Python 2 has written
            with path.open("rb") as file:
                shape, _, dtype = _header(file)
            _check_npy(path, shape, dtype)
            array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except _ARRAY_ERRORS as error:
        if isinstance(error, InvalidInputError):
            raise
        refuse(f"{path}: not a whole .npy file: {error}")
    return array


def _check_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    if dtype.kind not in "iu":
        refuse(
            f"{path}: holds {dtype}, not integers; of Criteo's files per day only "
            "day_N_sparse.npy holds indices"
        )
    if len(shape) not in _DIMENSIONS or min(shape) < 1:
        refuse(f"{path}: needs shape [samples] or [samples, features], has {list(shape)}")
    if shape[-1] > max(shape[0], _MANY_FEATURES):
        refuse(f"{path}: {list(shape)} is not [samples, features]; transpose the array")


def _native(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array in this machine's order of bytes, the only one that Arrow takes."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


# ------------------------------------------------------------------ NumPy's archives

_ZIP_MAGIC: Final = b"PK\x03\x04"
_LOCAL_HEADER_BYTES: Final = 30
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

    def read(self, path: Path, block: SampleBlock, names: Sequence[str]) -> Iterator[Chunk]:
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
                yield Chunk(stop - start, columns, where)


def _read_rows(file: IO[bytes], member: _Member, count: int, where: str) -> Any:
    place = f"{where}, array {member.feature}"
    try:
        data = file.read(count * member.row_bytes)
    except _ZIP_ERRORS as error:
        refuse(f"{place}: damaged: {error}")
    if len(data) != count * member.row_bytes:
        refuse(f"{place}: the file ends early")
    values = arrow().array(_native(np.frombuffer(data, dtype=member.dtype)))
    if member.hot_size == 1:
        return values
    return arrow().FixedSizeListArray.from_arrays(values, member.hot_size)


def _members(path: Path) -> list[_Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            found = [_member(path, archive, info) for info in archive.infolist()]
    except _ZIP_ERRORS as error:
        if isinstance(error, InvalidInputError):
            raise
        refuse(f"{path}: not a whole .npz file: {error}")
    if not found:
        refuse(f"{path}: holds no arrays")
    sizes = {member.feature: member.num_samples for member in found}
    if len(set(sizes.values())) > 1 or not found[0].num_samples:
        refuse(f"{path}: arrays must have as many samples each, at least 1; they have {sizes}")
    return found


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as file:
        shape, in_columns, dtype = _header(file)
    by_columns = in_columns and len(shape) > 1
    is_empty = min(shape[1:], default=1) < 1 or min(shape, default=0) < 0
    if dtype.kind not in "iu" or len(shape) not in _DIMENSIONS or by_columns or is_empty:
        refuse(
            f"{path}: array {name!r} must hold integers in rows, [samples, multi-hot size]; "
            f"it is {dtype} {list(shape)}"
        )
    if math.prod(shape[1:]) * dtype.itemsize > _CHUNK_BYTES:
        most = si.format_bytes(_CHUNK_BYTES)
        refuse(f"{path}: array {name!r} has more than {most} in each sample; transpose it")
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


# ------------------------------------------------------------------ Parquet

_NOT_FEATURES: Final = frozenset({"label", "labels", "click", "clicked", "target", "weight"})
"""Names of columns with one number for each sample that is a result or a weight, not an index."""


@final
@dataclass(frozen=True, slots=True)
class ParquetReader(AbstractReader):
    """Reads columns of integers (one index per sample) or of lists of integers (a bag per sample).

    Missing values are empty bags. Other columns are not features, and neither are integer columns
    called ``label`` and similar names. It needs pyarrow, which the extra ``data`` installs.
    """

    name: ClassVar[str] = "parquet"

    def matches(self, path: Path, head: bytes) -> bool:
        """Whether the file starts with the magic bytes of the format."""
        del path
        return head.startswith(b"PAR1")

    def feature_names(self, path: Path) -> tuple[str, ...]:
        """The names of the columns that have indices."""
        file = _open_parquet(path)
        names = tuple(
            field.name
            for field in file.schema_arrow
            if _holds_indices(field.type)
            and (is_list(field.type) or field.name.lower() not in _NOT_FEATURES)
        )
        if not names:
            kinds = ", ".join(f"{f.name}: {f.type}" for f in list(file.schema_arrow)[:8])
            refuse(f"{path}: no column of integers or lists of integers; it has {kinds}")
        return names

    def left_out(self, path: Path) -> tuple[str, ...]:
        """All other columns, with their types."""
        names = self.feature_names(path)
        return tuple(
            f"{f.name}: {f.type}" for f in _open_parquet(path).schema_arrow if f.name not in names
        )

    def num_samples(self, path: Path) -> int:
        """The number of rows; Spark writes a file without any for each empty partition."""
        return int(_open_parquet(path).metadata.num_rows)

    def read(self, path: Path, block: SampleBlock, names: Sequence[str]) -> Iterator[Chunk]:
        """Rows of the row groups that overlap the block."""
        file = _open_parquet(path)
        end = block.end(file.metadata.num_rows)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        groups = [i for i, e in enumerate(ends) if e > block.start and e - sizes[i] < end]
        position = ends[groups[0]] - sizes[groups[0]] if groups else 0
        try:
            for batch in file.iter_batches(CHUNK_SAMPLES, row_groups=groups, columns=list(names)):
                low = max(block.start - position, 0)
                high = min(end - position, batch.num_rows)
                position += batch.num_rows
                if low < high:
                    where = f"{path}: samples {position - batch.num_rows}..{position - 1}"
                    part = batch.slice(low, high - low)
                    columns = {name: part.column(name) for name in names}
                    yield Chunk(part.num_rows, columns, where)
        except (OSError, arrow().ArrowException) as error:
            refuse(f"{path}: damaged: {error}")


def _holds_indices(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_integer(kind.value_type if is_list(kind) else kind))


def _open_parquet(path: Path) -> Any:
    errors = (OSError, UnicodeDecodeError, arrow().ArrowException)
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
    except errors as error:
        refuse(f"{path}: not a whole parquet file: {error}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        refuse(f"{path}: has several columns of the name {twice[0]!r}; give each its own name")
    return file


READERS: Final[tuple[AbstractReader, ...]] = (
    CriteoTsvReader(),
    NpyReader(),
    NpzReader(),
    ParquetReader(),
)
"""One reader for each format that needs no torch."""
