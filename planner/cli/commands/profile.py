"""``shardplan profile``: index statistics per table from raw indices."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from planner.cli import console
from planner.cli import flags as spec
from planner.cli.days import all_readers
from planner.cli.interrupt import interrupt_in
from planner.cli.progress import bars
from planner.cli.types import FILE, File, Parsed, Texts, ValueKind, count, quantity
from planner.support.cores import usable_cores
from planner.support.text import significant

if TYPE_CHECKING:
    from planner.profiling.profiler import ProfileOptions
    from planner.profiling.stats import BatchStats, Stats, TableStats, ZipfStats

Count = Annotated[int | None, ValueKind(count(2**48), "N")]
FORMATS = ("auto", "criteo_tsv", "npy", "npz", "parquet", "torch")


def _batch_sizes(text: str) -> tuple[int, ...]:
    """``2048,16384``: whole numbers from 1 to 10^8."""
    parts = text.split(",")
    if not all(p.strip().isdecimal() and 1 <= float(p) <= 10**8 for p in parts):
        message = f"{text!r} is not a list of batch sizes such as '2048,16384'"
        raise ValueError(message)
    return tuple(int(float(p)) for p in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFlags(spec.Flags):
    """What is read of the data, and what is counted."""

    output: File = spec.option("", "-o --output", default="stats.json")
    format_name: Annotated[str, ValueKind(click.Choice(FORMATS))] = spec.listed(
        "Format of the data.  [default: auto, told from names and contents]",
        "--format",
        default="auto",
    )
    table_map: Texts = spec.many(
        "Which table a feature belongs to: a workload, lines 'feature: table', or one pair.",
        metavar="FILE|FEATURE=TABLE",
    )
    features: Texts = spec.many("Count only these; repeatable.", metavar="NAME")
    rows: Count = spec.option("Read only the first N samples.")
    sample_rows: Count = spec.option("Read about N samples, spread over the data.")
    max_ind_range: Count = spec.option("Fold ids modulo N, as DLRM's flag does.")
    batch_sizes: Annotated[tuple[int, ...], ValueKind(Parsed("sizes", _batch_sizes), "N,N")] = (
        spec.option(
            "Batch sizes for which distinct rows and reuse are counted.", default="2048,16384"
        )
    )
    empty: Annotated[str, ValueKind(click.Choice(("zero", "skip")))] = spec.option(
        "What an empty cell of a Criteo file is: id 0, as DLRM reads it, or no index.",
        default="zero",
    )
    memory_bytes: Annotated[float, ValueKind(quantity("bytes", positive=True), "SIZE")] = (
        spec.option(
            "Memory for counting, at least 256 MiB; beyond it, DuckDB works on disk.",
            "--memory",
            default="2 GiB",
        )
    )
    jobs: Annotated[int | None, ValueKind(count(1024), "N")] = spec.option(
        "Threads to use.  [default: usable cores]"
    )

    def check(self) -> None:
        """Refuse two ways of choosing samples."""
        if self.rows is not None and self.sample_rows is not None:
            message = "--rows (the first) and --sample-rows (spread) exclude each other; give one"
            raise spec.usage(message)

    def options(self) -> ProfileOptions:
        """How the data are counted."""
        from planner.io.table_map import parse_table_map
        from planner.profiling.profiler import ProfileOptions

        return ProfileOptions(
            format_name=self.format_name,
            features=self.features,
            by_feature=parse_table_map(self.table_map),
            batch_sizes=self.batch_sizes,
            max_ind_range=self.max_ind_range,
            first_samples=self.rows,
            sample_rows=self.sample_rows,
            memory_bytes=self.memory_bytes,
            jobs=self.jobs or usable_cores(),
        )


@click.command(
    cls=spec.StrictCommand, short_help="Measure index statistics per table from raw indices."
)
@click.argument("data", nargs=-1, required=True, type=FILE)
@spec.taking(ProfileFlags)
@spec.output_options
@click.pass_obj
def command(settings: console.Settings, *, data: tuple[Path, ...], flags: ProfileFlags) -> int:
    """Measure how indices fall on the rows of each table, and write stats.json.

    DATA are files or folders: Criteo TSV (plain or gzip), day_N_sparse.npy, MLPerf's multi-hot
    .npz, parquet with integer or list columns, and files of torch.save with KeyedJaggedTensors or
    (indices, offsets, lengths). Counts are exact, however large the data are: what is more than
    --memory goes to the disk of the output. It needs DuckDB: pip install 'shardplan[data]'.

    After Ctrl-C or SIGTERM the exit code is 4, and nothing is left behind.

    Examples:
      shardplan profile day_0_sparse.npy day_1_sparse.npy -o stats.json
      shardplan profile train.txt --max-ind-range 40_000_000 --sample-rows 5_000_000
      shardplan profile clicks/*.parquet --table-map workload.yaml --batch-sizes 4096,65536
    """
    from planner.profiling.indices import LEAST_MEMORY_BYTES
    from planner.profiling.profiler import (
        find_sources,
        folders_inside,
        profile_files,
        unspread_remark,
    )
    from planner.profiling.readers import CriteoTsvReader
    from planner.profiling.stats import left_out_remark, undersampled_remark

    options, output = flags.options(), flags.output or Path("stats.json")
    readers = all_readers(empty_is_zero=flags.empty != "skip")
    try:
        with bars(settings) as progress:
            stats = profile_files(data, output, options, readers=readers, progress=progress)
    except (KeyboardInterrupt, Exception) as error:
        interrupt = interrupt_in(error)
        if interrupt is None:
            raise
        interrupt.add_note("nothing was written")
        raise interrupt from None
    remarks = [left_out_remark(stats.source), undersampled_remark(stats.tables)]
    if (sampled := options.sample_rows) is not None:
        sources = find_sources(data, readers, options.format_name)
        remarks.append(unspread_remark(sources, sampled))
    told = [*folders_inside(data), *(text for text in remarks if text is not None)]
    if options.memory_bytes < LEAST_MEMORY_BYTES:
        told.append("--memory: DuckDB was given 256 MiB, the least that it works with")
    if spec.is_given("empty") and CriteoTsvReader.name not in stats.source.formats:
        told.append("--empty is about Criteo files: there are none, so that it changed nothing")
    console.warn(settings, tuple(told))
    if settings.json:
        from planner.profiling.stats import stats_text

        console.write_json(json.loads(stats_text(stats)))
        console.remark(settings, f"wrote {console.shown_paths((output,))}")
        return 0
    _print(stats, output)
    return 0


def _print(stats: Stats, output: Path) -> None:
    from planner.report.base import Column, Fact, Kind, Section, laid_out
    from planner.report.terminal import print_facts, print_sections

    batch = max(b.batch_size for table in stats.tables.values() for b in table.batches)
    columns, rows = laid_out(
        [(name, table, _largest(table)) for name, table in stats.tables.items()],
        (
            (Column("table"), lambda row: row[0]),
            (Column("rows", Kind.COUNT), lambda row: row[1].num_embeddings),
            (Column("seen", Kind.COUNT, optional=True), lambda row: row[1].num_unique_rows),
            (Column("pool", Kind.COUNT), lambda row: significant(row[1].pooling.mean, 4)),
            (Column("p99", Kind.COUNT), lambda row: row[1].pooling.p99),
            (
                Column("unique", Kind.SHARE),
                lambda row: row[2].mean_unique_rows / max(row[2].mean_indices, 1.0),
            ),
            (Column("next", Kind.SHARE, optional=True), lambda row: row[2].next_batch_ratio),
            (Column("s", Kind.COUNT), lambda row: _law(row[1].zipf, "exponent", "{:.2f}")),
            (
                Column("q", Kind.COUNT, optional=True),
                lambda row: _law(row[1].zipf, "shift", ""),
            ),
            (Column("KS", Kind.COUNT), lambda row: _law(row[1].zipf, "ks_ratio", "{:.3f}")),
            (Column("hot 1%", Kind.SHARE), lambda row: _hot(row[1])),
            (
                Column("cache 10%", Kind.SHARE),
                lambda row: next(c.hit_ratio for c in row[1].cache if c.cached_rows_ratio == 0.1),
            ),
            (
                Column("clustered"),
                lambda row: "-" if (r := row[1].ranges) is None else "yes" if r.clustered else "no",
            ),
        ),
    )
    screen = console.stdout_console()
    source, plural = stats.source, "s" * (len(stats.source.files) > 1)
    print_facts(
        screen,
        (
            Fact(
                label="Data",
                parts=(
                    f"{source.num_samples:,} samples",
                    f"{sum(t.num_indices for t in stats.tables.values()):,} indices",
                    f"{len(stats.tables)} tables",
                    f"{len(source.files)} file{plural} of {', '.join(source.formats)}",
                ),
            ),
        ),
    )
    notes = _notes(stats, batch)
    section = Section(title="Index statistics", columns=columns, rows=rows, notes=notes)
    print_sections(screen, (section,))
    print_facts(screen, (Fact(label="Wrote", parts=(str(output),)),))


def _notes(stats: Stats, batch: int) -> tuple[str, ...]:
    """What the columns are."""
    hashed = any(table.ids_are_hashes for table in stats.tables.values())
    notes: tuple[str, ...] = (
        "seen: distinct rows in the data. pool: mean indices per sample; p99: 99 % of samples have "
        f"at most so many. unique: distinct rows per index in a batch of {batch:,} samples, as "
        "distinct_per_batch of a workload. next: share of these rows that the next batch has too. "
        "s, q: the fitted Zipf-Mandelbrot law (k + q)^-s; KS: its distance from the data, 0 is "
        "perfect. hot 1%: share of accesses on the hottest 1 % of rows. cache 10%: share of hits "
        "of a cache with 10 % of the rows. clustered: whether hot ids lie together.",
    )
    if hashed:
        notes += (
            "Ids are hashes: the number of rows is estimated from the ids seen once and twice. "
            "--max-ind-range folds ids to row numbers.",
        )
    return notes


def _hot(table: TableStats) -> float:
    return next(h.access_ratio for h in table.hottest_rows if h.hottest_rows_ratio == 0.01)


def _largest(table: TableStats) -> BatchStats:
    return max(table.batches, key=lambda b: b.batch_size)


def _law(law: ZipfStats | None, field: str, form: str) -> str:
    """A number of the fitted law; ``-`` without one."""
    if law is None:
        return "-"
    return form.format(getattr(law, field)) if form else significant(getattr(law, field))
