"""``shardplan check``: all errors of a file; without a file, is this environment fit to plan?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from planner import io
from planner.cli import flags as spec
from planner.cli.console import Settings, assumed_section, stdout_console, tell, write_json
from planner.errors import InvalidInputError, refuse
from planner.report.base import Section
from planner.support.text import counted, printable

if TYPE_CHECKING:
    from costmodels.workload import Workload
    from planner.result import Assumed

KINDS = ("workload", "system", "plan", "constraints")
_MARKS = {
    "workload": {"tables", "training"},
    "system": {"device", "links", "base"},
    "constraints": {"constraints"},
}
"""Keys that tell the kind of a file."""


@spec.command("List the errors of an input file; without one, check the environment.")
def command(
    settings: Settings,
    file: Path | None = None,
    schema: Annotated[str | None, click.Choice(KINDS)] = None,
) -> int:
    """Read a workload, system, constraint or plan file and list every error with its line.

    The kind of file is told from its content. Exit code 2 says that there are errors. With the
    output of --schema, editors that know JSON schemas can complete and check the YAML files.

    Without FILE, check the environment from package metadata, also where torch cannot be imported;
    every line that is not ok says how to repair it, and exit code 1 says that a check failed.
    fbgemm-gpu 1.X fits torch 2.(X+5) alone: torchrec 1.8 needs torch 2.13, torchrec 1.9 torch 2.14.

    Args:
        schema: Print the JSON schema of this kind of file instead.

    Examples:
      shardplan check                          Python, packages, torch and fbgemm, the machine
      shardplan check dlrm.yaml
      shardplan check run1/plan.json --json
      shardplan check --schema workload > workload.schema.json
    """
    both = file is not None and schema is not None
    spec.refuse(both, "give either FILE or --schema KIND")
    if file is not None:
        return _check(settings, file)
    if schema is None:
        return _check_environment(settings)

    write_json(getattr(io, f"{schema}_json_schema")())
    return 0


def _check(settings: Settings, file: Path) -> int:
    try:
        kind, summary, warnings, assumed = _told(file)
    except InvalidInputError as error:
        if not settings.json:
            raise
        write_json({"ok": False, "file": str(file), "problems": error.problems})
        return 2
    told = {"ok": True, "file": str(file), "kind": kind, "summary": summary, "assumed": assumed}
    found = Section("", notes=(f"OK  {file}: {kind}: {summary}",))
    tell(settings, told, (found, assumed_section(assumed, None)), warnings)
    return 0


def _told(path: Path) -> tuple[str, str, tuple[str, ...], tuple[Assumed, ...]]:
    """The kind of a file (from its content), a line about it, and what it leaves open.

    Raises:
        InvalidInputError: the file breaks rules; the message lists all of them.
    """
    from costmodels import units
    from planner.io.constraints import check_constraints
    from planner.io.library import locate
    from planner.options.torchrec_rules import width_remarks
    from planner.report.figures import sharding_kinds
    from planner.solving.assumed import assumptions

    kind = "systems" if str(path) in io.names("systems") else "workloads"
    if not path.is_dir() or str(path) in io.names(kind):
        path = locate(path, kind)
    kind = _kind(path)
    if kind == "workload":
        file = io.load_workload_file(path)
        warnings = (*width_remarks(file.workload), *file.warnings)
        return kind, _summary(file.workload), warnings, assumptions(file.workload, file.assumed)
    if kind == "system":
        topology = io.load_smallest(path)
        size = units.format_bytes(topology.device.hbm_capacity_bytes)
        summary = f"{topology.local_world_size} x {topology.name} per host, {size} each"
    elif kind == "constraints":
        rules = counted(check_constraints(path), "rule")
        summary = f"{rules}; names of tables are checked beside their workload"
    else:
        plan = io.load_plan(path).plan
        ranks = {rank for p in plan.placements for rank in p.ranks}
        held = f"{counted(len(plan.placements), 'table')} on {counted(len(ranks), 'rank')}"
        summary = f"{held}: {'  '.join(sharding_kinds(plan))}"
    return kind, summary, (), ()


def _kind(path: Path) -> str:
    """The kind of a file, from its keys; JSON of no other kind is a plan."""
    from planner.io.documents import read_json, read_text, read_yaml
    from planner.io.workload.table_list import LIST_ENDINGS

    if path.suffix.lower() in LIST_ENDINGS:
        return "workload"
    is_json = path.suffix == ".json" and read_text(path).lstrip()[:1] in ("{", "[")
    found = read_json(path) if is_json else read_yaml(path).value
    keys = set(found) if isinstance(found, dict) else set()
    kind = next((kind for kind, marks in _MARKS.items() if keys & marks), None)
    if is_json and (kind is None or "plan" in keys):
        return "plan"
    if kind is None:
        refuse(
            f"{path}: neither a workload (keys training and tables), a system (keys device and "
            "links), constraints (key constraints) nor a plan (a .json file)"
        )
    return kind


def _summary(workload: Workload) -> str:
    from costmodels import units
    from costmodels.dense.base import dense_parameters

    batch = f"{counted(workload.batch_size_per_rank, 'sample')} per rank"
    if workload.tables:
        size = units.format_bytes(workload.weight_bytes)
        return f"{counted(len(workload.tables), 'table')}, {size}, {batch}"
    return f"no tables, {dense_parameters(workload):,} dense parameters, {batch}"


def _check_environment(settings: Settings) -> int:
    """Print what was checked of the environment; 1 if a check failed."""
    from rich.text import Text

    from planner.cli.environment import CheckLevel, check_environment

    checks = check_environment()
    failed = any(check.level is CheckLevel.FAIL for check in checks)
    if settings.json:
        write_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
        return int(failed)
    console = stdout_console()
    styles = {CheckLevel.OK: "green", CheckLevel.WARN: "yellow", CheckLevel.FAIL: "bold red"}
    for check in checks:
        if settings.quiet and check.level is CheckLevel.OK:
            continue
        finding = printable(f"{check.subject:<22} {check.finding}")
        console.print(Text.assemble((f"{check.level.value:<5}", styles[check.level]), finding))
        if check.fix:
            console.print(Text(printable(f"{'':<5}{'':<22} fix: {check.fix}")))
    if not settings.quiet or failed:
        console.print("some checks failed" if failed else "all checks passed")
    return int(failed)
