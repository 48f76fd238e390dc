"""Prints results to stdout, and everything else to stderr.

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
    """The shared output flags of a command line."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False

    @property
    def shows_progress(self) -> bool:
        """Whether progress may be shown: on a terminal, and without ``--quiet``."""
        return not self.json and not self.quiet and sys.stderr.isatty()


def stdout_console() -> Console:
    """A console for results, at most 100 columns wide; plain with NO_COLOR or in a pipe."""
    return _console(cast("TextIO", _Named(sys.stdout)))


def stderr_console() -> Console:
    """A console for progress and remarks."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    # Without a height, rich uses 80 columns if TERM is dumb.
    height = shutil.get_terminal_size((MAX_WIDTH, 24)).lines
    return Console(file=file, width=_width(), height=height, no_color=_no_color(), highlight=False)


class _Named:
    """A stream whose errors name it; everything else is passed on to the stream."""

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
    """Write one JSON document to stdout."""
    _echo(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_data(text: str) -> None:
    """Write the text of a file to stdout, unchanged; on a terminal without control codes."""
    _echo(printable_lines(text) if sys.stdout.isatty() else text)


def say(text: str) -> None:
    """Print words as a result on stdout; long lines are wrapped on a terminal, not in a pipe."""
    from planner.report._terminal import wrap

    text = printable_lines(text)
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        _echo(f"{text}\n")
        return
    for line in text.splitlines():
        _echo("\n".join(wrap(line, _width()) if line.strip() else [""]) + "\n")


def complain(text: str) -> None:
    """Print lines on stderr, after the results that were printed before them."""
    flush_failure(sys.stdout)  # an error comes again, and is reported, when the command ends
    say_on_stderr(printable_lines(text))


def remark(settings: Settings, text: str) -> None:
    """Print lines on stderr, unless ``--quiet`` is set."""
    if not settings.quiet:
        complain(text)


def shown_paths(paths: Iterable[Path]) -> str:
    """Paths on one line, with any characters in their names."""
    return "  ".join(printable(str(path)) for path in paths)


def typed(path: Path) -> str:
    """A path quoted for a shell, on one line, with any characters in its name."""
    text = str(path)
    if printable(text) != text:
        return "$'" + text.encode("unicode_escape").decode().replace("'", "\\'") + "'"
    return shlex.quote(text)


def report_written(settings: Settings, *paths: Path, **more: object) -> None:
    """Name the files that a command without other results has written, as JSON or as a remark."""
    if settings.json:
        write_json({"written": [str(path) for path in paths], **more})
    else:
        remark(settings, f"wrote {shown_paths(paths)}")


def warn(settings: Settings, warnings: tuple[str, ...]) -> None:
    """Print warnings as remarks, each once."""
    for text in dict.fromkeys(warnings):
        remark(settings, f"warning: {text}")


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and float(columns) > 0:
        return int(min(float(columns), MAX_WIDTH))
    if sys.stdout.isatty():
        return min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    return MAX_WIDTH


def _no_color() -> bool:
    return bool(os.environ.get("NO_COLOR"))
