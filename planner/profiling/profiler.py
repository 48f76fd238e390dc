"""Profiles raw indices: from the paths of files to ``stats.json``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from costmodels import units as si
from planner.errors import InvalidInputError
from planner.profiling.base import AbstractReader
from planner.profiling.indices import Indices, open_indices
from planner.profiling.sources import (
    ByFeature,
    Selection,
    Source,
    build_table_map,
    default_readers,
    find_sources,
    select,
)
from planner.profiling.statistics import TableWork, table_stats
from planner.profiling.stats import KIND, Stats, TableStats, stats_text
from planner.profiling.stats import Source as SourceStats
from planner.support.files import is_stream, write_text_atomic

DEFAULT_BATCH_SIZES: Final = (2048, 16384)
DEFAULT_MEMORY_BYTES: Final = 2.0 * si.GIB

Progress = Callable[[str, float, float], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How to profile.

    Attributes:
        format_name: name of a reader, or ``auto``.
        features: the features to profile; empty for all.
        by_feature: the tables of features that share one, or whose number of rows is known.
        batch_sizes: samples per batch, for distinct rows and reuse.
        max_ind_range: ids are taken modulo this number, or modulo the table's rows if those are
            known and fewer; None to take them as they are.
        selection: which samples are read.
        memory_bytes: memory for counting; beyond it, DuckDB works on the disk of the output. At
            least 256 MiB are used.
        jobs: number of threads.
    """

    format_name: str = "auto"
    features: tuple[str, ...] = ()
    by_feature: ByFeature | None = None
    batch_sizes: tuple[int, ...] = DEFAULT_BATCH_SIZES
    max_ind_range: int | None = None
    selection: Selection = field(default_factory=Selection)
    memory_bytes: float = DEFAULT_MEMORY_BYTES
    jobs: int = 1


def profile_files(
    paths: Sequence[Path],
    output: Path,
    options: ProfileOptions,
    *,
    readers: Sequence[AbstractReader] | None = None,
    progress: Progress | None = None,
) -> Stats:
    """Read raw indices and write their statistics.

    The same data and options give the same bytes, whatever the memory and however many threads. A
    profile that fails or is stopped leaves nothing.

    Args:
        paths: files, and folders of files.
        output: the file to write, ``stats.json``.
        options: how to profile.
        readers: the readers to choose from; by default all that need no torch.
        progress: called with how far the work is.

    Raises:
        InvalidInputError: the data, the options or the output are not valid.
    """
    tell = progress or _ignore
    check_output(output)
    sources = find_sources(paths, readers or default_readers(), options.format_name)
    first = sources[0]
    names, others = first.reader.feature_names(first.path), first.reader.left_out(first.path)
    table_map = build_table_map(names, options.features, options.by_feature, left_out=others)
    features = [name for _, group in table_map.tables for name in group]
    hashed = any(s.reader.ids_are_hashes for s in sources) and not options.max_ind_range
    place = next(parent for parent in output.absolute().parents if parent.exists())
    tables: dict[str, TableStats] = {}
    with open_indices(features, place, options.memory_bytes, options.jobs) as indices:
        _read(sources, options.selection, features, indices, tell)
        for table, group in table_map.tables:
            tell("summing up", float(len(tables)), float(len(table_map.tables)))
            known = table_map.num_embeddings.get(table)
            tables[table] = _table(table, group, known, indices, options, hashed=hashed)
        tell("summing up", float(len(tables)), float(len(tables)))
        num_samples = indices.num_samples
    source = SourceStats(
        formats=sorted({s.reader.name for s in sources}),
        files=[s.path.name for s in sources],
        num_bytes=sum(s.path.stat().st_size for s in sources),
        num_samples=num_samples,
        first_samples=options.selection.first_samples,
        sample_rows=options.selection.sample_rows,
        max_ind_range=options.max_ind_range,
        empty_is_zero=any(getattr(s.reader, "empty_is_zero", False) for s in sources),
        left_out=[] if options.features else list(others),
    )
    stats = Stats(source=source, tables=tables)
    write_text_atomic(output, stats_text(stats))
    return stats


def check_output(output: Path) -> None:
    """Refuse to overwrite a file that does not have statistics, before any work is done.

    Raises:
        InvalidInputError: there is such a file; the message says what it is.
    """
    if output.is_dir() or is_stream(output):
        what = "a folder" if output.is_dir() else "a pipe or a device"
        message = f"{output} is {what}; name a file, such as stats.json"
        raise InvalidInputError(message)
    if not output.exists():
        parent = next(p for p in output.absolute().parents if p.exists())
        if not parent.is_dir():
            message = f"{output}: {parent} is a file, not a folder"
            raise InvalidInputError(message)
        return
    with output.open("rb") as file:
        head = file.read(200)
    if head and KIND.encode() not in head:
        message = f"{output} exists and was not written by 'shardplan profile'; name another output"
        raise InvalidInputError(message)


def _read(
    sources: Sequence[Source],
    selection: Selection,
    features: Sequence[str],
    indices: Indices,
    tell: Progress,
) -> None:
    """Read the chosen samples of all files."""
    blocks = select(sources, selection)
    total = float(sum(source.path.stat().st_size for source in sources))
    parts = {s.path: sum(source is s for source, _ in blocks) for s in sources}
    done = 0.0
    tell("reading", done, total)
    for source, block in blocks:
        left = source.path.stat().st_size / parts[source.path]
        if selection.first_samples is not None:
            block = replace(block, limit=selection.first_samples - indices.num_samples)
            if not block.limit:
                break
        for chunk in source.reader.read(source.path, block, features):
            if chunk.num_samples:
                indices.add(chunk)
            step = min(left, float(chunk.num_bytes))
            done, left = done + step, left - step
            tell("reading", done, total)
        done += left
    tell("reading", total, total)


def _table(
    table: str,
    features: Sequence[str],
    known: int | None,
    indices: Indices,
    options: ProfileOptions,
    *,
    hashed: bool,
) -> TableStats:
    """Count one table; its rows, if they are known, limit its ids."""
    fold = options.max_ind_range
    if fold is None and known is not None:
        for name in features:
            if (highest := indices.highest[name]) >= known:
                message = (
                    f"feature {name!r} has index {highest}, but table {table!r} has {known} rows; "
                    "correct the table map or fold ids with --max-ind-range"
                )
                raise InvalidInputError(message)
    limit = fold if fold is None or known is None else min(fold, known)
    sums = indices.count(features, limit, sorted(set(options.batch_sizes)))
    if sums.highest < 0:
        message = (
            f"table {table!r} received no index at all; leave its features out with --features"
        )
        raise InvalidInputError(message)
    return table_stats(
        TableWork(
            sums=sums,
            by_range=indices.by_range,
            num_embeddings=known,
            ids_are_hashes=hashed,
            max_ind_range=fold,
        )
    )


def _ignore(what: str, done: float, total: float) -> None:
    del what, done, total
