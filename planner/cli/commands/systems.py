"""``shardplan systems``: the hardware that plans can be made for."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import click

from costmodels import estimates, topology
from costmodels.units import format_bytes, format_rate
from planner import io
from planner.cli import spec
from planner.cli.console import tell, write_or_print
from planner.io import documents
from planner.report.base import Section, by_place


@click.group(
    short_help="List the shipped systems; 'systems show NAME' prints one.",
    invoke_without_command=True,
    params=list(spec.OUTPUT),
)
@click.pass_context
def command(ctx: click.Context) -> None:
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
        return
    data: dict[str, dict[str, Any]] = {}
    rows = []
    for name in io.names("systems"):
        system = io.load_system(name)
        found = {key: attrgetter(at)(system) for _, key, at, _ in _NUMBERS}
        data[name] = {**found, "weakest_source": system.weakest_source()}
        told = (write(found[key]) for _, key, _, write in _NUMBERS)
        rows.append((name, *told, _measured(system)))
    titles = (title for title, *_ in _NUMBERS)
    tell(data, (Section.of("Systems", rows, by_place("system", *titles, "measured?")),))


@spec.command("Print the file of a system: every number with its unit and its source.", command)
def show(name: str = spec.argument(type=spec.SYSTEM)) -> None:
    """Print the file of a system: every number with its unit and its source."""
    path = documents.locate(name, "systems")
    text = documents.read_text(path)
    io.load_smallest(path)  # it is a system
    write_or_print(text.removesuffix("\n") + "\n", {"name": name, "text": text})


def _measured(system: "topology.Topology") -> str:
    """How many numbers of a system rest on measurements, rather than datasheets and defaults."""
    sources = [entry.source for entry in system.provenance]
    firm = (estimates.Source.MEASURED, estimates.Source.CALIBRATED)
    return f"{sum(source in firm for source in sources)} of {len(sources)}"


def _price(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:g}"


_NUMBERS: Final[tuple[tuple[str, str, str, Callable[[Any], str]], ...]] = (
    ("memory", "hbm_capacity_bytes", "device.hbm_capacity_bytes", format_bytes),
    ("bandwidth", "hbm_bandwidth_bytes_per_s", "device.hbm_bandwidth_bytes_per_s", format_rate),
    ("per host", "gpus_per_host", "local_world_size", str),
    ("in host", "host_link_bytes_per_s", "host_link.bandwidth_bytes_per_s", format_rate),
    ("network", "network_link_bytes_per_s", "network_link.bandwidth_bytes_per_s", format_rate),
    ("USD/h", "price_usd_per_hour", "price_per_device_usd_per_hour", _price),
)
"""Of each number of a system: its column, its key in JSON, where a topology has it, its text."""
