"""Reads indices of ``torch.save``: FBGEMM's (indices, offsets, lengths), KeyedJaggedTensors."""

import importlib
import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from costmodels.datatypes import IntArray
from planner.errors import InvalidInputError, refuse
from planner.profiling import readers
from planner.support.files import once_per_version

_SUFFIXES: Final = (".pt", ".pth", ".pt.gz", ".pth.gz")
_SHAPES: Final = (
    "a KeyedJaggedTensor, a mapping with keys, values and lengths, a tuple (indices, offsets, "
    "lengths) with lengths [tables, batch], or a list of these"
)


@final
@dataclass(frozen=True, slots=True)
class TorchReader(readers.AbstractReader):
    """Reads files of ``torch.save``, plain or gzip, each as a whole.

    It accepts the files of facebookresearch/dlrm_datasets, ``(indices, offsets, lengths)`` with
    tables ``t_0``, ``t_1`` ...; KeyedJaggedTensors; mappings with ``keys``, ``values`` and
    ``lengths``; and lists of these, one for each batch. Code in a file is never run.
    """

    name: ClassVar[str] = "torch"

    def matches(self, path: Path, head: bytes) -> bool:
        """Whether it has the format's name, or is a zip archive with a pickle."""
        if path.name.endswith(_SUFFIXES):
            return True
        return head.startswith(b"PK\x03\x04") and b"data.pkl" in head[:256]

    def look(self, path: Path) -> readers.Source:
        """The keys of the first batch, and the samples of all; a file is read as a whole."""
        chunks = _load(path)
        num_samples = sum(chunk.batch.num_rows for chunk in chunks)
        names = tuple(chunks[0].batch.schema.names)
        return readers.Source(path, self, names, num_samples, can_seek=False)

    def read(self, path: Path, block: slice, names: Sequence[str]) -> Iterator[readers.Chunk]:
        """All samples, batch by batch."""
        del block
        for chunk in _load(path):
            yield chunk._replace(batch=chunk.batch.select([*names]))


@once_per_version(num_kept=2)
def _load(path: Path) -> tuple[readers.Chunk, ...]:
    """The batches of a file, kept because its names are needed before it is read."""
    content = _unpickle(path)
    is_list = isinstance(content, list | tuple) and bool(content) and not _is_tensor(content[-1])
    items = content if is_list else [content]
    chunks = tuple(
        _chunk(item, f"{path}: batch {i}" if len(items) > 1 else str(path))
        for i, item in enumerate(items)
    )
    if not sum(chunk.batch.num_rows for chunk in chunks):
        refuse(f"{path}: holds no samples")
    names = set(chunks[0].batch.schema.names)
    for i, chunk in enumerate(chunks):
        if set(chunk.batch.schema.names) != names:
            refuse(f"{path}: batch {i} has other features than the first one")
    return chunks


def _unpickle(path: Path) -> Any:
    """Load a file; bytes that are none may lead the unpickler to any error.

    KeyedJaggedTensor is the only class that a file may build.

    Raises:
        InvalidInputError: there is no torch, or the file was not written by ``torch.save``.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        refuse(f"{path}: files of torch.save need torch: pip install 'shardplan[torchrec]'")
    data = readers.read_all(path)
    load = partial(torch.load, map_location="cpu", weights_only=True)
    try:
        try:
            return load(io.BytesIO(data))
        except pickle.UnpicklingError:
            with torch.serialization.safe_globals([_jagged_tensor(path)]):
                return load(io.BytesIO(data))
    except InvalidInputError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or ["unreadable"]
        refuse(f"{path}: not tensors written by torch.save: {lines[0][:120]}")


def _jagged_tensor(path: Path) -> Any:
    try:
        return importlib.import_module("torchrec.sparse.jagged_tensor").KeyedJaggedTensor
    except (ImportError, OSError) as error:
        refuse(f"{path}: needs torchrec, if it holds a KeyedJaggedTensor: {error}")


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "numpy") and hasattr(value, "dtype") and hasattr(value, "dim")


def _parts(item: Any, where: str) -> tuple[list[str], Any, Any, Any]:
    """Keys, values, lengths and offsets of a batch in any of its shapes; None for what it lacks."""
    if hasattr(item, "keys") and hasattr(item, "lengths_or_none"):
        if item.variable_stride_per_key():
            refuse(f"{where}: batch sizes that differ per feature are not supported")
        return [str(key) for key in item.keys()], item.values(), item.lengths(), None  # noqa: SIM118
    if isinstance(item, dict) and {"keys", "values"} <= set(item):
        keys = [str(key) for key in item["keys"]]
        return keys, item["values"], item.get("lengths"), item.get("offsets")
    if not isinstance(item, list | tuple) or len(item) != 3:
        refuse(f"{where}: holds {type(item).__name__}; expected {_SHAPES}")
    first, second, third = item
    if isinstance(first, list | tuple):
        return [str(key) for key in first], second, third, None
    per_table = _array(third, where)
    num_tables = per_table.shape[0] if per_table.ndim > 1 else 1
    return [f"t_{i}" for i in range(num_tables)], first, third, second


def _chunk(item: Any, where: str) -> readers.Chunk:
    keys, values, given, offsets = _parts(item, where)
    lengths = _lengths(given, offsets, len(keys), where)
    flat = _array(values, where).reshape(-1)
    if int(lengths.sum()) != len(flat):
        refuse(f"{where}: lengths sum to {int(lengths.sum())}, but there are {len(flat)} indices")
    if len(set(keys)) != len(keys):
        refuse(f"{where}: a feature appears twice in {keys}")
    ends = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
    features = {
        key: readers.bags(flat[ends[i] : ends[i + 1]], lengths[i]) for i, key in enumerate(keys)
    }
    chunk = readers.Chunk(readers.arrow().RecordBatch.from_pydict(features), where)
    readers.check_indices(chunk)
    return chunk


def _lengths(lengths: Any, offsets: Any, num_keys: int, where: str) -> IntArray:
    """``[features, batch]`` lengths, from lengths, offsets, or both if they agree."""
    found = None if lengths is None else _array(lengths, where).reshape(-1)
    if offsets is not None:
        ends = _array(offsets, where).reshape(-1)
        between = np.diff(ends)
        if not len(ends) or ends[0] != 0 or bool(np.any(between < 0)):
            refuse(f"{where}: offsets must ascend from 0")
        if found is not None and not np.array_equal(found, between):
            refuse(f"{where}: offsets and lengths disagree")
        found = between
    if found is None:
        refuse(f"{where}: holds neither lengths nor offsets")
    if not num_keys or len(found) % num_keys:
        refuse(f"{where}: {len(found)} lengths cannot be shared by {num_keys} features")
    counts = found.astype(np.int64)
    if found.dtype.kind not in "iu" or bool(np.any(counts < 0)):
        refuse(f"{where}: lengths must be whole numbers from 0")
    return counts.reshape(num_keys, -1)


def _array(value: Any, where: str) -> NDArray[np.generic]:
    if not _is_tensor(value):
        refuse(f"{where}: expected a tensor, found {type(value).__name__}; expected {_SHAPES}")
    array: NDArray[np.generic] = value.detach().cpu().numpy()
    return array
