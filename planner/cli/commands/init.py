"""``shardplan init``: a commented workload to start from."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, remark, write_json
from planner.cli.flags import FILE, output_options

DEFAULT_PATH = "workload.yaml"

EXAMPLES = """\b
Examples:
  shardplan init
  shardplan init models/ranking.yaml"""


@click.command(short_help="Write a commented workload to edit.", epilog=EXAMPLES)
@click.argument("path", type=FILE, default=DEFAULT_PATH)
@output_options
@click.pass_obj
def command(settings: Settings, *, path: Path) -> int:
    """Write a workload file that explains every key; PATH is workload.yaml unless given.

    The file is a complete, valid workload: plan it as it is, then change it. An existing file is
    never overwritten.
    """
    from planner.cli.inputs import write_template

    write_template(path)
    if settings.json:
        write_json({"written": str(path)})
        return 0
    click.echo(f"Wrote {path}")
    remark(settings, f"next: shardplan plan {path} --system h100_sxm --gpus 8")
    return 0
