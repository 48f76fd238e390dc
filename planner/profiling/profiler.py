"""Profiles raw indices: finds readers of files, chooses samples, counts, writes ``stats.json``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from planner.errors import InvalidInputError, refuse, refuse_any
from planner.profiling import readers as formats
from planner.profiling import statistics
from planner.profiling.stats import KIND, Stats, StatsSource, TableStats, some_names, stats_text
from planner.support.files import is_stream, write_text_atomic

_NOT_INDICES: Final = re.compile(r"^[._]|(^|_|-)(dense|labels?)(?=[._-]|$)")
_LEAST_BLOCKS: Final = 8
"""So many blocks there are, in all files together, however few samples are asked for."""


Readers = Sequence[formats.AbstractReader]


def profile_files(
    paths: Sequence[Path],
    output: Path,
    options: statistics.ProfileOptions,
    *,
    readers: Readers = formats.READERS,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> Stats:
    """Read raw indices and write their statistics; a profile that fails leaves nothing.

    The same data and options give the same bytes, whatever the memory and however many threads.

    Args:
        paths: files, and folders of files.
        output: the file to write, ``stats.json``.
        options: how to profile.
        readers: the readers to choose from; by default all that need no torch.
        progress: called with what is being done, how much of it is done, and how much there is.

    Raises:
        InvalidInputError: the data, the options or the output are not valid.
    """
    check_output(output)
    sources = find_sources(paths, readers, options.format_name)
    first = sources[0]
    groups = build_table_map(first, options.features, options.by_feature)
    features = [name for group in groups.values() for name in group]
    hashed = any(s.reader.ids_are_hashes for s in sources) and not options.max_ind_range
    place = next(parent for parent in output.absolute().parents if parent.exists())
    tables: dict[str, TableStats] = {}
    with statistics.open_indices(features, place, options.memory_bytes, options.jobs) as indices:
        for done in _read(sources, options, indices):
            progress(*done)
        for table, group in groups.items():
            progress("summing up", len(tables), len(groups))
            tables[table] = statistics.table_stats(indices, table, group, options, hashed=hashed)
        progress("summing up", len(tables), len(tables))
    source = StatsSource(
        formats=sorted({s.reader.name for s in sources}),
        files=[s.path.name for s in sources],
        num_bytes=sum(s.path.stat().st_size for s in sources),
        num_samples=indices.num_samples,
        first_samples=options.first_samples,
        sample_rows=options.sample_rows,
        max_ind_range=options.max_ind_range,
        empty_is_zero=any(getattr(s.reader, "empty_is_zero", False) for s in sources),
        left_out=[] if options.features else list(first.left_out),
    )
    stats = Stats(kind=KIND, schema_version=2, source=source, tables=tables)
    write_text_atomic(output, stats_text(stats))
    return stats


def check_output(output: Path) -> None:
    """Refuse to overwrite a file that does not have statistics, before any work is done.

    Raises:
        InvalidInputError: there is such a file, or a pipe or a device.
    """
    if is_stream(output):
        refuse(f"{output} is a pipe or a device; name a file, such as stats.json")
    if output.is_file() and KIND.encode() not in (output.read_bytes()[:200] or KIND.encode()):
        refuse(f"{output} exists and was not written by 'shardplan profile'; name another output")


def _read(
    sources: Sequence[formats.Source], options: statistics.ProfileOptions, into: statistics.Indices
) -> Iterator[tuple[str, float, float]]:
    """Read the chosen samples of all files; yields progress in samples, by estimates."""
    whole = [(source, slice(0, None), math.inf) for source in sources]
    first, spread = options.first_samples, options.sample_rows
    blocks = whole if spread is None else _spread(sources, spread)
    total = spread or first or sum(source.num_samples for source in sources)
    yield "reading", 0, total
    for source, block, most in blocks:
        left = most if first is None else first - into.num_samples
        chunks = iter(source.reader.read(source.path, block, list(into.highest)))
        while left and (chunk := next(chunks, None)):
            batch = chunk.batch.slice(0, min(left, chunk.batch.num_rows))
            left -= batch.num_rows
            if batch.num_rows:
                into.add(chunk._replace(batch=batch))
            yield "reading", min(into.num_samples, total), total
    yield "reading", total, total


# ------------------------------------------------------------------ files and their samples


def find_sources(
    paths: Sequence[Path], readers: Readers, name: str = "auto"
) -> tuple[formats.Source, ...]:
    """Files with their readers; of a folder, its files of known formats, in natural order.

    Files that hold no samples are passed over, unless none holds any.

    Raises:
        InvalidInputError: a path does not exist, or its format is not known.
    """
    readers = [reader for reader in readers if name in ("auto", reader.name)]
    problems: list[str] = []
    found: list[formats.Source] = []
    for path in paths:
        try:
            found += _in_folder(path, readers) if path.is_dir() else [_known(path, readers)]
        except InvalidInputError as error:
            problems += error.problems
    refuse_any(problems)
    full = [source for source in found if source.num_samples]
    if not full:
        refuse(f"{found[0].path}: has no rows")
    _check_same_features(full)
    return tuple(full)


def _look(path: Path, readers: Readers) -> formats.Source | None:
    """What a file holds that one of these readers knows; None if none does."""
    head = formats.read_head(path)
    return next((reader.look(path) for reader in readers if reader.matches(path, head)), None)


def _known(path: Path, readers: Readers) -> formats.Source:
    if not path.exists():
        refuse(f"{path}: no such file")
    found = _look(path, readers)
    if found is None and len(readers) > 1:
        known = ", ".join(reader.name for reader in readers)
        refuse(f"{path}: not recognised as any of {known}; 'shardplan profile --format' names one")
    return found or readers[0].look(path)


def _in_folder(folder: Path, readers: Readers) -> list[formats.Source]:
    """Files of a folder that a reader knows, without those whose name says that they are others."""
    named = (p for p in sorted(folder.iterdir(), key=_natural) if not _NOT_INDICES.search(p.name))
    files = (path for path in named if path.is_file() and path.stat().st_size)
    found = [source for path in files if (source := _look(path, readers))]
    if not found:
        others = "hidden files, dense parts and labels are read only if they are named"
        words = (f"{folder}: holds no file of raw indices", *folders_inside([folder]), others)
        refuse("; ".join(words))
    return found


def folders_inside(paths: Sequence[Path]) -> tuple[str, ...]:
    """One line for each folder among the paths with folders inside, which are not read."""
    inside = {
        path: sorted(p.name for p in path.iterdir() if p.is_dir() and p.name[0] not in "._")
        for path in paths
        if path.is_dir()
    }
    return tuple(
        f"{path}: folders in it are not read: {some_names(names)}; name them too"
        for path, names in inside.items()
        if names
    )


def _natural(path: Path) -> tuple[tuple[int, str], ...]:
    """A sort key with which ``day_2`` comes before ``day_10``."""
    parts = re.split(r"(\d+)", path.name)
    return tuple((int(p), "") if p.isdecimal() else (-1, p) for p in parts)


def _check_same_features(sources: Sequence[formats.Source]) -> None:
    places = Counter(source.path.resolve() for source in sources)
    twice = [source.path for source in sources if places[source.path.resolve()] > 1]
    if twice:
        refuse(f"{twice[0]}: is named twice; its accesses would count twice")
    first = set(sources[0].names)
    for source in sources[1:]:
        if differing := ", ".join(sorted(first ^ set(source.names))[:6]):
            refuse(f"{source.path}: has other features than {sources[0].path}: {differing}")


def unspread_remark(sources: Sequence[formats.Source], count: int) -> str | None:
    """Of which files a sample of ``count`` has the beginning, such as compressed ones; or None."""
    cut = {source.path for source, _, most in _spread(sources, count) if most < math.inf}
    packed = [s.path.name for s in sources if s.path in cut and not s.can_seek]
    if not packed:
        return None
    return f"{some_names(packed)}: can only be read from the start; --sample-rows took the first"


def _spread(
    sources: Sequence[formats.Source], count: int
) -> list[tuple[formats.Source, slice, float]]:
    """Blocks at even distances, and how many samples of each are read at most.

    Each file gives samples in proportion to its size.
    """
    total = sum(source.num_samples for source in sources)
    found: list[tuple[formats.Source, slice, float]] = []
    for source in sources:
        size = source.num_samples
        share = -(-count * size // total)
        if share >= size:
            found.append((source, slice(0, None), math.inf))
            continue
        blocks = max(
            -(-share // formats.CHUNK_SAMPLES), min(share, -(-_LEAST_BLOCKS * size // total))
        )
        blocks = blocks if source.can_seek else 1
        edges = [size * i // blocks for i in range(blocks + 1)]
        taken = [share * i // blocks for i in range(blocks + 1)]
        for (start, stop), (before, after) in zip(pairwise(edges), pairwise(taken), strict=True):
            found.append((source, slice(start, stop), after - before))
    return found


def build_table_map(
    source: formats.Source, wanted: Sequence[str], by_feature: statistics.ByFeature | None
) -> dict[str, tuple[str, ...]]:
    """The features of each table, in the data's order; without a map one table for each feature.

    Raises:
        InvalidInputError: the data do not have some feature.
    """
    names, shown = source.names, some_names(source.names, 12)
    if source.left_out:
        shown += f", and without indices {', '.join(source.left_out[:12])}"
    mapping = by_feature.tables if by_feature else {}
    asked = {"--features": wanted, "--table-map": mapping}
    missing = {flag: [n for n in given if n not in names] for flag, given in asked.items()}
    refuse_any(
        [
            f"{flag}: the data has no {', '.join(gone[:6])}; it has {shown}"
            for flag, gone in missing.items()
            if gone
        ]
    )
    grouped: dict[str, tuple[str, ...]] = {}
    for name in names:
        if not wanted or name in wanted:
            table = mapping.get(name, name)
            grouped[table] = (*grouped.get(table, ()), name)
    return grouped
