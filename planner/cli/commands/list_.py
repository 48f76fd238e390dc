"""``shardplan list``: every name that a flag or a file may hold."""

from __future__ import annotations

import importlib

import click

from planner.cli.console import Settings, stdout_console, write_json
from planner.cli.flags.common import output_options

FAMILIES = {
    "strategies": "planner.search",
    "lookup models": "costmodels.lookup",
    "collective models": "costmodels.collective",
    "dense models": "costmodels.dense",
    "dense layers": "costmodels.layers",
    "index distributions": "costmodels.distribution",
    "training pipelines": "costmodels.iteration",
    "report sections": "planner.report.sections",
}
"""Packages whose files are plug-ins."""

EXAMPLES = """\b
Examples:
  shardplan list
  shardplan list --json"""


@click.command(short_help="List the names that flags and files accept.", epilog=EXAMPLES)
@output_options
@click.pass_obj
def command(settings: Settings) -> int:
    """List every name that flags and files accept.

    Strategies and models are files of their packages, so a new file appears here by itself.
    """
    families = names()
    if settings.json:
        write_json(families)
        return 0
    from planner.report._terminal import print_facts
    from planner.report.base import Fact

    facts = (Fact(label=title, parts=found or ("none",)) for title, found in families.items())
    print_facts(stdout_console(), tuple(facts))
    return 0


def names() -> dict[str, tuple[str, ...]]:
    """Names by family."""
    from costmodels import discovery
    from costmodels.sharding import ComputeKernel, ShardingType
    from planner.objectives import objective_names

    found = {
        title: discovery.names(importlib.import_module(package))
        for title, package in FAMILIES.items()
    }
    found["strategies"] = tuple(dict.fromkeys(("auto", *found["strategies"])))
    return {
        **found,
        "objectives": objective_names(),
        "sharding types": tuple(kind.value for kind in ShardingType),
        "compute kernels": tuple(kernel.value for kernel in ComputeKernel),
    }
