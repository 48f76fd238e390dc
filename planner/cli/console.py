"""Prints results to stdout, and everything else to stderr: remarks, and progress on a terminal.

No other file of the command line prints. Names from files reach a terminal only through
:mod:`planner.support.text`, here and in the renderer of reports.
"""

import contextlib
import io
import itertools
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from planner.report.base import Fact, Section
from planner.support.files import write_text_atomic
from planner.support.text import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

    from planner.result import Assumed, PlanningResult

MAX_WIDTH = 100


@dataclass(slots=True)
class Settings:
    """The shared output flags of a command line."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False


def settings() -> Settings:
    """The output flags of the command line that runs."""
    context = click.get_current_context(silent=True)
    return Settings() if context is None else context.find_root().obj


def console_of(file: TextIO) -> "Console":
    """A console on a stream, at most 100 columns wide; plain with NO_COLOR or in a pipe."""
    from rich.console import Console

    # Without a height, rich uses 80 columns if TERM is dumb.
    plain, size = bool(os.environ.get("NO_COLOR")), shutil.get_terminal_size((MAX_WIDTH, 24))
    return Console(file=file, width=_width(), height=size.lines, no_color=plain, highlight=False)


def _echo(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(data: object) -> None:
    """Write one JSON document to stdout; dataclasses have their fields, infinite numbers null."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(data, inf_nan_mode="null")
    _echo(json.dumps(plain, indent=2, allow_nan=False) + "\n")


def write_data(text: str) -> None:
    """Write the text of a file to stdout, unchanged; on a terminal without control codes."""
    _echo(printable_lines(text) if sys.stdout.isatty() else text)


def write_or_print(text: str, data: object, output: Path | None = None, what: str = "") -> None:
    """Write the text of a file, and tell of ``what``; or print it; or print its data as JSON."""
    if output is not None:
        write_text_atomic(output, text)
    if settings().json:
        write_json(data)
    elif output is None:
        write_data(text)
    if output is not None:
        remark(f"{what} written to {shown_paths((output,))}")


def say(text: str) -> None:
    """Print a line as a result on stdout; it is wrapped on a terminal, and not in a pipe."""
    from planner.report.terminal import wrap

    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS")
    _echo("\n".join(wrap(printable(text), _width()) if has_width else [printable(text)]) + "\n")


def complain(text: str) -> None:
    """Print lines on stderr, after the results that were printed before them."""
    flush_failure(sys.stdout)  # an error comes again, and is reported, when the command ends
    say_on_stderr(printable_lines(text))


def remark(text: str) -> None:
    """Print lines on stderr, unless ``--quiet`` is set."""
    if not settings().quiet:
        complain(text)


def shown_paths(paths: Iterable[Path]) -> str:
    """Paths on one line, with any characters in their names."""
    return "  ".join(printable(str(path)) for path in paths)


def typed(path: Path) -> str:
    """A path quoted for a shell, on one line, with any characters in its name."""
    text = str(path)
    escaped = text.encode("unicode_escape").decode().replace("'", "\\'")
    return shlex.quote(text) if printable(text) == text else f"$'{escaped}'"


def warn(warnings: tuple[str, ...]) -> None:
    """Print warnings as remarks, each once."""
    for text in dict.fromkeys(warnings):
        remark(f"warning: {text}")


def _width() -> int:
    """What COLUMNS says, or the terminal behind stdout; 100 columns in a pipe."""
    return min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)


def repair_streams() -> None:
    """Replace closed standard streams by the null device, with a message on the other one.

    Otherwise the next file that is opened would get the number of the closed stream, and with it
    everything that a library prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _to_nowhere(number)
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for names that the terminal cannot show
    if "stdout" in closed:
        say_on_stderr("shardplan: standard output is closed; results are printed nowhere")


def say_on_stderr(text: str) -> None:
    """Print a line on stderr; if this fails, the work goes on without it."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)


def flush_failure(stream: TextIO) -> OSError | None:
    """The error of writing what was printed to a stream; None if there is none."""
    with contextlib.suppress(ValueError):  # somebody closed it
        try:
            stream.flush()
        except OSError as error:
            return error
    return None


def abandon(stream: TextIO) -> None:
    """Discard what is left in a stream, so that the interpreter ends without an error."""
    with contextlib.suppress(OSError, ValueError):
        _to_nowhere(stream.fileno())
        stream.flush()


def _to_nowhere(number: int) -> None:
    sink = os.open(os.devnull, os.O_RDWR)
    if sink != number:
        os.dup2(sink, number)
        os.close(sink)


# ------------------------------------------------------------------ results


def tell(
    data: Mapping[str, Any], sections: Iterable[Section], warnings: Sequence[str] | None = None
) -> None:
    """Print data as one JSON document, or sections; warnings are in the data too."""
    from planner.report.terminal import print_sections

    if settings().json:
        told = {} if warnings is None else {"warnings": tuple(dict.fromkeys(warnings))}
        write_json({**data, **told})
    else:
        print_sections(console_of(sys.stdout), sections)
    warn(tuple(warnings or ()))


def tell_written(
    written: Sequence[Path], data: Mapping[str, Any], sections: Iterable[Section] = ()
) -> None:
    """Name the files that were written, in the data or in a remark."""
    tell({"written": [str(path) for path in written], **data}, sections)
    if not settings().json:
        remark(f"wrote {shown_paths(written)}")


def result_sections(
    result: "PlanningResult", *, leave_out: tuple[str, ...] = (), written: tuple[Path, ...] = ()
) -> list[Section]:
    """The first lines of the summary but those labelled in ``leave_out``; with ``-v`` all sections.

    ``written`` are the files of the run; the last line says what to do next.
    """
    from planner.report.sections.base import build_sections

    names = None if settings().verbose else ("summary", "moves")
    summary, *others = build_sections(result, names)
    facts = [fact for fact in summary.facts if fact.label not in leave_out]
    if not settings().verbose:
        facts = [fact.first for fact in facts]
    facts.append(Fact("Wrote", tuple(map(str, written))))
    if not settings().quiet and "Next" not in leave_out:
        facts.append(Fact("Next", _next_steps(result, written)))
    return [replace(summary, title="", facts=tuple(facts)), *others]


def assumed_section(assumed: "Sequence[Assumed]", ours_s: float | None) -> Section:
    """One line on what the workload file left open, in the words of ``plan``."""
    from planner.report.sections.summary import assumed_words

    return Section("", (Fact("Assumed", assumed_words(assumed, ours_s)),))


def _next_steps(result: "PlanningResult", written: Sequence[Path]) -> tuple[str, ...]:
    """What to do with a result."""
    from costmodels.uncertainty import host_is_assumed

    page = next((path for path in written if path.suffix == ".html"), None)
    steps = ["-o DIR writes plan and report" if page is None else f"open {page}"]
    topology = result.problem.topology
    if topology.fitted is None:
        own = "calibrate --host" if host_is_assumed(topology) else "fit"
        steps.append(f"'shardplan {own}' narrows the interval")
    if not settings().verbose:
        steps.append("-v prints everything")
    return tuple(steps)


# ------------------------------------------------------------------ progress


@contextmanager
def status_line(text: str) -> Iterator[Callable[[str], None]]:
    """A callback that changes one line on stderr."""
    if settings().json or settings().quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.text import Text

    with console_of(sys.stderr).status(text, spinner="line") as status:
        yield lambda now: status.update(Text(printable(f"{text}: {now}")))


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Progress over at least ``total`` items; call it with the name of each finished item."""
    done = itertools.count(1)
    with status_line(what) as show:
        yield lambda name: show(f"{next(done)} of {total}, {name}")
