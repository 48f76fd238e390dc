"""What ``drift`` prints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodels import units
from planner.cli.console import Settings, stdout_console
from planner.cli.days import DayFile
from planner.drift.changes import Assessment, IndexFigures, TableChange, TableRows, Trend, trend
from planner.report.base import Column, Fact, Kind, Section, format_share, laid_out
from planner.result import Reshard
from planner.support.status import Status
from planner.support.text import significant, unsigned_zero

_MOST_TABLES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """One day's data: where they are from, what they do to the plan, and the rows they ask for."""

    file: DayFile
    assessment: Assessment
    rows: tuple[TableRows, ...]

    @property
    def pays(self) -> bool:
        """Whether the new plan is faster."""
        return self.assessment.payback_s is not None and self.assessment.saved_ratio > 0

    @property
    def move(self) -> Reshard | None:
        """The move to the new plan; None where that is only another one as slow."""
        now = self.assessment
        return None if now.fits and not self.pays else now.result.reshard

    @property
    def moved_tables(self) -> int:
        """Tables that move to the new plan."""
        return 0 if self.move is None else self.move.moved_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """All days in order.

    Attributes:
        days: at least one.
        threshold_ratio: saving above which a new plan is due.
        before: statistics that the plan was made with, None for the workload's laws.
    """

    days: tuple[Day, ...]
    threshold_ratio: float
    before: Path | None

    @property
    def latest(self) -> Day:
        """The last day."""
        return self.days[-1]

    @property
    def is_alarming(self) -> bool:
        """Whether the latest data ask for another plan, or for larger tables."""
        now = self.latest.assessment
        outgrown = any(rows.is_outgrown for rows in self.latest.rows)
        return now.saved_ratio > self.threshold_ratio or not now.fits or outgrown

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the figures doubtful."""
        ends = [day.assessment.result.solver.status for day in self.days]
        cut = ends.count(Status.TIME_LIMIT)
        told = (
            f"--time-limit cut the search of {cut} of {len(ends)} days: a faster or idler machine "
            "may find a better plan"
        )
        return (told,) if cut else ()

    @property
    def source(self) -> str:
        """What the plan was made with, in words."""
        return "the workload's own laws" if self.before is None else str(self.before)

    @property
    def trend(self) -> Trend | None:
        """The line through what a new plan saves, day by day; None without days."""
        days = [d.file.day for d in self.days if d.file.day is not None]
        return trend(days, [d.assessment.saved_ratio for d in self.days]) if days else None


_FIGURES: Final = ("before_s", "now_s", "new_s", "saved_ratio", "fits", "payback_s")


def as_json(drift: Drift) -> dict[str, Any]:
    """Raw figures in seconds, bytes and days; null for never."""
    line = drift.trend
    return {
        "is_alarming": drift.is_alarming,
        "threshold_ratio": drift.threshold_ratio,
        "days": [
            {
                "file": day.file.name,
                "day": day.file.day,
                **{name: getattr(day.assessment, name) for name in _FIGURES},
                "move": day.assessment.result.reshard,
                "tables": day.assessment.changes,
                "rows": day.rows,
            }
            for day in drift.days
        ],
        "trend": line
        and {
            "slope_per_day": line.slope_per_day,
            "lasts_days": line.days_until(drift.threshold_ratio),
        },
    }


def print_drift(settings: Settings, drift: Drift) -> None:
    """The verdict and its figures, then what changed in each table."""
    from planner.report.terminal import print_facts, print_sections

    console = stdout_console()
    print_facts(console, tuple(_facts(drift)))
    sections = [_tables(drift.latest, everything=settings.verbose)]
    if len(drift.days) > 1:
        sections.insert(0, _days(drift))
    print_sections(console, tuple(s for s in sections if s.rows))


def _facts(drift: Drift) -> list[Fact]:
    now, day = drift.latest.assessment, drift.latest
    change = f"{unsigned_zero(100 * (now.now_s / now.before_s - 1), 1):+.1f} %"
    saved = f"saves {format_share(now.saved_ratio)}" if now.saved_ratio > 0 else "saves nothing"
    lines = {
        "Verdict": (_verdict(drift),),
        "Then": (f"{units.format_time(now.before_s)} per iteration", drift.source),
        "Now": (f"{units.format_time(now.now_s)} ({change})", day.file.name),
        "New plan": (units.format_time(now.new_s), saved),
        "Move": _move(day),
        "Too small": tuple(
            f"{rows.table}: ids need {rows.num_rows_needed:,} rows, it has {rows.num_embeddings:,}"
            for rows in day.rows
            if rows.is_outgrown
        ),
    }
    return [Fact(label=label, parts=parts) for label, parts in lines.items() if parts]


def _verdict(drift: Drift) -> str:
    now = drift.latest.assessment
    limit = f"{_percent(drift.threshold_ratio)} (--threshold)"
    if any(rows.is_outgrown for rows in drift.latest.rows):
        return "Enlarge tables: the data hold ids for which the model has no rows."
    if not now.fits:
        return "Plan again: under these data the plan in use does not fit in memory."
    saved = _percent(now.saved_ratio)
    if now.saved_ratio > drift.threshold_ratio:
        return f"Plan again: a new plan saves {saved} of each iteration, above {limit}."
    words = f"Keep the plan: a new one saves {saved} of each iteration, not more than {limit}."
    return f"{words} {_lasting(drift)}".strip()


def _percent(ratio: float) -> str:
    """A share beside the threshold that it is held against, with the digits of both."""
    return f"{significant(round(100 * ratio, 4))} %"


def _lasting(drift: Drift) -> str:
    line, days = drift.trend, len(drift.days)
    if line is None:
        return ""
    soon, likely, late = line.days_until(drift.threshold_ratio)
    if not math.isfinite(likely):
        return "What a new plan saves does not grow from day to day."
    latest = significant(late) if math.isfinite(late) else "any number of"
    span = f" ({significant(soon)} to {latest})" if days > 2 else ""
    words = f"This plan lasts about {significant(likely)} more days{span}"
    return f"{words}, by a line through {days} days."


def _move(day: Day) -> tuple[str, ...]:
    move, now = day.move, day.assessment
    if move is None:
        return ("none: no other plan is faster",)
    payback = units.format_long_time(now.payback_s or 0.0)
    return (
        f"{move.moved_tables} of {len(now.result.plan.placements)} tables, "
        f"{units.format_bytes(move.moved_bytes)}",
        f"{units.format_time(move.time_s)} once over the links",
        f"paid back after {payback} of training" if day.pays else "no faster, but it fits",
    )


def _days(drift: Drift) -> Section:
    return Section.of(
        "Day by day",
        drift.days,
        (
            (Column("day"), lambda day: day.file.name),
            (Column("this plan", Kind.TIME), lambda day: day.assessment.now_s),
            (Column("new plan", Kind.TIME), lambda day: day.assessment.new_s),
            (Column("saves", Kind.SHARE), lambda day: day.assessment.saved_ratio),
            (Column("tables moved", Kind.COUNT), lambda day: day.moved_tables),
        ),
    )


def _tables(day: Day, *, everything: bool) -> Section:
    changes = day.assessment.changes
    columns, rows = laid_out(
        changes if everything else changes[:_MOST_TABLES],
        (
            (Column("table"), lambda c: c.table),
            (Column("pooling"), _pair(lambda f: significant(f.pooling_factor))),
            (Column("distinct rows"), _pair(lambda f: units.format_count(f.num_unique_rows))),
            (Column("hottest 1 %"), _pair(lambda f: format_share(f.hot_ratio))),
            (Column("changes by", Kind.BYTES, optional=True), lambda c: c.changed_bytes),
        ),
    )
    notes = [
        "Cells with an arrow: then -> now. distinct rows: in one batch of all ranks. hottest 1 "
        "%: share of accesses on the hottest 1 % of rows. changes by: bytes of rows that a batch "
        "looks up more or fewer."
    ]
    if left := len(changes) - len(rows):
        notes.append(f"{left} more tables changed by less; -v shows all.")
    return Section(title="What changed", columns=columns, rows=rows, notes=tuple(notes))


def _pair(write: Callable[[IndexFigures], str]) -> Callable[[TableChange], str]:
    """Writes a figure as it was and as it is, or once where it reads the same."""
    return lambda c: " -> ".join(dict.fromkeys((write(c.before), write(c.now))))
