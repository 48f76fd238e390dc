"""Small data sets, written in the shapes that the formats document."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from costmodels.datatypes import IntArray
from costmodels.distribution.zipf import Zipf
from planner.profiling.readers import (
    AbstractReader,
    CriteoTsvReader,
    check_indices,
    is_list,
)
from planner.profiling.statistics import ProfileOptions

SAMPLES = 6_000
OPTIONS = ProfileOptions(batch_sizes=(64, 1_000))
TEXT_OPTIONS = dataclasses.replace(OPTIONS, features=("cat_0", "cat_5"))
SKIPPING = CriteoTsvReader(empty_is_zero=False)


def zipf_ids(rows: int, exponent: float, shift: float, count: int, seed: int = 0) -> IntArray:
    """Independent draws; id order is frequency order."""
    rng = np.random.default_rng(seed)
    size, probability = Zipf(num_embeddings=rows, exponent=exponent, shift=shift).frequency_bins()
    mass = size * probability
    per_bin = rng.multinomial(count, mass / mass.sum())
    start = np.cumsum(size) - size
    ids = np.repeat(start, per_bin) + rng.integers(0, np.repeat(size, per_bin).astype(np.int64))
    rng.shuffle(ids)
    return ids.astype(np.int64)


def day_columns(seed: int = 0) -> IntArray:
    """One day of three tables, ``[SAMPLES, 3]``."""
    return np.stack(
        [
            zipf_ids(5_000, 1.1, 2.0, SAMPLES, seed),
            zipf_ids(100_000, 0.8, 0.0, SAMPLES, seed + 1),
            zipf_ids(3, 0.0, 0.0, SAMPLES, seed + 2),
        ],
        axis=1,
    )


def two_days(folder: Path) -> list[Path]:
    """Two files of one-hot indices of three tables."""
    return [write_npy(folder / f"day_{i}_sparse.npy", day_columns(10 * i)) for i in range(2)]


def write_tsv(
    path: Path, categories: Sequence[Sequence[int | None]], *, end: str = "\n", label: bool = True
) -> Path:
    """Criteo's shape: label, 13 integers (some empty), 26 categories of 8 hexadecimal digits."""
    lines = []
    for i, row in enumerate(categories):
        integers = ["" if (i + k) % 5 == 0 else str(i * k - 1) for k in range(13)]
        texts = ["" if value is None else f"{value:08x}" for value in row]
        lines.append("\t".join([*(["1"] if label else []), *integers, *texts]))
    data = (end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_npy(path: Path, columns: Mapping[str, IntArray] | IntArray) -> Path:
    array = columns if isinstance(columns, np.ndarray) else np.stack(list(columns.values()), 1)
    np.save(path, array.astype(np.int32))
    return path


def write_npz(path: Path, arrays: Sequence[IntArray], *, compressed: bool = False) -> Path:
    named = {str(i): array.astype(np.int32) for i, array in enumerate(arrays)}
    (np.savez_compressed if compressed else np.savez)(path, **named)  # type: ignore[arg-type]
    return path


def read_bags(
    reader: AbstractReader, path: Path, blocks: Sequence[slice] | None = None
) -> dict[str, list[list[int]]]:
    """Every sample's indices per feature, as a reader gives them."""
    names = reader.look(path).names
    found: dict[str, list[list[int]]] = {name: [] for name in names}
    for block in blocks or [slice(0, None)]:
        for chunk in reader.read(path, block, names):
            check_indices(chunk)
            assert set(chunk.batch.schema.names) == set(names)
            for name, column in zip(chunk.batch.schema.names, chunk.batch.columns, strict=True):
                values = column.to_pylist()
                if is_list(column.type):
                    found[name] += [value or [] for value in values]
                else:
                    found[name] += [[] if value is None else [value] for value in values]
    return found


def halves(reader: AbstractReader, path: Path, parts: int = 2) -> list[slice]:
    """A file cut into blocks of equal size."""
    samples = reader.look(path).num_samples
    edges = [samples * i // parts for i in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
