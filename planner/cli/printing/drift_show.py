"""What ``drift`` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodels import units
from planner.cli.commands.drift import DayFile
from planner.cli.console import settings
from planner.drift.changes import Assessment, IndexFigures, TableChange, Trend, trend
from planner.report.base import Column, Fact, Kind, Section, by_field, format_share
from planner.support.status import Status
from planner.support.text import significant, unsigned_zero

_MOST_TABLES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """All days in order.

    Attributes:
        days: what the data of each file do to the plan; at least one.
        threshold_ratio: saving above which a new plan is due.
        before: statistics that the plan was made with, None for the workload's laws.
    """

    days: Mapping[DayFile, Assessment]
    threshold_ratio: float
    before: Path | None

    @property
    def latest(self) -> Assessment:
        """The last day."""
        return list(self.days.values())[-1]

    @property
    def is_alarming(self) -> bool:
        """Whether the latest data ask for another plan, or for larger tables."""
        now = self.latest
        outgrown = any(rows.is_outgrown for rows in now.rows)
        return now.saved_ratio > self.threshold_ratio or not now.fits or outgrown

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the figures doubtful."""
        ends = [now.result.solver.status for now in self.days.values()]
        cut = ends.count(Status.TIME_LIMIT)
        told = (
            f"--time-limit cut the search of {cut} of {len(ends)} days: a faster or idler machine "
            "may find a better plan"
        )
        return (told,) if cut else ()

    @property
    def trend(self) -> Trend | None:
        """The line through what a new plan saves, day by day; None without days."""
        days = [file.day for file in self.days if file.day is not None]
        return trend(days, [now.saved_ratio for now in self.days.values()]) if days else None


_FIGURES: Final = ("before_s", "now_s", "new_s", "saved_ratio", "fits", "payback_s", "rows")


def as_json(drift: Drift) -> dict[str, Any]:
    """Raw figures in seconds, bytes and days; null for never."""
    line = drift.trend
    lasts = () if line is None else line.days_until(drift.threshold_ratio)
    return {
        "is_alarming": drift.is_alarming,
        "threshold_ratio": drift.threshold_ratio,
        "days": [
            {
                "file": str(file.path),
                "day": file.day,
                **{name: getattr(now, name) for name in _FIGURES},
                "move": now.result.reshard,
                "tables": now.changes,
            }
            for file, now in drift.days.items()
        ],
        "trend": line
        and {
            "slope_per_day": line.slope_per_day,
            "lasts_days": dict(zip(("soonest", "likely", "latest"), lasts, strict=True)),
        },
    }


def drift_sections(drift: Drift) -> Iterator[Section]:
    """The verdict and its figures, then what changed in each table."""
    yield Section("", _facts(drift))
    if len(drift.days) > 1:
        yield _days(drift)
    tables = _tables(drift.latest, everything=settings().verbose)
    if tables.rows:
        yield tables


def _facts(drift: Drift) -> tuple[Fact, ...]:
    now, file = drift.latest, list(drift.days)[-1]
    change = f"{unsigned_zero(100 * (now.now_s / now.before_s - 1), 1):+.1f} %"
    saved = f"saves {format_share(now.saved_ratio)}" if now.saved_ratio > 0 else "saves nothing"
    source = "the workload's own laws" if drift.before is None else str(drift.before)
    lines = {
        "Verdict": (_verdict(drift),),
        "Then": (f"{units.format_time(now.before_s)} per iteration", source),
        "Now": (f"{units.format_time(now.now_s)} ({change})", str(file.path)),
        "New plan": (units.format_time(now.new_s), saved),
        "Move": _move(now),
        "Too small": tuple(
            f"{rows.table}: ids need {rows.num_rows_needed:,} rows, it has {rows.num_embeddings:,}"
            for rows in now.rows
            if rows.is_outgrown
        ),
    }
    return tuple(Fact(label, parts) for label, parts in lines.items())


def _verdict(drift: Drift) -> str:
    now = drift.latest
    limit = f"{_percent(drift.threshold_ratio)} (--threshold)"
    if any(rows.is_outgrown for rows in now.rows):
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


def _move(now: Assessment) -> tuple[str, ...]:
    move = now.move
    if move is None:
        return ("none: no other plan is faster",)
    payback = units.format_long_time(now.payback_s or 0.0)
    return (
        f"{move.moved_tables} of {len(now.result.plan.placements)} tables, "
        f"{units.format_bytes(move.moved_bytes)}",
        f"{units.format_time(move.time_s)} once over the links",
        f"paid back after {payback} of training" if now.pays else "no faster, but it fits",
    )


def _days(drift: Drift) -> Section:
    rows = [
        {
            "day": str(file.path),
            "this plan_s": now.now_s,
            "new plan_s": now.new_s,
            "saves_ratio": now.saved_ratio,
            "tables moved": 0 if now.move is None else now.move.moved_tables,
        }
        for file, now in drift.days.items()
    ]
    return Section.of("Day by day", rows, by_field(*rows[0]))


def _tables(now: Assessment, *, everything: bool) -> Section:
    shown = now.changes if everything else now.changes[:_MOST_TABLES]
    notes = [
        "Cells with an arrow: then -> now. distinct rows: in one batch of all ranks. hottest 1 "
        "%: share of accesses on the hottest 1 % of rows. changes by: bytes of rows that a batch "
        "looks up more or fewer."
    ]
    if left := len(now.changes) - len(shown):
        notes.append(f"{left} more tables changed by less; -v shows all.")
    return Section.of(
        "What changed",
        shown,
        {
            Column("table"): lambda c: c.table,
            Column("pooling"): _pair(lambda f: significant(f.pooling_factor)),
            Column("distinct rows"): _pair(lambda f: units.format_count(f.num_unique_rows)),
            Column("hottest 1 %"): _pair(lambda f: format_share(f.hot_ratio)),
            Column("changes by", Kind.BYTES, optional=True): lambda c: c.changed_bytes,
        },
        notes=tuple(notes),
    )


def _pair(write: Callable[[IndexFigures], str]) -> Callable[[TableChange], str]:
    """Writes a figure as it was and as it is, or once where it reads the same."""
    return lambda c: " -> ".join(dict.fromkeys((write(c.before), write(c.now))))
