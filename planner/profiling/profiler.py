"""Profiles raw indices: from the paths of files to ``stats.json``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodels import units as si
from planner.errors import InvalidInputError
from planner.profiling.base import AbstractReader
from planner.profiling.partial import (
    Partial,
    TableMap,
    WorkOptions,
    load_partial,
    unit_name,
    work_on,
)
from planner.profiling.state import State, describe_inputs
from planner.profiling.statistics import TableWork, add_up, table_stats
from planner.profiling.stats import KIND, Stats, stats_text
from planner.profiling.stats import Source as SourceStats
from planner.profiling.table_map import ByFeature, build_table_map
from planner.profiling.units import (
    Selection,
    Source,
    Unit,
    cut_units,
    default_readers,
    find_sources,
)
from planner.profiling.workers import AbstractPool, Serial, open_pool
from planner.support.atomic import write_text_atomic
from planner.support.places import is_stream

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
        max_ind_range: ids are taken modulo this number; None to take them as they are.
        selection: which samples are read.
        memory_bytes: memory for counting, in all processes of this machine together.
        jobs: number of processes.
        dask: address of a Dask scheduler, or ``local``; None to use no cluster.
        resume: whether to continue a stopped profile; None to do so if there is one.
    """

    format_name: str = "auto"
    features: tuple[str, ...] = ()
    by_feature: ByFeature | None = None
    batch_sizes: tuple[int, ...] = DEFAULT_BATCH_SIZES
    max_ind_range: int | None = None
    selection: Selection = field(default_factory=Selection)
    memory_bytes: float = DEFAULT_MEMORY_BYTES
    jobs: int = 1
    dask: str | None = None
    resume: bool | None = None


def profile_files(
    paths: Sequence[Path],
    output: Path,
    options: ProfileOptions,
    *,
    readers: Sequence[AbstractReader] | None = None,
    progress: Progress | None = None,
) -> Stats:
    """Read raw indices and write their statistics.

    The same data and options give the same bytes, whichever processes work, and however often the
    work is stopped. A profile that was stopped, or whose output could not be written, leaves
    finished units beside the output. One that failed because of its data leaves nothing.

    Args:
        paths: files, and folders of files.
        output: the file to write, ``stats.json``.
        options: how to profile.
        readers: the readers to choose from; by default all that need no torch.
        progress: called with how far the work is.

    Raises:
        InvalidInputError: the data, the options or the output are not valid.
        WorkerError: a worker was lost; the next run continues.
    """
    tell = progress or _ignore
    check_output(output)
    sources = find_sources(paths, readers or default_readers(), options.format_name)
    first = sources[0]
    names, others = first.reader.feature_names(first.path), first.reader.left_out(first.path)
    units = cut_units(sources, options.selection)
    jobs = options.jobs if options.dask else min(options.jobs, len(units))
    work_options = WorkOptions(
        table_map=build_table_map(names, options.features, options.by_feature, left_out=others),
        batch_sizes=tuple(sorted(set(options.batch_sizes))),
        max_ind_range=options.max_ind_range,
        budget_bytes=options.memory_bytes / jobs,
    )
    state = State(output)
    state.open(_manifest(sources, work_options, options.selection), resume=options.resume)
    try:
        with open_pool(jobs, options.dask) as pool:
            _read(units, work_options, state, pool, tell)
            stats = _summarise(sources, units, work_options, options, state, pool, tell)
    except BaseException as error:
        if isinstance(error, InvalidInputError) or not any(state.has(unit_name(u)) for u in units):
            state.discard()
        raise
    write_text_atomic(output, stats_text(stats))
    state.discard()
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


def _manifest(sources: Sequence[Source], work: WorkOptions, selection: Selection) -> dict[str, Any]:
    """Everything on which a finished unit depends; memory and workers do not matter."""
    return describe_inputs(
        sources,
        {
            "tables": [[name, list(features)] for name, features in work.table_map.tables],
            "num_embeddings": dict(work.table_map.num_embeddings),
            "batch_sizes": list(work.batch_sizes),
            "max_ind_range": work.max_ind_range,
            "first_samples": selection.first_samples,
            "sample_rows": selection.sample_rows,
            "unit_bytes": selection.unit_bytes,
        },
    )


def _read(
    units: Sequence[Unit], options: WorkOptions, state: State, pool: AbstractPool, tell: Progress
) -> None:
    """Read every unit that is not finished yet."""
    total = float(sum(unit.num_bytes for unit in units))
    missing = [unit for unit in units if not state.has(unit_name(unit))]
    done = total - sum(unit.num_bytes for unit in missing)
    tell("reading", done, total)

    def add(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        tell("reading", done, total)

    if isinstance(pool, Serial):
        for unit in missing:
            work_on(unit, options, state.folder, add)
        return
    task = partial(work_on, options=options, folder=state.folder)
    pool.run(task, missing, lambda i: add(missing[i].num_bytes))
    for unit in missing:
        if not state.has(unit_name(unit)):
            message = (
                f"a worker wrote to {state.folder}, but nothing is there on this machine; put the "
                "output on a disk that all workers share"
            )
            raise InvalidInputError(message)


def _summarise(
    sources: Sequence[Source],
    units: Sequence[Unit],
    work: WorkOptions,
    options: ProfileOptions,
    state: State,
    pool: AbstractPool,
    tell: Progress,
) -> Stats:
    """Merge the units, table by table."""
    parts = [load_partial(state.folder / unit_name(unit)) for unit in units]
    hashed = any(source.reader.ids_are_hashes for source in sources) and not work.max_ind_range
    table_map = work.table_map
    tables = [
        _table_work(i, name, parts, table_map, work, hashed=hashed)
        for i, (name, _) in enumerate(table_map.tables)
    ]
    tell("summing up", 0.0, float(len(tables)))
    finished = 0

    def done(index: int) -> None:
        nonlocal finished
        del index
        finished += 1
        tell("summing up", float(finished), float(len(tables)))

    results = pool.run(table_stats, tables, done)
    return Stats(
        source=SourceStats(
            formats=sorted({source.reader.name for source in sources}),
            files=[source.path.name for source in sources],
            num_bytes=sum(source.path.stat().st_size for source in sources),
            num_samples=sum(part.num_samples for part in parts),
            first_samples=options.selection.first_samples,
            sample_rows=options.selection.sample_rows,
            max_ind_range=work.max_ind_range,
            empty_is_zero=any(getattr(s.reader, "empty_is_zero", False) for s in sources),
            left_out=[] if options.features else list(sources[0].reader.left_out(sources[0].path)),
        ),
        tables={table.name: result for table, result in zip(tables, results, strict=True)},
    )


def _table_work(
    index: int,
    name: str,
    parts: Sequence[Partial],
    table_map: TableMap,
    options: WorkOptions,
    *,
    hashed: bool,
) -> TableWork:
    sums = add_up([part.sums[index] for part in parts])
    if sums.highest_raw < 0:
        message = f"table {name!r} received no index at all; leave its features out with --features"
        raise InvalidInputError(message)
    return TableWork(
        name=name,
        sums=sums,
        runs=tuple(run for part in parts for run in part.runs[index]),
        num_embeddings=table_map.num_embeddings.get(name),
        ids_are_hashes=hashed,
        max_ind_range=options.max_ind_range,
        budget_bytes=options.budget_bytes,
    )


def _ignore(what: str, done: float, total: float) -> None:
    del what, done, total
