"""Finds a reader for each file, and chooses which of its samples are read."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from costmodels import discovery
from planner.errors import InvalidInputError
from planner.profiling.base import CHUNK_SAMPLES, AbstractReader, Block, read_head
from planner.profiling.stats import some_names

_NOT_INDICES: Final = re.compile(r"^[._]|(^|_|-)(dense|labels?)(?=[._-]|$)")
BLOCK_SAMPLES: Final = CHUNK_SAMPLES
"""Most samples of a block where samples are spread over the data."""
_LEAST_BLOCKS: Final = 8
"""So many blocks there are, in all files together, however few samples are asked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file and the reader of its format."""

    path: Path
    reader: AbstractReader


@dataclass(frozen=True, slots=True)
class Selection:
    """Which samples are read.

    Attributes:
        first_samples: number of samples to read from the start; None for all.
        sample_rows: about how many samples to read, in blocks spread evenly over the data; None for
            all.
    """

    first_samples: int | None = None
    sample_rows: int | None = None


def default_readers() -> tuple[AbstractReader, ...]:
    """One reader for each file of :mod:`planner.profiling.readers`."""
    package = importlib.import_module("planner.profiling.readers")
    found = (discovery.load(package, name, AbstractReader)() for name in discovery.names(package))
    return tuple(found)


def find_sources(
    paths: Sequence[Path], readers: Sequence[AbstractReader], name: str = "auto"
) -> tuple[Source, ...]:
    """Files with their readers; of a folder, its files of known formats, in natural order.

    Files that hold no samples are passed over, unless none holds any.

    Raises:
        InvalidInputError: a path does not exist, or its format is not known.
    """
    if name != "auto":
        readers = [reader for reader in readers if reader.name == name]
    problems: list[str] = []
    sources: list[Source] = []
    for path in paths:
        try:
            sources += _in_folder(path, readers) if path.is_dir() else [_source(path, readers)]
        except InvalidInputError as error:
            problems += error.problems
    if problems:
        raise InvalidInputError(problems)
    full = [source for source in sources if source.reader.has_samples(source.path)]
    _check_same_features(full or sources)
    return tuple(full or sources)


def select(sources: Sequence[Source], selection: Selection) -> list[tuple[Source, Block]]:
    """The blocks to read, in order; ``--rows`` ends where enough samples were read."""
    if selection.sample_rows is None:
        return [(source, Block(limit=selection.first_samples)) for source in sources]
    return _spread(sources, selection.sample_rows)


def _source(path: Path, readers: Sequence[AbstractReader]) -> Source:
    if not path.exists():
        message = f"{path}: no such file"
        raise InvalidInputError(message)
    head = read_head(path)
    reader = readers[0] if len(readers) == 1 else _recognise(path, head, readers)
    if reader is None:
        known = ", ".join(reader.name for reader in readers)
        message = (
            f"{path}: not recognised as any of {known}; 'shardplan profile --format' names one"
        )
        raise InvalidInputError(message)
    return Source(path, reader)


def _recognise(path: Path, head: bytes, readers: Sequence[AbstractReader]) -> AbstractReader | None:
    return next((reader for reader in readers if reader.matches(path, head)), None)


def _in_folder(folder: Path, readers: Sequence[AbstractReader]) -> list[Source]:
    """Files of a folder that a reader knows, without those whose name says that they are others."""
    found = []
    for path in sorted(folder.iterdir(), key=_natural):
        if _NOT_INDICES.search(path.name) or not path.is_file() or not path.stat().st_size:
            continue
        reader = _recognise(path, read_head(path), readers)
        if reader is not None:
            found.append(Source(path, reader))
    if not found:
        message = "; ".join((f"{folder}: holds no file of raw indices", *_passed_over(folder)))
        raise InvalidInputError(message)
    return found


def folders_inside(paths: Sequence[Path]) -> tuple[str, ...]:
    """One line for each folder among the paths with folders inside, which are not read."""
    found = ((path, _folders(path)) for path in paths if path.is_dir())
    return tuple(f"{path}: {words}" for path, words in found if words)


def _passed_over(folder: Path) -> list[str]:
    """What is in a folder without files of indices, if it may be what the user meant."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    kept = [name for name in names if _NOT_INDICES.search(name)]
    words = "files of dense parts and labels, and hidden ones, are not read"
    told = [f"{words}: {some_names(kept)}; name them to read them"] if kept else []
    return [*filter(None, [_folders(folder)]), *told]


