"""``shardplan doctor``: is this environment fit for planning, and for TorchRec?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from planner.cli.console import Settings, stdout_console, write_json
from planner.cli.flags.common import output_options
from planner.support.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from planner.cli.environment import Check

EXAMPLES = """\b
Examples:
  shardplan doctor
  shardplan doctor --json"""


@click.command(
    short_help="Check Python, packages, torch and fbgemm, and the machine.",
    epilog=EXAMPLES,
)
@output_options
@click.pass_obj
def command(settings: Settings) -> int:
    """Check the environment; every line that is not ok says how to repair it.

    It reads package metadata and imports none of torch, torchrec and fbgemm, so it works where they
    do not. fbgemm-gpu 1.X fits torch 2.(X+5) and no other version: torchrec 1.8 goes with torch
    2.13, torchrec 1.9 with torch 2.14. Exit code 1 says that a check failed.
    """
    from planner.cli import environment as env
    from planner.cli.torch_traps import check_torch_traps

    checks = [
        env.check_python(),
        *env.check_packages(),
        *env.check_torch_stack(),
        *check_torch_traps(),
        *env.check_machine(),
        _check_configs(),
    ]
    failed = any(check.level is env.Level.FAIL for check in checks)
    if settings.json:
        write_json(
            {
                "ok": not failed,
                "checks": [
                    {"level": c.level, "subject": c.subject, "finding": c.finding, "fix": c.fix}
                    for c in checks
                ],
            }
        )
        return int(failed)
    console = stdout_console()
    styles = {env.Level.OK: "green", env.Level.WARN: "yellow", env.Level.FAIL: "bold red"}
    for check in checks:
        if settings.quiet and check.level is env.Level.OK:
            continue
        _print(console, check, styles[check.level])
    if not settings.quiet or failed:
        console.print("some checks failed" if failed else "all checks passed")
    return int(failed)


def _print(console: Console, check: Check, style: str) -> None:
    from rich.text import Text

    line = Text(f"{check.level.value:<5}", style=style)
    line.append(printable(f"{check.subject:<22} {check.finding}"), style="none")
    console.print(line)
    if check.fix:
        console.print(Text(printable(f"{'':<5}{'':<22} fix: {check.fix}")))


def _check_configs() -> Check:
    from planner.cli.environment import Check, Level
    from planner.cli.flags.inputs import system_names

    found = system_names()
    if found:
        finding = f"{len(found)} systems shipped"
        return Check(level=Level.OK, subject="configs", finding=finding)
    return Check(
        level=Level.FAIL,
        subject="configs",
        finding="the files of the shipped systems are missing",
        fix="install shardplan again: pip install --force-reinstall shardplan",
    )
