"""Write the pages of the site that come from the code: command reference and quoted outputs.

Run: python docs/reference.py          (a test fails while a page is not what this would write)

``docs/reference/commands.md`` is the help of every command. In any page, a block of text below a
line ``<!-- output of: shardplan ... -->`` is replaced by what that command prints, and below a line
``<!-- start of output of: ... -->`` or ``<!-- end of output of: ... -->`` by as many of its first
or last lines as the block has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

DOCS = Path(__file__).resolve().parent
COMMANDS = DOCS / "reference" / "commands.md"
WIDTH = 90

_QUOTED = re.compile(
    r"(<!-- (start of |end of )?output of: shardplan ([^\n]*) -->\n```text\n)(.*?)(```)", re.DOTALL
)

_INTRODUCTION = """\
# Commands

The text of `shardplan COMMAND --help`, written by `docs/reference.py`.
"""


def commands_page() -> str:
    """The help of every command and sub-command."""
    from planner.cli.run import cli

    parts = [_INTRODUCTION, _block("shardplan", cli, None)]
    for words, command, parent in _walk(cli, click.Context(cli, info_name="shardplan")):
        title = f"{'#' * (len(words) + 1)} {' '.join(words)}"
        parts.append(f"{title}\n\n{_block(words[-1], command, parent)}")
    return "\n".join(parts)


def _walk(
    group: click.Group, context: click.Context, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        yield (*before, name), command, context
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            yield from _walk(command, inner, (*before, name))


def _block(name: str, command: click.Command, parent: click.Context | None) -> str:
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    return f"```text\n{command.get_help(context).rstrip()}\n```\n"


def quoted_commands(text: str) -> list[str]:
    """The command lines whose output a page quotes."""
    return [match.group(3) for match in _QUOTED.finditer(text)]


def with_outputs(text: str) -> str:
    """A page with its quoted outputs as they are now."""
    return _QUOTED.sub(_renewed, text)


def _renewed(quoted: re.Match[str]) -> str:
    head, which, words, old, close = quoted.groups()
    lines, count = _output(words).splitlines(keepends=True), old.count("\n")
    shown = {"start of ": lines[:count], "end of ": lines[-count:]}.get(which, lines)
    return head + "".join(shown) + close


def _output(words: str) -> str:
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "planner", *words.split()],
        cwd=DOCS.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write every page that changed."""
    pages = {COMMANDS: commands_page()}
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path != COMMANDS and quoted_commands(text):
            pages[path] = with_outputs(text)
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            click.echo(f"wrote {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    main()
