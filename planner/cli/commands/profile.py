"""``shardplan profile``: index statistics per table from raw indices."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import click

from planner.cli import console, inputs, spec
from planner.cli.interrupt import StopOnInterrupt
from planner.cli.output import check_output
from planner.io.workload import table_list
from planner.profiling import profiler, statistics, stats
from planner.profiling import readers as formats
from planner.report.base import Column, Fact, Kind, Section
from planner.support.cores import usable_cores
from planner.support.text import counted, significant

Count = Annotated[int | None, spec.count(2**48), "N"]
_NOT_COUNTED = ("output", "table_map", "empty")
"""The flags that are no options of counting."""
_HASHED = (
    "Ids are hashes: the number of rows is estimated from the ids seen once and twice. "
    "--max-ind-range folds ids to row numbers."
)
FORMATS = ("auto", "criteo_tsv", "npy", "npz", "parquet", "torch")


class ProfileFlags(spec.Flags):
    """What is read of the data, and what is counted.

    Attributes:
        output: The file to write.  [default: stats.json]
        format_name: Format of the data; auto: told from names and contents.
        table_map: Which table a feature belongs to: a workload, lines 'feature: table', or one
            pair.
        features: Count only these; repeatable.
        first_samples: Read only the first N samples.
        sample_rows: Read about N samples, spread over the data.
        max_ind_range: Fold ids modulo N, as DLRM's flag does.
        batch_sizes: Batch sizes for which distinct rows are counted.  [default:
            2048,16384]
        empty: What an empty cell of a Criteo file is: id 0, as DLRM reads it, or no index.
        memory_bytes: Memory for counting, at least 256 MiB; beyond it, DuckDB works on
            disk.  [default: 2 GiB]
        jobs: Threads to use.  [default: usable cores]
    """

    rules = ("--rows excludes --sample-rows",)

    output: Annotated[Path, spec.FILE, "FILE", "-o --output"] = Path("stats.json")
    format_name: Annotated[str, click.Choice(FORMATS), "--format"] = "auto"
    table_map: Annotated[spec.Texts, "FILE|FEATURE=TABLE"] = ()
    features: Annotated[spec.Texts, "NAME"] = ()
    first_samples: Annotated[Count, "--rows"] = None
    sample_rows: Count = None
    max_ind_range: Count = None
    batch_sizes: spec.Batches = (2048, 16384)
    empty: Annotated[str, click.Choice(("zero", "skip"))] = "zero"
    memory_bytes: Annotated[float, spec.quantity("bytes", positive=True), "SIZE", "--memory"] = (
        2.0**31
    )
    jobs: Annotated[int | None, spec.count(1024), "N"] = None

    def options(self) -> "statistics.ProfileOptions":
        """How the data are counted."""
        said = {name: value for name, value in asdict(self).items() if name not in _NOT_COUNTED}
        said["jobs"] = self.jobs or usable_cores()
        return statistics.ProfileOptions(
            **said, by_feature=table_list.parse_table_map(self.table_map)
        )


@spec.command("Measure index statistics per table from raw indices.")
def command(flags: ProfileFlags, data: tuple[Path, ...]) -> None:
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
    options, output = flags.options(), flags.output
    check_output(output)
    readers = inputs.all_readers(empty_is_zero=flags.empty != "skip")
    stop = StopOnInterrupt(keeps=False, lost="nothing was written")
    with stop, console.status_line("working") as show:

        def progress(what: str, done: float, total: float) -> None:
            show(f"{what} {min(done / max(total, 1e-9), 1.0):.0%}")

        found = profiler.profile_files(data, output, options, readers=readers, progress=progress)
    lost = stats.left_out_remark(found.source)
    remarks = [*profiler.folders_inside(data), lost, stats.undersampled_remark(found.tables)]
    if (sampled := options.sample_rows) is not None:
        sources = profiler.find_sources(data, readers, options.format_name)
        remarks.append(profiler.unspread_remark(sources, sampled))
    told = [text for text in remarks if text is not None]
    if options.memory_bytes < statistics.LEAST_MEMORY_BYTES:
        told.append("--memory: DuckDB was given 256 MiB, the least that it works with")
    if "--empty" in spec.given_flags() and formats.CriteoTsvReader.name not in found.source.formats:
        told.append("--empty is about Criteo files: there are none, so that it changed nothing")
    console.warn(tuple(told))
    console.tell(json.loads(stats.stats_text(found)), _sections(found, output))
    if console.settings().json:
        console.remark(f"wrote {console.shown_paths((output,))}")


def _sections(found: "stats.Stats", output: Path) -> Iterator[Section]:
    batch = max(b.batch_size for table in found.tables.values() for b in table.batches)
    source = found.source
    parts = (
        f"{source.num_samples:,} samples",
        f"{sum(t.num_indices for t in found.tables.values()):,} indices",
        f"{len(found.tables)} tables",
        f"{counted(len(source.files), 'file')} of {', '.join(source.formats)}",
    )
    yield Section("", (Fact("Data", parts),))
    hashed = (_HASHED,) if any(t.ids_are_hashes for t in found.tables.values()) else ()
    yield Section.of(
        "Index statistics",
        [(name, t, max(t.batches, key=lambda b: b.batch_size)) for name, t in found.tables.items()],
        {
            "table": lambda row: row[0],
            "rows": lambda row: f"{row[1].num_embeddings:,}",
            "seen?": lambda row: f"{row[1].num_unique_rows:,}",
            "pool": lambda row: significant(row[1].pooling.mean, 4),
            "p99": lambda row: f"{row[1].pooling.p99:,.0f}",
            Column("unique", Kind.SHARE): lambda row: (
                row[2].mean_unique_rows / max(row[2].mean_indices, 1.0)
            ),
            Column("next", Kind.SHARE, optional=True): lambda row: row[2].next_batch_ratio,
            "s": lambda row: _law(row[1], "exponent", "{:.2f}"),
            "q?": lambda row: _law(row[1], "shift", ""),
            "KS": lambda row: _law(row[1], "ks_ratio", "{:.3f}"),
            Column("hot 1%", Kind.SHARE): lambda row: row[1].hottest_rows["0.01"],
            Column("cache 10%", Kind.SHARE): lambda row: row[1].cache["0.1"],
            "clustered": lambda row: (
                "-" if (r := row[1].ranges) is None else "yes" if r.clustered else "no"
            ),
        },
        notes=(
            "seen: distinct rows in the data. pool: mean indices per sample; p99: 99 % of samples "
            "have at most so many. unique: distinct rows per index in a batch of "
            f"{batch:,} samples, as distinct_per_batch of a workload. next: share of these rows "
            "that the next batch has too. s, q: the fitted Zipf-Mandelbrot law (k + q)^-s; KS: its "
            "distance from the data, 0 is perfect. hot 1%: share of accesses on the hottest 1 % of "
            "rows. cache 10%: share of hits of a cache with 10 % of the rows. clustered: whether "
            "hot ids lie together.",
            *hashed,
        ),
    )
    yield Section("", (Fact("Wrote", (str(output),)),))


def _law(table: "stats.TableStats", field: str, form: str) -> str:
    """A number of the fitted law; ``-`` without one."""
    if table.zipf is None:
        return "-"
    number = getattr(table.zipf, field)
    return form.format(number) if form else significant(number)
