"""``shardplan check``: is a file well formed? All its errors at once."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.console import Settings, say, warn, write_json
from planner.cli.flags.common import FILE, output_options

KINDS = ("workload", "system", "plan", "constraints")

EXAMPLES = """\b
Examples:
  shardplan check dlrm.yaml
  shardplan check run1/plan.json --json
  shardplan check --schema workload > workload.schema.json"""


@click.command(
    short_help="List the errors of an input file, or print its JSON schema.",
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
    """
    if (file is None) == (schema is None):
        message = "give either FILE or --schema KIND"
        raise click.UsageError(message, click.get_current_context())
    if schema is not None:
        from planner.cli.flags import inputs

        write_json(inputs.json_schema(schema))
        return 0
    return _check(settings, file) if file is not None else 0


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
