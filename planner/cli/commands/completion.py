"""``shardplan completion``: the script by which a shell completes what is typed."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from planner.cli.console import Settings, write_data, write_json
from planner.cli.flags.common import output_options

VARIABLE = "_SHARDPLAN_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

EXAMPLES = """\b
Examples:
  eval "$(shardplan completion bash)"                in ~/.bashrc; bash 4.4 or newer
  eval "$(shardplan completion zsh)"                 in ~/.zshrc, after compinit
  shardplan completion fish > ~/.config/fish/completions/shardplan.fish"""


@click.command(short_help="Print a completion script for bash, zsh or fish.", epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
@output_options
@click.pass_obj
def command(settings: Settings, *, shell: str) -> int:
    """Print the completion script of a shell.

    The tab key then completes commands, flags, shipped systems and workloads, strategies,
    objectives and files. The script asks shardplan itself each time, so new names appear by
    themselves.
    """
    text = script(shell)
    if settings.json:
        write_json({"shell": shell, "script": text})
    else:
        write_data(text)
    return 0


def script(shell: str) -> str:
    """The script of a shell, without asking which version of the shell is installed here."""
    found = get_completion_class(shell)
    if found is None:
        message = f"no completion for {shell!r}; there are {', '.join(SHELLS)}"
        raise click.UsageError(message)
    root = click.get_current_context().find_root().command
    return ShellComplete.source(found(root, {}, "shardplan", VARIABLE))
