"""Reads Parquet files: one column of integers or lists of integers for each feature."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

import numpy as np

from costmodels.datatypes import IntArray
from planner.errors import InvalidInputError
from planner.profiling.base import (
    CHUNK_SAMPLES,
    AbstractReader,
    Chunk,
    Jagged,
    Slice,
    checked_indices,
    limited,
)

_MAGIC: Final = b"PAR1"
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
        return head.startswith(_MAGIC)

    def feature_names(self, path: Path) -> tuple[str, ...]:
        """The names of the columns that have indices."""
        file = _open(path)
        names = tuple(
            field.name
            for field in file.schema_arrow
            if _holds_indices(field.type)
            and (_is_list(field.type) or field.name.lower() not in _NOT_FEATURES)
        )
        if not names:
            kinds = ", ".join(f"{f.name}: {f.type}" for f in list(file.schema_arrow)[:8])
            message = f"{path}: no column of integers or lists of integers; it has {kinds}"
            raise InvalidInputError(message)
        return names

    def left_out(self, path: Path) -> tuple[str, ...]:
        """All other columns, with their types."""
        names = self.feature_names(path)
        return tuple(f"{f.name}: {f.type}" for f in _open(path).schema_arrow if f.name not in names)

    def has_samples(self, path: Path) -> bool:
        """Spark writes a file without rows for each empty partition."""
        return bool(_open(path).metadata.num_rows)

    def num_positions(self, path: Path) -> int:
        """The number of samples: a position is a sample."""
        samples = int(_open(path).metadata.num_rows)
        if not samples:
            message = f"{path}: has no rows"
            raise InvalidInputError(message)
        return samples

    def num_samples(self, path: Path) -> int:
        """The number of rows."""
        return self.num_positions(path)

    def cut(self, path: Path, limit: int) -> tuple[int, int]:
        """The first ``limit`` samples, because a position is a sample."""
        samples = min(limit, self.num_positions(path))
        return samples, samples

    def read(self, piece: Slice) -> Iterator[Chunk]:
        """The rows of the piece, from the row groups that overlap it."""
        return limited(self._chunks(piece), piece.limit)

    def _chunks(self, piece: Slice) -> Iterator[Chunk]:
        file = _open(piece.path)
        names = self.feature_names(piece.path)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.cumsum(sizes)
        groups = [
            i
            for i, end in enumerate(ends)
            if end > piece.start and end - sizes[i] < piece.stop and sizes[i]
        ]
        if not groups:
            return
        position = int(ends[groups[0]] - sizes[groups[0]])
        try:
            for batch in file.iter_batches(CHUNK_SAMPLES, row_groups=groups, columns=list(names)):
                low = max(piece.start - position, 0)
                high = min(piece.stop - position, batch.num_rows)
                if low < high:
                    yield _chunk(batch.slice(low, high - low), names, piece.path)
                position += batch.num_rows
        except (OSError, _arrow().ArrowException) as error:
            message = f"{piece.path}: damaged: {error}"
            raise InvalidInputError(message) from error


def _chunk(batch: Any, names: tuple[str, ...], path: Path) -> Chunk:
    features = {name: _jagged(batch.column(name), f"{path}: column {name!r}") for name in names}
    return Chunk(batch.num_rows, features)


def _jagged(column: Any, where: str) -> Jagged:
    arrow = _arrow()
    if not _is_list(column.type):
        present = np.asarray(column.is_valid()).astype(np.int64)
        return Jagged(checked_indices(_to_numpy(column.drop_null()), where), present)
    compute = importlib.import_module("pyarrow.compute")
    lengths = compute.fill_null(compute.list_value_length(column), 0)
    values = column.flatten()
    if values.null_count:
        message = f"{where}: a list holds a missing index"
        raise InvalidInputError(message)
    if arrow.types.is_fixed_size_list(column.type) and column.null_count:
        values = column.drop_null().flatten()
    return Jagged(checked_indices(_to_numpy(values), where), _to_numpy(lengths).astype(np.int64))


def _to_numpy(values: Any) -> IntArray:
    array: IntArray = values.to_numpy(zero_copy_only=False)
    return array


def _holds_indices(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_integer(kind.value_type if _is_list(kind) else kind))


def _is_list(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _open(path: Path) -> Any:
    arrow = _arrow()
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        message = f"{path}: not a whole parquet file: {error}"
        raise InvalidInputError(message) from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"{path}: has several columns of the name {twice[0]!r}; give each its own name"
        raise InvalidInputError(message)
    return file


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        message = "parquet files need pyarrow: pip install 'shardplan[data]'"
        raise InvalidInputError(message) from error
