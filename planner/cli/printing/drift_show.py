"""What ``drift`` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
_LIKE_RATIO: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """One day's data: where they are from, what they do to the plan, and the rows they ask for."""

    file: DayFile
    assessment: Assessment
    rows: tuple[TableRows, ...]

    @property
    def move(self) -> Reshard | None:
        """The move to the new plan; None where that is only another one as slow."""
        now = self.assessment
        return None if now.fits and not _pays(now) else now.result.reshard

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
        predicted_s: what the plan's file says of its iteration.
        before: statistics that the plan was made with, None for the workload's laws.
    """

    days: tuple[Day, ...]
    threshold_ratio: float
    predicted_s: float | None
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
        found = []
        ends = [day.assessment.result.solver.status for day in self.days]
        if cut := ends.count(Status.TIME_LIMIT):
            found.append(
                f"--time-limit cut the search of {cut} of {len(ends)} days: a faster or idler "
                "machine may find a better plan"
            )
        before_s, told_s = self.latest.assessment.before_s, self.predicted_s
        if told_s is not None and abs(before_s / told_s - 1.0) >= _LIKE_RATIO:
            found.append(
                f"the plan's file predicts {units.format_time(told_s)}, but under {self.source} it "
                f"takes {units.format_time(before_s)}: it was made with other statistics, models, "
                "batch or system; name the statistics with --before"
            )
        return tuple(found)

    @property
    def source(self) -> str:
        """What the plan was made with, in words."""
        return "the workload's own laws" if self.before is None else str(self.before)

    @property
    def trend(self) -> Trend | None:
        """The line through what a new plan saves, day by day."""
        return _line(self.days, [d.assessment.saved_ratio for d in self.days])

    def growth(self) -> tuple[tuple[TableRows, float, float], ...]:
        """Tables of which the data ask for more rows from day to day, the soonest full first.

        Beside each are the rows that it needs more each day, and the days until it is full; they
        are infinite for never.
        """
        found = []
        for rows in self.latest.rows:
            by_day = [[r for r in d.rows if r.table == rows.table] for d in self.days]
            line = None
            if all(by_day):
                line = _line(self.days, [float(r[0].num_rows_needed) for r in by_day])
            if line is not None and line.slope_per_day > 0:
                days = line.days_until(float(rows.num_embeddings))[1]
                found.append((rows, line.slope_per_day, days))
        return tuple(sorted(found, key=lambda row: row[2]))


def as_json(drift: Drift) -> dict[str, Any]:
    """Raw figures in seconds, bytes and days; null for never."""
    line = drift.trend
    lasts = () if line is None else map(_finite, line.days_until(drift.threshold_ratio))
    return {
        "is_alarming": drift.is_alarming,
        "threshold_ratio": drift.threshold_ratio,
        "days": [_day_json(day) for day in drift.days],
        "trend": line
        and {
            "slope_per_day": line.slope_per_day,
            "lasts_days": dict(zip(("soonest", "likely", "latest"), lasts, strict=True)),
        },
        "growth": [
            {**asdict(rows), "rows_per_day": slope, "full_in_days": _finite(days)}
            for rows, slope, days in drift.growth()
        ],
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
    now = drift.latest.assessment
    change = f"{unsigned_zero(100 * (now.now_s / now.before_s - 1), 1):+.1f} %"
    saved = f"saves {format_share(now.saved_ratio)}" if now.saved_ratio > 0 else "saves nothing"
    facts = [
        Fact(label="Verdict", parts=(_verdict(drift),)),
        Fact(
            label="Then",
            parts=(f"{units.format_time(now.before_s)} per iteration", drift.source),
        ),
        Fact(
            label="Now",
            parts=(f"{units.format_time(now.now_s)} ({change})", drift.latest.file.name),
        ),
        Fact(label="New plan", parts=(units.format_time(now.new_s), saved)),
        Fact(label="Move", parts=_move(drift.latest)),
    ]
    outgrown = [rows for rows in drift.latest.rows if rows.is_outgrown]
    if outgrown:
        facts.append(Fact(label="Too small", parts=tuple(map(_needs, outgrown))))
    growing = [_grows(*row) for row in drift.growth() if math.isfinite(row[2])]
    if growing:
        facts.append(Fact(label="Growing", parts=tuple(growing[:5])))
    return facts


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
    line = drift.trend
    if line is None:
        return ""
    soon, likely, late = line.days_until(drift.threshold_ratio)
    if not math.isfinite(likely):
        return "What a new plan saves does not grow from day to day."
    words = f"This plan lasts about {significant(likely)} more days"
    if len(drift.days) == 2:
        return f"{words}, by a line through two days."
    latest = significant(late) if math.isfinite(late) else "any number of"
    return f"{words} ({significant(soon)} to {latest}), by a line through {len(drift.days)} days."


def _pays(now: Assessment) -> bool:
    return now.payback_s is not None and now.saved_ratio > 0


def _move(day: Day) -> tuple[str, ...]:
    move, now = day.move, day.assessment
    if move is None:
        return ("none: no other plan is faster",)
    pays_back = "no faster, but it fits"
    if now.payback_s is not None and _pays(now):
        pays_back = f"paid back after {units.format_long_time(now.payback_s)} of training"
    return (
        f"{move.moved_tables} of {len(now.result.plan.placements)} tables, "
        f"{units.format_bytes(move.moved_bytes)}",
        f"{units.format_time(move.time_s)} once over the links",
        pays_back,
    )


def _needs(rows: TableRows) -> str:
    return f"{rows.table}: ids need {rows.num_rows_needed:,} rows, it has {rows.num_embeddings:,}"


def _grows(rows: TableRows, slope: float, days: float) -> str:
    return (
        f"{rows.table}: {rows.num_rows_needed:,} of {rows.num_embeddings:,} rows, "
        f"{slope:,.0f} more a day: full in {significant(days)} days"
    )


def _days(drift: Drift) -> Section:
    columns, rows = laid_out(
        drift.days,
        (
            (Column("day"), lambda day: day.file.name),
            (Column("this plan", Kind.TIME), lambda day: day.assessment.now_s),
            (Column("new plan", Kind.TIME), lambda day: day.assessment.new_s),
            (Column("saves", Kind.SHARE), lambda day: day.assessment.saved_ratio),
            (Column("tables moved", Kind.COUNT), lambda day: day.moved_tables),
        ),
    )
    return Section(title="Day by day", columns=columns, rows=rows)


def _tables(day: Day, *, everything: bool) -> Section:
    changes = day.assessment.changes
    shown = changes if everything else changes[:_MOST_TABLES]
    columns, rows = laid_out(
        shown,
        (
            (Column("table"), lambda c: c.table),
            (Column("pooling"), lambda c: _pair(c, lambda f: significant(f.pooling_factor))),
            (
                Column("distinct rows"),
                lambda c: _pair(c, lambda f: units.format_count(f.num_unique_rows)),
            ),
            (Column("hottest 1 %"), lambda c: _pair(c, lambda f: format_share(f.hot_ratio))),
            (Column("changes by", Kind.BYTES, optional=True), lambda c: c.changed_bytes),
        ),
    )
    left = len(changes) - len(shown)
    notes: tuple[str, ...] = (
        "Cells with an arrow: then -> now. distinct rows: in one batch of all ranks. hottest 1 "
        "%: share of accesses on the hottest 1 % of rows. changes by: bytes of rows that a batch "
        "looks up more or fewer.",
    )
    if left:
        notes += (f"{left} more tables changed by less; -v shows all.",)
    return Section(title="What changed", columns=columns, rows=rows, notes=notes)


def _pair(change: TableChange, write: Callable[[IndexFigures], str]) -> str:
    before, now = write(change.before), write(change.now)
    return now if before == now else f"{before} -> {now}"


def _day_json(day: Day) -> dict[str, Any]:
    now = day.assessment
    return {
        "file": day.file.name,
        "day": day.file.day,
        "before_s": now.before_s,
        "now_s": now.now_s,
        "new_s": now.new_s,
        "saved_ratio": now.saved_ratio,
        "fits": now.fits,
        "payback_s": now.payback_s,
        "move": None if now.result.reshard is None else asdict(now.result.reshard),
        "tables": [asdict(change) for change in now.changes],
        "rows": [{**asdict(r), "is_outgrown": r.is_outgrown} for r in day.rows],
    }


def _line(days: Sequence[Day], values: Sequence[float]) -> Trend | None:
    given = [d.file.day for d in days]
    return trend([d for d in given if d is not None], values) if None not in given else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
