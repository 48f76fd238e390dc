"""``shardplan import``: other tools' files into ours."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, remark, write_json
from planner.cli.flags import FILE, MAX_RANKS, Quantity, output_options

EXAMPLES = """\b
Examples:
  shardplan import collectives all_reduce.log alltoall.json -o my_curves.csv
  shardplan import collectives param.log --gpus-per-node 8 --nodes 2 --nic '50 GB/s'"""

COUNT = click.IntRange(min=1, max=MAX_RANKS)
COLLECTIVES = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")


@click.group(short_help="Read files of other tools.", epilog=EXAMPLES)
def command() -> None:
    """Turn files of other tools into files that the other commands read."""


@command.command("collectives", short_help="Logs of nccl-tests, rccl-tests and PARAM.")
@click.argument("logs", type=FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there.  [default: stdout]")
@click.option("--name", default="imported", show_default=True, help="Name of the set of curves.")
@click.option(
    "--collective", type=click.Choice(COLLECTIVES), help="Which.  [default: as the log says]"
)
@click.option("--nodes", type=COUNT, help="Hosts that took part.  [default: as the log says]")
@click.option("--gpus-per-node", type=COUNT, help="Ranks per host.  [default: as the log says]")
@click.option(
    "--domain-gpus",
    type=COUNT,
    help="Ranks that share a scale-up fabric.  [default: one host's]",
)
@click.option(
    "--nic",
    type=Quantity("bytes_per_s", positive=True),
    metavar="RATE",
    help="Nominal rate of the network per GPU and direction, such as '50 GB/s'.",
)
@output_options
@click.pass_obj
def collectives(
    settings: Settings,
    *,
    logs: tuple[Path, ...],
    output: Path | None,
    name: str,
    collective: str | None,
    nodes: int | None,
    gpus_per_node: int | None,
    domain_gpus: int | None,
    nic: float | None,
) -> int:
    """Measured curves of collectives from benchmark logs.

    Name the resulting file under collective_curves in a system file to predict with it. Host names
    and environment variables in a log are not kept.
    """
    from costmodels.collective.base import Collective
    from planner.io.collective_curves import curves_text, write_curves
    from planner.io.collective_logs import LogShape, read_logs

    shape = LogShape(
        collective=Collective(collective) if collective else None,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        domain_gpus=domain_gpus,
        network_bytes_per_s=nic or 0.0,
        set_name=name,
    )
    records = read_logs(logs, shape)
    if output is not None:
        write_curves(output, records)
        remark(settings, f"{len(records)} curves written to {output}")
    if settings.json:
        write_json(
            [
                {
                    "collective": r.curve.collective.value,
                    "ranks": r.curve.ranks,
                    "nodes": r.nodes,
                    "size_bytes": list(r.curve.size_bytes),
                    "time_s": list(r.curve.time_s),
                    "source": r.curve.source,
                }
                for r in records
            ]
        )
    elif output is None:
        click.echo(curves_text(records), nl=False)
    return 0
