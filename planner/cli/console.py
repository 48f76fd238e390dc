"""Where output goes: results to stdout, everything else to stderr.

No other file of the command line prints. Names from files reach a terminal only through
:mod:`planner.support.printable`, here and in the renderer of reports.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from planner.cli.streams import flush_failure, say_on_stderr
from planner.support.file_errors import writing
from planner.support.printable import printable, printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

MAX_WIDTH = 100
_STDOUT: Final = Path("standard output")


@dataclass(slots=True)
class Settings:
    """What the shared output flags chose; one per command line."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False

    @property
    def shows_progress(self) -> bool:
        """Whether live progress may be drawn: on a terminal, and not told to be quiet."""
        return not self.json and not self.quiet and sys.stderr.isatty()


def stdout_console() -> Console:
    """A console for results: at most 100 columns; plain when NO_COLOR is set or not a terminal."""
    return _console(cast("TextIO", _Named(sys.stdout)))


def stderr_console() -> Console:
    """A console for progress and remarks."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    # With a width alone, rich takes 80 columns wherever TERM is dumb.
    height = shutil.get_terminal_size((MAX_WIDTH, 24)).lines
    return Console(file=file, width=_width(), height=height, no_color=_no_color(), highlight=False)


class _Named:
    """A stream whose errors say which one it is; all else is the stream's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """See the stream."""
        with writing(_STDOUT):
            return self._stream.write(text)

    def flush(self) -> None:
        """See the stream."""
        with writing(_STDOUT):
            self._stream.flush()


def _echo(text: str) -> None:
    with writing(_STDOUT):
        sys.stdout.write(text)
        sys.stdout.flush()


def write_json(data: object) -> None:
    """One JSON document on stdout."""
    _echo(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_data(text: str) -> None:
    """A file's text on stdout, byte by byte; on a terminal without codes that would change it."""
    _echo(printable_lines(text) if sys.stdout.isatty() else text)


def say(text: str) -> None:
    """Words on stdout; results that are not a table. Lines wrap for people, not for pipes."""
    from planner.report._terminal import wrap

    text = printable_lines(text)
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        _echo(f"{text}\n")
        return
    for line in text.splitlines():
        _echo("\n".join(wrap(line, _width()) if line.strip() else [""]) + "\n")


def complain(text: str) -> None:
    """Lines on stderr, after the results that were printed before them."""
    flush_failure(sys.stdout)  # met again, and told, when the command ends
    say_on_stderr(printable_lines(text))


def remark(settings: Settings, text: str) -> None:
    """The same, unless told to be quiet."""
    if not settings.quiet:
        complain(text)


def shown_paths(paths: Iterable[Path]) -> str:
    """Paths on one line, whatever is in their names."""
    return "  ".join(printable(str(path)) for path in paths)


def typed(path: Path) -> str:
    """A path as a shell takes it, on one line whatever is in its name."""
    text = str(path)
    if printable(text) != text:
        return "$'" + text.encode("unicode_escape").decode().replace("'", "\\'") + "'"
    return shlex.quote(text)


def report_written(settings: Settings, *paths: Path, **more: object) -> None:
    """Name the files of a command that has no other result: as JSON, or as a remark."""
    if settings.json:
        write_json({"written": [str(path) for path in paths], **more})
    else:
        remark(settings, f"wrote {shown_paths(paths)}")


def warn(settings: Settings, warnings: tuple[str, ...]) -> None:
    """Warnings as remarks, each once."""
    for text in dict.fromkeys(warnings):
        remark(settings, f"warning: {text}")


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return min(int(columns), MAX_WIDTH)
    if sys.stdout.isatty():
        return min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    return MAX_WIDTH


def _no_color() -> bool:
    return bool(os.environ.get("NO_COLOR"))
