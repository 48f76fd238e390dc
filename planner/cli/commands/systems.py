"""``shardplan systems``: the hardware that plans can be made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from planner import io
from planner.cli import flags as spec
from planner.cli.console import Settings, tell, write_or_print
from planner.cli.types import SYSTEM
from planner.report.base import Section

if TYPE_CHECKING:
    from costmodels.topology import Topology


@click.group(
    short_help="List the shipped systems; 'systems show NAME' prints one.",
    invoke_without_command=True,
    params=list(spec.OUTPUT),
)
@click.pass_context
def command(ctx: click.Context) -> int:
    """List the systems that are shipped, with their key numbers per device.

    Bandwidths are what one device reaches in one direction. USD/h is the price in the file: rents
    of one GPU differ by factors, so that shipped files state none; --price of 'plan' and 'study'
    gives yours. The column measured says how many of a system's numbers are measured or calibrated.
    A system file of your own can be given wherever a name can; start from a shipped one with
    'shardplan systems show NAME > my_box.yaml'.

    Examples:
      shardplan systems
      shardplan systems show h100_sxm
      shardplan systems show aws_p5
    """
    if ctx.invoked_subcommand is not None:
        return 0
    return _list(ctx.obj)


@spec.command("Print the file of a system: every number with its unit and its source.", command)
def show(
    settings: Settings,
    name: str = spec.argument(type=SYSTEM),
) -> int:
    """Print the file of a system: every number with its unit and its source."""
    from planner.io.documents import read_text
    from planner.io.library import locate

    path = locate(name, "systems")
    text = read_text(path)
    io.load_smallest(path)  # it is a system
    ended = text if text.endswith("\n") else f"{text}\n"
    write_or_print(settings, ended, {"name": name, "text": text})
    return 0


def _measured(topology: Topology) -> str:
    """How many numbers of a system rest on measurements, rather than datasheets and defaults."""
    from costmodels.estimates import Source

    sources = [entry.source for entry in topology.provenance]
    firm = sum(source in (Source.MEASURED, Source.CALIBRATED) for source in sources)
    return f"{firm} of {len(sources)}"


def _list(settings: Settings) -> int:
    from costmodels import units

    systems = {name: io.load_system(name) for name in io.names("systems")}
    data = {
        name: {
            "hbm_capacity_bytes": t.device.hbm_capacity_bytes,
            "hbm_bandwidth_bytes_per_s": t.device.hbm_bandwidth_bytes_per_s,
            "gpus_per_host": t.local_world_size,
            "host_link_bytes_per_s": t.host_link.bandwidth_bytes_per_s,
            "network_link_bytes_per_s": t.network_link.bandwidth_bytes_per_s,
            "price_usd_per_hour": t.price_per_device_usd_per_hour,
            "weakest_source": t.weakest_source(),
        }
        for name, t in systems.items()
    }
    shown = Section.of(
        "Systems",
        systems.items(),
        {
            "system": lambda item: item[0],
            "memory": lambda item: units.format_bytes(item[1].device.hbm_capacity_bytes),
            "bandwidth": lambda item: units.format_rate(item[1].device.hbm_bandwidth_bytes_per_s),
            "per host": lambda item: str(item[1].local_world_size),
            "in host": lambda item: units.format_rate(item[1].host_link.bandwidth_bytes_per_s),
            "network": lambda item: units.format_rate(item[1].network_link.bandwidth_bytes_per_s),
            "USD/h": lambda item: (
                "-" if (usd := item[1].price_per_device_usd_per_hour) is None else f"{usd:g}"
            ),
            "measured?": lambda item: _measured(item[1]),
        },
    )
    tell(settings, data, (shown,))
    return 0
