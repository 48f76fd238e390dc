"""``shardplan predict``: one operation at a time, for anyone's measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, write_json
from planner.cli.flags import FILE, output_options

if TYPE_CHECKING:
    from planner.predict import Predicted, Table

EXAMPLES = """\b
Examples:
  shardplan predict collective nccl.csv --system h100_sxm
  shardplan predict collective nccl.csv --system my_box.yaml -o predicted.csv"""

COLLECTIVE_COLUMNS = ("collective", "size_bytes")


@click.group(short_help="Time of single operations, row by row of a CSV file.", epilog=EXAMPLES)
def command() -> None:
    """Append predicted times to the rows of a CSV file.

    The result has the columns predicted_us, low_us, high_us (a 90 % interval) and source: measured
    on this system, calibrated on a like one, analytic from link rates, or extrapolated to a shape
    or size that was not measured.
    """


def table_options(function: Callable[..., int]) -> Callable[..., int]:
    """Arguments that every operation shares: the file, the system, where to write."""
    for decorate in (
        output_options,
        click.option(
            "-o",
            "--output",
            type=FILE,
            metavar="FILE",
            help="Write the CSV there.  [default: stdout]",
        ),
        click.option(
            "--system", required=True, metavar="NAME|FILE", help="Known system or a file."
        ),
        click.argument("file", type=FILE),
    ):
        function = decorate(function)
    return function


@command.command("collective", short_help="All-to-all, all-reduce, all-gather, reduce-scatter.")
@table_options
@click.pass_obj
def collective(settings: Settings, *, file: Path, system: str, output: Path | None) -> int:
    """Predict collectives of balanced messages.

    Columns: collective (all_to_all, all_reduce, all_gather, reduce_scatter), size_bytes as
    nccl-tests states it, and two of nodes, gpus_per_node and ranks.
    """
    from planner import io
    from planner.predict import predict_collectives, read_table

    table = read_table(file, COLLECTIVE_COLUMNS)
    found = predict_collectives(
        table, lambda gpus, per_host: io.load_system(system, gpus=gpus, gpus_per_host=per_host)
    )
    return show(settings, table, found, output)


def show(
    settings: Settings, table: Table, found: tuple[Predicted, ...], output: Path | None
) -> int:
    """Write the predictions as CSV, or print them as CSV or JSON."""
    from planner import io
    from planner.predict import predicted_text

    if output is not None:
        io.write_text_atomic(output, predicted_text(table, found))
        if not (settings.quiet or settings.json):
            click.echo(f"{len(found)} rows written to {output}", err=True)
    if settings.json:
        rows = [
            {
                **row,
                "predicted_s": p.time_s,
                "low_s": p.low_s,
                "high_s": p.high_s,
                "source": p.basis.value,
            }
            for row, p in zip(table.rows, found, strict=True)
        ]
        write_json(rows)
    elif output is None:
        click.echo(predicted_text(table, found), nl=False)
    return 0
