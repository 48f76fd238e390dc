"""Results on the terminal: the summary, or every section when asked for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.console import (
    Settings,
    remark,
    shown_paths,
    stdout_console,
    warn,
    write_json,
)
from planner.report.base import Fact, Section

if TYPE_CHECKING:
    from planner.result import Assumed, PlanningResult


def tell(
    settings: Settings,
    data: Mapping[str, Any],
    sections: Iterable[Section],
    warnings: Sequence[str] | None = None,
) -> None:
    """Print data as one JSON document, or sections; warnings are in the data too."""
    from planner.report.terminal import print_sections

    if settings.json:
        told = {} if warnings is None else {"warnings": tuple(dict.fromkeys(warnings))}
        write_json({**data, **told})
    else:
        print_sections(stdout_console(), sections)
    warn(settings, tuple(warnings or ()))


def tell_written(
    settings: Settings,
    written: Sequence[Path],
    data: Mapping[str, Any],
    sections: Iterable[Section] = (),
    remarks: Sequence[str] = (),
) -> None:
    """Name the files that were written, in the data or in the last of the remarks."""
    tell(settings, {"written": [str(path) for path in written], **data}, sections)
    if not settings.json:
        remark(settings, "\n".join((*remarks, f"wrote {shown_paths(written)}")))


def result_sections(
    settings: Settings,
    result: PlanningResult,
    *,
    leave_out: tuple[str, ...] = (),
    written: tuple[Path, ...] = (),
) -> list[Section]:
    """The first lines of the summary but those labelled in ``leave_out``; with ``-v`` all sections.

    ``written`` are the files of the run; the last line says what to do next.
    """
    from planner.report.sections.base import build_sections

    names = None if settings.verbose else ("summary", "moves")
    summary, *others = build_sections(result, names)
    facts = [fact for fact in summary.facts if fact.label not in leave_out]
    if not settings.verbose:
        facts = [fact.first for fact in facts]
    facts.append(Fact("Wrote", tuple(map(str, written))))
    if not settings.quiet and "Next" not in leave_out:
        facts.append(Fact("Next", _next_steps(settings, result, written)))
    return [replace(summary, title="", facts=tuple(facts)), *others]


def assumed_section(assumed: Sequence[Assumed], ours_s: float | None) -> Section:
    """One line on what the workload file left open, in the words of ``plan``."""
    from planner.report.sections.summary import assumed_words

    return Section("", (Fact("Assumed", assumed_words(assumed, ours_s)),))


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
