"""Readers of raw indices: Criteo's text, NumPy's arrays and archives, Parquet."""

from __future__ import annotations

import importlib
import math
import re
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NamedTuple, final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from costmodels import units as si
from costmodels.datatypes import IntArray
from planner.errors import reading, refuse
from planner.support.files import is_gzip, read_unpacked

HEAD_BYTES: Final = 4096
CHUNK_SAMPLES: Final = 65_536
_LEAST_LIMIT_BYTES: Final = 256 * si.MIB
_MOST_PACKING: Final = 100
"""Indices are packed 2 to 10 times; a file that unpacks to more than this is no data."""
_MANY_FEATURES: Final = 1000
"""An array with more columns than this and than rows has its samples in columns."""


class Chunk(NamedTuple):
    """Consecutive samples: a batch of Arrow, whose columns are integers or lists of integers.

    ``where`` names the file and the place in it, for messages.
    """

    batch: Any
    where: str


class Source(NamedTuple):
    """A file, the reader of its format, and what it holds.

    Attributes:
        path: the file.
        reader: reads it.
        names: the names of its features, in order.
        num_samples: how many; an estimate if counting would mean reading all of it.
        left_out: columns that are not taken as features, each with its type.
        can_seek: whether blocks from the middle can be read; otherwise only the first one.
    """

    path: Path
    reader: AbstractReader
    names: tuple[str, ...]
    num_samples: int
    left_out: tuple[str, ...] = ()
    can_seek: bool = True