def _folders(folder: Path) -> str:
    """The names of the folders in a folder; hidden ones only if there are no others."""
    inside = sorted(folder.iterdir(), key=_natural)
    folders = [path.name for path in inside if path.is_dir()]
    shown = [name for name in folders if not name.startswith((".", "_"))]
    names = shown or (folders if len(folders) == len(inside) else [])
    return f"folders in it are not read: {some_names(names)}; name them too" if names else ""


def _natural(path: Path) -> tuple[tuple[int, str], ...]:
    """A sort key with which ``day_2`` comes before ``day_10``."""
    parts = re.split(r"(\d+)", path.name)
    return tuple((int(p), "") if p.isdecimal() else (-1, p) for p in parts)


def _check_same_features(sources: Sequence[Source]) -> None:
    places = Counter(source.path.resolve() for source in sources)
    twice = [source.path for source in sources if places[source.path.resolve()] > 1]
    if twice:
        message = f"{twice[0]}: is named twice; its accesses would count twice"
        raise InvalidInputError(message)
    first = set(sources[0].reader.feature_names(sources[0].path))
    for source in sources[1:]:
        other = set(source.reader.feature_names(source.path))
        if other != first:
            differing = ", ".join(sorted(first ^ other)[:6])
            message = f"{source.path}: has other features than {sources[0].path}: {differing}"
            raise InvalidInputError(message)


def unspread_remark(sources: Sequence[Source], count: int) -> str | None:
    """Of which files a sample of ``count`` has the beginning, such as compressed ones; or None."""
    cut = {source.path for source, block in _spread(sources, count) if block.limit}
    packed = [s.path.name for s in sources if s.path in cut and not s.reader.can_seek(s.path)]
    if not packed:
        return None
    return (
        f"{some_names(packed)}: can only be read from the start, so that the sample has the first "
        "samples, which --sample-rows would spread"
    )


def _spread(sources: Sequence[Source], count: int) -> list[tuple[Source, Block]]:
    """Blocks at even distances; each file gives samples in proportion to its size."""
    sizes = [source.reader.num_samples(source.path) for source in sources]
    total = sum(sizes)
    found = []
    for source, size in zip(sources, sizes, strict=True):
        share = -(-count * size // total)
        if share >= size:
            found.append((source, Block()))
            continue
        blocks = max(-(-share // BLOCK_SAMPLES), min(share, -(-_LEAST_BLOCKS * size // total)))
        blocks = blocks if source.reader.can_seek(source.path) else 1
        edges = [size * i // blocks for i in range(blocks + 1)]
        taken = [share * i // blocks for i in range(blocks + 1)]
        for (start, stop), (before, after) in zip(pairwise(edges), pairwise(taken), strict=True):
            found.append((source, Block(start, stop, after - before)))
    return found


@dataclass(frozen=True, slots=True)
class TableMap:
    """Says which features share a table.

    Attributes:
        tables: name and features of every table, in order.
        num_embeddings: number of rows of those tables for which it is known.
    """

    tables: tuple[tuple[str, tuple[str, ...]], ...]
    num_embeddings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ByFeature:
    """The table of each feature that is named, and the rows of tables whose size is known."""

    tables: Mapping[str, str]
    num_embeddings: Mapping[str, int] = field(default_factory=dict)


def build_table_map(
    names: Sequence[str],
    wanted: Sequence[str],
    by_feature: ByFeature | None,
    *,
    left_out: Sequence[str] = (),
) -> TableMap:
    """The tables of the data's features, in the data's order; without a map one for each feature.

    Raises:
        InvalidInputError: the data do not have some feature.
    """
    mapping = by_feature or ByFeature({})
    unknown = [name for name in wanted if name not in names]
    missing = [name for name in mapping.tables if name not in names]
    shown = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
    if left_out:
        shown += f", and without indices {', '.join(left_out[:12])}"
    problems = []
    if unknown:
        problems.append(f"--features: the data has no {', '.join(unknown[:6])}; it has {shown}")
    if missing:
        problems.append(f"--table-map: the data has no {', '.join(missing[:6])}; it has {shown}")
    if problems:
        raise InvalidInputError(problems)
    grouped: dict[str, list[str]] = {}
    for name in names:
        if not wanted or name in wanted:
            grouped.setdefault(mapping.tables.get(name, name), []).append(name)
    return TableMap(
        tuple((table, tuple(features)) for table, features in grouped.items()),
        {table: rows for table, rows in mapping.num_embeddings.items() if table in grouped},
    )
