"""Results on the terminal: the summary, or every section when asked for more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.console import Settings, stdout_console

if TYPE_CHECKING:
    from planner.result import PlanningResult


def print_result(
    settings: Settings,
    result: PlanningResult,
    *,
    leave_out: tuple[str, ...] = (),
    written: tuple[Path, ...] = (),
) -> None:
    """The facts of the summary but those labelled in ``leave_out``; with ``-v`` all sections."""
    from planner.report import _terminal as terminal
    from planner.report.base import Fact, build_sections

    console = stdout_console()
    (summary,) = build_sections(result, ("summary",))
    facts = [fact for fact in summary.facts if fact.label not in leave_out]
    if written:
        facts.append(Fact(label="Wrote", parts=tuple(map(str, written))))
    terminal.print_facts(console, tuple(facts))
    terminal.print_notes(console, summary.notes)
    if settings.verbose:
        terminal.print_sections(console, build_sections(result)[1:])


def print_rows(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table of texts under a heading."""
    from planner.report._terminal import print_sections
    from planner.report.base import Column, Section

    section = Section(
        title=title, columns=tuple(Column(title=c) for c in columns), rows=tuple(rows)
    )
    print_sections(stdout_console(), (section,))
