"""Reads Parquet files: one column of integers or lists of integers for each feature."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Final, final

from planner.errors import InvalidInputError
from planner.profiling.base import CHUNK_SAMPLES, AbstractReader, Block, Chunk, arrow, is_list

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
            and (is_list(field.type) or field.name.lower() not in _NOT_FEATURES)
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

    def num_samples(self, path: Path) -> int:
        """The number of rows."""
        samples = int(_open(path).metadata.num_rows)
        if not samples:
            message = f"{path}: has no rows"
            raise InvalidInputError(message)
        return samples

    def read(self, path: Path, block: Block, names: Sequence[str]) -> Iterator[Chunk]:
        """Rows of the row groups that overlap the block."""
        file = _open(path)
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
                    yield Chunk(part.num_rows, columns, where, part.nbytes)
        except (OSError, arrow().ArrowException) as error:
            message = f"{path}: damaged: {error}"
            raise InvalidInputError(message) from error


def _holds_indices(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_integer(kind.value_type if is_list(kind) else kind))


def _open(path: Path) -> Any:
    errors = (OSError, UnicodeDecodeError, arrow().ArrowException)
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
    except errors as error:
        message = f"{path}: not a whole parquet file: {error}"
        raise InvalidInputError(message) from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"{path}: has several columns of the name {twice[0]!r}; give each its own name"
        raise InvalidInputError(message)
    return file
