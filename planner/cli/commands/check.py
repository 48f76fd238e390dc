"""``shardplan check``: all errors of a file; without a file, is this environment fit to plan?"""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, say, stdout_console, warn, write_json
from planner.cli.flags.common import FILE, output_options
from planner.support.text import printable

KINDS = ("workload", "system", "plan", "constraints")

EXAMPLES = """\b
Examples:
  shardplan check                          Python, packages, torch and fbgemm, the machine
  shardplan check dlrm.yaml
  shardplan check run1/plan.json --json
  shardplan check --schema workload > workload.schema.json"""


@click.command(
    short_help="List the errors of an input file; without one, check the environment.",
    epilog=EXAMPLES,
)
@click.argument("file", type=FILE, required=False)
@click.option(
    "--schema", type=click.Choice(KINDS), help="Print the JSON schema of this kind of file instead."
)
@output_options
@click.pass_obj
def command(settings: Settings, *, file: Path | None, schema: str | None) -> int:
    """Read a workload, system, constraint or plan file and list every error with its line.

    The kind of file is told from its content. Exit code 2 says that there are errors. With the
    output of --schema, editors that know JSON schemas can complete and check the YAML files.

    Without FILE, check the environment from package metadata, also where torch cannot be imported;
    every line that is not ok says how to repair it, and exit code 1 says that a check failed.
    fbgemm-gpu 1.X fits torch 2.(X+5) alone: torchrec 1.8 needs torch 2.13, torchrec 1.9 torch 2.14.
    """
    if file is not None and schema is not None:
        message = "give either FILE or --schema KIND"
        raise click.UsageError(message, click.get_current_context())
    if file is not None:
        return _check(settings, file)
    if schema is None:
        return _check_environment(settings)
    from planner.cli.flags import inputs

    write_json(inputs.json_schema(schema))
    return 0


def _check(settings: Settings, file: Path) -> int:
    from planner.cli.flags import inputs
    from planner.errors import InvalidInputError

    try:
        kind, summary, warnings = inputs.check_file(file)
    except InvalidInputError as error:
        if not settings.json:
            raise
        write_json({"ok": False, "file": str(file), "problems": error.problems})
        return 2
    if settings.json:
        told = {"ok": True, "file": str(file), "kind": kind, "summary": summary}
        write_json({**told, "warnings": list(warnings)})
    else:
        say(f"OK  {file}: {kind}: {summary}")
        warn(settings, warnings)
    return 0


def _check_environment(settings: Settings) -> int:
    """Print what was checked of the environment; 1 if a check failed."""
    from dataclasses import asdict

    from rich.text import Text

    from planner.cli.environment import Level, check_environment

    checks = check_environment()
    failed = any(check.level is Level.FAIL for check in checks)
    if settings.json:
        write_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
        return int(failed)
    console = stdout_console()
    styles = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
    for check in checks:
        if settings.quiet and check.level is Level.OK:
            continue
        line = Text(f"{check.level.value:<5}", style=styles[check.level])
        line.append(printable(f"{check.subject:<22} {check.finding}"), style="none")
        console.print(line)
        if check.fix:
            console.print(Text(printable(f"{'':<5}{'':<22} fix: {check.fix}")))
    if not settings.quiet or failed:
        console.print("some checks failed" if failed else "all checks passed")
    return int(failed)
