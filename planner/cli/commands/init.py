"""``shardplan init``: a commented workload to start from."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, remark, say, shown_paths, typed, warn, write_json
from planner.cli.flags.common import FILE, Count, output_options

DEFAULT_PATH = "workload.yaml"

EXAMPLES = """\b
Examples:
  shardplan init
  shardplan init models/ranking.yaml
  shardplan init ranking.yaml --list tables.csv      columns name, rows, dim, pooling
  shardplan init ranking.yaml --tables 300           made-up tables, to try sizes"""


@click.command(short_help="Write a commented workload file to edit.", epilog=EXAMPLES)
@click.argument("path", type=FILE, default=DEFAULT_PATH)
@click.option(
    "--list", "listed", type=FILE, metavar="FILE",
    help="Take the tables from a list: name, rows, dim, pooling, ...",
)  # fmt: skip
@click.option("--dim", type=Count(16_384), help="Embedding dimension where the list has none.")
@click.option("--tables", type=Count(100_000), metavar="N", help="Make up N tables, to overwrite.")
@output_options
@click.pass_obj
def command(
    settings: Settings, *, path: Path, listed: Path | None, dim: int | None, tables: int | None
) -> int:
    """Write a workload file to edit; PATH is workload.yaml unless given.

    Without --list and --tables, the file is an example that explains every key of training and
    tables. In any case it is a complete, valid workload: you can plan it as it is, and then change
    it. An existing file is never overwritten.

    The list is CSV (commas, semicolons or tabs) with the columns name, rows and dim; it may have
    pooling (mean indices per sample), features, zipf_exponent, dtype, count and others, under their
    usual names. FuxiCTR's feature_map.json, NVIDIA's feature_spec.yaml and TorchEasyRec's
    configurations are read, too. What a list cannot say, such as batch size and dense layers, is
    assumed, and the file marks each such line.
    """
    if listed is not None and tables is not None:
        message = "--list and --tables exclude each other; give one"
        raise click.UsageError(message, click.get_current_context())
    if dim is not None and listed is None:
        message = "--dim is for the tables of --list; give both"
        raise click.UsageError(message, click.get_current_context())
    from planner.cli.flags.inputs import write_template

    warnings = write_template(path, listed=listed, tables=tables, dim=dim)
    if settings.json:
        write_json({"written": str(path)} | ({"warnings": list(warnings)} if warnings else {}))
        return 0
    say(f"Wrote {shown_paths((path,))}")
    warn(settings, warnings)
    remark(settings, f"next: shardplan plan {typed(path)} --system h100_sxm --gpus 8 -o run1")
    return 0
