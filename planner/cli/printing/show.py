"""Results on the terminal: the summary, or every section when asked for more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from planner.cli.console import Settings, stdout_console

if TYPE_CHECKING:
    from planner.report.base import Column
    from planner.result import Assumed, PlanningResult

Item = TypeVar("Item")
_NUMBER = re.compile(
    r"[-+<>~]?\d[\d,._]*(e[-+]?\d+)?( ?(%|x|[A-Za-z]+(/[A-Za-z]+)?))?"
    r"( (\.\.|of) \d[\d,._]*( ?[%A-Za-z/]+)?)?"
)
"""A number with its unit, an interval, or a share such as ``3 of 8``."""


def print_result(
    settings: Settings,
    result: PlanningResult,
    *,
    leave_out: tuple[str, ...] = (),
    written: tuple[Path, ...] = (),
) -> None:
    """The first lines of the summary but those labelled in ``leave_out``; with ``-v`` all sections.

    ``written`` are the files of the run; the last line says what to do next.
    """
    from planner.report import terminal
    from planner.report.base import Fact
    from planner.report.sections.base import build_sections

    console = stdout_console()
    (summary,) = build_sections(result, ("summary",))
    facts = [fact for fact in summary.facts if fact.label not in leave_out]
    if not settings.verbose:
        facts = [fact.first for fact in facts if fact.first.parts]
    if written:
        facts.append(Fact(label="Wrote", parts=tuple(map(str, written))))
    if not settings.quiet and "Next" not in leave_out:
        facts.append(Fact(label="Next", parts=_next_steps(settings, result, written)))
    terminal.print_facts(console, tuple(facts))
    terminal.print_notes(console, summary.notes)
    if settings.verbose:
        terminal.print_sections(console, build_sections(result)[1:])
    else:
        names = ("moves",) if result.curve else ()
        terminal.print_sections(console, build_sections(result, names))


def print_assumed(assumed: Sequence[Assumed], ours_s: float | None) -> None:
    """One line on what the workload file left open, in the words of ``plan``."""
    from planner.report.base import Fact
    from planner.report.sections.summary import assumed_words
    from planner.report.terminal import print_facts

    if words := assumed_words(assumed, ours_s):
        print_facts(stdout_console(), (Fact("Assumed", words),))


def _next_steps(
    settings: Settings, result: PlanningResult, written: Sequence[Path]
) -> tuple[str, ...]:
    """What to do with a result."""
    from costmodels.uncertainty import host_is_assumed

    page = next((path for path in written if path.suffix == ".html"), None)
    steps = ["-o DIR writes plan and report" if page is None else f"open {page}"]
    topology = result.problem.topology
    if topology.fitted is None:
        own = "calibrate --host" if host_is_assumed(topology) else "fit"
        steps.append(f"'shardplan {own}' narrows the interval")
    if not settings.verbose:
        steps.append("-v prints everything")
    return tuple(steps)


def print_rows(
    title: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    notes: tuple[str, ...] = (),
) -> None:
    """A table of texts under a heading; columns of numbers are set flush right and never wrap.

    The title of a column that a narrow terminal may leave out ends in ``?``, which is not shown.
    """
    from planner.report.base import Section
    from planner.report.terminal import print_sections

    section = Section(
        title=title,
        columns=tuple(_column(c, [row[i] for row in rows]) for i, c in enumerate(columns)),
        rows=tuple(rows),
        notes=notes,
    )
    print_sections(stdout_console(), (section,))


def print_items(
    title: str,
    items: Iterable[Item],
    cells: Mapping[str, Callable[[Item], str]],
    notes: tuple[str, ...] = (),
) -> None:
    """A table with a row for each item; under each title stands what makes its cell."""
    rows = [tuple(cell(item) for cell in cells.values()) for item in items]
    print_rows(title, tuple(cells), rows, notes)


def _column(title: str, texts: Sequence[str]) -> Column:
    from planner.report.base import Column, Kind

    numbers = [text for text in texts if _NUMBER.fullmatch(text)]
    words = [text for text in texts if any(c.isdigit() for c in text)]
    kind = Kind.COUNT if numbers and len(numbers) == len(words) else Kind.TEXT
    return Column(title=title.removesuffix("?"), kind=kind, optional=title.endswith("?"))