class AbstractReader(ABC):
    """A reader of one format of raw indices."""

    name: ClassVar[str]
    magic: ClassVar[bytes] = b""
    ids_are_hashes: ClassVar[bool] = False

    def matches(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this format; ``head`` are its first bytes, decompressed.

        Unless a reader looks closer, the file begins with the magic bytes of the format.
        """
        del path
        return head.startswith(self.magic)

    @abstractmethod
    def look(self, path: Path) -> Source:
        """What a file of this format holds.

        Raises:
            InvalidInputError: the file is not of this format.
        """

    @abstractmethod
    def read(self, path: Path, block: slice, names: Sequence[str]) -> Iterator[Chunk]:
        """The samples of a block, by the reader's count, in order, with these features.

        Raises:
            InvalidInputError: the data break a rule; the message has the file, the place and the
                rule.
        """


def steps(block: slice, num_samples: int, size: int = CHUNK_SAMPLES) -> Iterator[tuple[int, int]]:
    """``start, stop`` of the chunks of a block in a file of so many samples."""
    begin, end, _ = block.indices(num_samples)
    for start in range(begin, end, size):
        yield start, min(start + size, end)


def arrow(name: str = "pyarrow") -> Any:
    """The module pyarrow, or another one that the extra ``data`` installs.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
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
    highest = {}
    for name, column in zip(chunk.batch.schema.names, chunk.batch.columns, strict=True):
        where = f"{chunk.where}, {name}"
        values = column.drop_null()
        values = values.flatten() if is_list(column.type) else values
        if not arrow().types.is_integer(values.type):
            refuse(f"{where}: indices must be integers, not {values.type}")
        if values.null_count:
            refuse(f"{where}: a list holds a missing index")
        limits = arrow("pyarrow.compute").min_max(values).as_py()
        low, high = (-1 if limits[end] is None else limits[end] for end in ("min", "max"))
        if low < 0 and len(values):
            refuse(f"{where}: index {low} is negative; indices are rows, from 0")
        if high >= 2**63:
            refuse(f"{where}: index {high} is above 2^63 - 1")
        highest[name] = high
    return highest


def read_head(path: Path) -> bytes:
    """The first bytes of a file, decompressed.

    Raises:
        InvalidInputError: the file cannot be read, or is empty.
    """
    head = read_unpacked(path, HEAD_BYTES)
    if not head:
        refuse(f"{path}: the file is empty")
    return head


def read_all(path: Path) -> bytes:
    """The whole file, decompressed.

    Raises:
        InvalidInputError: the file cannot be read, or unpacks to over a hundred times its size.
    """
    if not is_gzip(path):
        return read_unpacked(path)
    limit = int(max(_LEAST_LIMIT_BYTES, _MOST_PACKING * path.stat().st_size))
    data = read_unpacked(path, limit + 1)
    if len(data) > limit:
        refuse(f"{path}: unpacks to more than {limit} bytes; unpack it with gunzip if it is good")
    return data


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

    def look(self, path: Path) -> Source:
        """The 26 features; samples are estimated from the length of the first lines."""
        head, is_plain = read_head(path), not is_gzip(path)
        if (columns := _num_columns(head)) not in _COLUMNS:
            refuse(
                f"{path}: line 1 has {columns} tab-separated columns; Criteo files have "
                f"{_COLUMNS[0]} (label, 13 integers, 26 categories) or {_COLUMNS[1]} without label"
            )
        num_bytes = path.stat().st_size * (1 if is_plain else 3) * max(head.count(b"\n"), 1)
        samples = max(1, num_bytes // (head.rfind(b"\n") + 1 or len(head)))
        names = tuple(f"cat_{i}" for i in range(_CATEGORIES))
        return Source(path, self, names, samples, can_seek=is_plain)

    def read(self, path: Path, block: slice, names: Sequence[str]) -> Iterator[Chunk]:
        """The lines from the first one that starts where the block does by the estimate."""
        source, size, done = self.look(path), path.stat().st_size, block.start or 0
        samples = source.num_samples
        end = size if block.stop is None else min(size * block.stop // samples, size)
        start, stop = _line_start(path, size * done // samples), _line_start(path, end)
        with reading(f"{path}: cannot be read"), arrow().OSFile(str(path)) as file:
            if not source.can_seek:
                batches = _batches(arrow().CompressedInputStream(file, "gzip"), path, names)
            else:
                batches = _batches(file.get_stream(start, stop - start), path, names)
            for batch in batches if start < stop else ():
                where = f"{path}: near sample {done}"
                features = {n: self._ids(batch.column(n), f"{where}, {n}") for n in names}
                yield Chunk(arrow().RecordBatch.from_pydict(features), where)
                done += batch.num_rows

    def _ids(self, texts: Any, where: str) -> Any:
        """The numbers that hexadecimal texts of up to 8 digits stand for."""
        compute = arrow("pyarrow.compute")
        if not compute.all(compute.match_substring_regex(texts, f"^{_HEX}$")).as_py():
            bad = next(t for t in texts.to_pylist() if not re.fullmatch(_HEX, t))[:24]
            refuse(f"{where}: {bad!r} is not a hexadecimal number of up to 8 digits")
        digits = "".join(compute.ascii_lpad(texts, 8, "0").to_pylist())
        ids = np.frombuffer(bytes.fromhex(digits), dtype=">u4").astype(np.int64)
        missing = None if self.empty_is_zero else np.array(compute.equal(texts, ""))
        return arrow().array(ids, mask=missing)


def _num_columns(head: bytes) -> int:
    return head.split(b"\n", 1)[0].count(b"\t") + 1


def _line_start(path: Path, at: int) -> int:
    """The position of the first line that starts at a position or later."""
    if not at:
        return 0
    with path.open("rb") as file:
        file.seek(at - 1)
        file.readline(_BLOCK_BYTES)
        return file.tell()


def _batches(lines: Any, path: Path, names: Sequence[str]) -> Iterator[Any]:
    """Some columns of the lines of a file, as text."""
    pyarrow, csv, columns = arrow(), arrow("pyarrow.csv"), _num_columns(read_head(path))
    titles = [f"cat_{i - columns + _CATEGORIES}" for i in range(columns)]
    found: Iterator[Any] = csv.open_csv(
        lines,
        read_options=csv.ReadOptions(column_names=titles, block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            include_columns=list(names),
            column_types=dict.fromkeys(names, pyarrow.string()),
            strings_can_be_null=False,
        ),
    )
    yield from found


# ------------------------------------------------------------------ NumPy's arrays


@final
@dataclass(frozen=True, slots=True)
class NpyReader(AbstractReader):
    """Reads one integer array: ``[samples, features]``, or ``[samples]`` for a single feature.

    Features are called ``cat_0``, ``cat_1`` ...; a single feature has the name of its file.
    """

    name: ClassVar[str] = "npy"
    magic: ClassVar[bytes] = b"\x93NUMPY"

    def look(self, path: Path) -> Source:
        """A feature for each column, and rows of the array."""
        num_samples, *columns = _open_npy(path).shape
        names = [f"cat_{i}" for i in range(*columns)] if columns else [path.stem]
        return Source(path, self, tuple(names), num_samples)

    def read(self, path: Path, block: slice, names: Sequence[str]) -> Iterator[Chunk]:
        """Rows of the memory-mapped file."""
        array = _open_npy(path)
        table = array.reshape(len(array), -1)
        order = self.look(path).names
        for start, stop in steps(block, len(table)):
            rows = np.ascontiguousarray(_native(table[start:stop]).T)
            columns = {name: arrow().array(rows[order.index(name)]) for name in names}
            batch = arrow().RecordBatch.from_pydict(columns)
            yield Chunk(batch, f"{path}: samples {start}..{stop - 1}")


def _open_npy(path: Path) -> NDArray[np.generic]:
    """The array as a map of the file."""
    with reading(f"{path}: not a whole .npy file"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of files that Python 2 has written
        array: NDArray[np.generic] = npy_format.open_memmap(path, mode="r")
    _check_array(str(path), array.shape, array.dtype)
    if array.shape[-1] > max(array.shape[0], _MANY_FEATURES):
        refuse(f"{path}: {list(array.shape)} is not [samples, features]; transpose the array")
    return array


def _check_array(where: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    if dtype.kind not in "iu" or len(shape) not in (1, 2) or min(shape) < 1:
        refuse(
            f"{where}: must hold integers in rows, [samples] or [samples, indices], at least 1 of "
            f"each; it holds {dtype} {list(shape)}"
        )


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
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


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

    def look(self, path: Path) -> Source:
        """A feature for each array, and rows of every array."""
        members = _members(path)
        return Source(path, self, tuple(members), next(iter(members.values())).shape[0])

    def read(self, path: Path, block: slice, names: Sequence[str]) -> Iterator[Chunk]:
        """The same samples of all arrays, chunk by chunk."""
        members = {name: member for name, member in _members(path).items() if name in names}
        row_bytes = sum(member.row_bytes for member in members.values())
        size = max(1, min(CHUNK_SAMPLES, _CHUNK_BYTES // row_bytes))
        with reading(f"{path}: damaged"), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            files = {n: stack.enter_context(archive.open(m.file)) for n, m in members.items()}
            for name, file in files.items():
                _header(file)
                file.seek((block.start or 0) * members[name].row_bytes, 1)
            for start, stop in steps(block, next(iter(members.values())).shape[0], size):
                where = f"{path}: samples {start}..{stop - 1}"
                columns = {
                    name: _rows(file, members[name], stop - start, f"{where}, array {name}")
                    for name, file in files.items()
                }
                yield Chunk(arrow().RecordBatch.from_pydict(columns), where)


def _rows(file: IO[bytes], member: _Member, count: int, where: str) -> Any:
    data = file.read(count * member.row_bytes)
    if len(data) != count * member.row_bytes:
        refuse(f"{where}: the file ends early")
    values = arrow().array(_native(np.frombuffer(data, dtype=member.dtype)))
    hot_size = math.prod(member.shape[1:])
    return values if hot_size == 1 else arrow().FixedSizeListArray.from_arrays(values, hot_size)


def _members(path: Path) -> dict[str, _Member]:
    """The arrays of an archive by the names of their features."""
    found = {}
    with reading(f"{path}: not a whole .npz file"), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as file:
                shape, in_columns, dtype = _header(file)
            if in_columns and len(shape) > 1:
                refuse(f"{path}: array {name!r} is stored in columns, and is read in rows")
            _check_array(f"{path}: array {name!r}", shape, dtype)
            member = _Member(info.filename, shape, dtype)
            if member.row_bytes > _CHUNK_BYTES:
                refuse(f"{path}: array {name!r} has more than 64 MiB in each sample; transpose it")
            found[f"cat_{name}" if name.isdigit() else name] = member
    sizes = {name: member.shape[0] for name, member in found.items()}
    if len(set(sizes.values())) != 1:
        refuse(f"{path}: needs arrays, with as many samples each; they have {sizes}")
    return found


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
    magic: ClassVar[bytes] = b"PAR1"

    def look(self, path: Path) -> Source:
        """The columns that have indices; Spark writes a file without rows for empty partitions."""
        file = _open_parquet(path)
        fields = list(file.schema_arrow)
        names = tuple(field.name for field in fields if _holds_indices(field))
        if not names:
            kinds = ", ".join(f"{f.name}: {f.type}" for f in fields[:8])
            refuse(f"{path}: no column of integers or lists of integers; it has {kinds}")
        others = tuple(f"{f.name}: {f.type}" for f in fields if f.name not in names)
        return Source(path, self, names, int(file.metadata.num_rows), others)

    def read(self, path: Path, block: slice, names: Sequence[str]) -> Iterator[Chunk]:
        """Rows of the row groups that overlap the block."""
        file = _open_parquet(path)
        start, end, _ = block.indices(file.metadata.num_rows)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        groups = [i for i, e in enumerate(ends) if e > start and e - sizes[i] < end]
        position = ends[groups[0]] - sizes[groups[0]] if groups else 0
        with reading(f"{path}: damaged"):
            for batch in file.iter_batches(CHUNK_SAMPLES, row_groups=groups, columns=list(names)):
                low = max(start - position, 0)
                high = min(end - position, batch.num_rows)
                position += batch.num_rows
                if low < high:
                    where = f"{path}: samples {position - batch.num_rows}..{position - 1}"
                    yield Chunk(batch.slice(low, high - low).select(list(names)), where)


def _holds_indices(field: Any) -> bool:
    many, types = is_list(field.type), arrow().types
    is_integer = types.is_integer(field.type.value_type if many else field.type)
    return bool(is_integer and (many or field.name.lower() not in _NOT_FEATURES))


def _open_parquet(path: Path) -> Any:
    parquet = arrow("pyarrow.parquet")
    with reading(f"{path}: not a whole parquet file"):
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
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
