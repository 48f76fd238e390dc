"""What moving each number of tables gains, if the plan in use is left step by step."""

from __future__ import annotations

from typing import ClassVar, final

from costmodels import units
from planner.report.base import Column, Kind, Section, format_share, laid_out
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult


@final
class MovesSection(AbstractReportSection):
    """A row for each number of tables; nothing if this was not asked for."""

    title: ClassVar[str] = "Bytes moved against step time"
    short: ClassVar[str] = "Moves"
    order: ClassVar[int] = 25

    def build(self, result: PlanningResult) -> Section | None:
        """The curve, and the table that the limit blocks."""
        if not result.curve:
            return None
        before_s = result.curve[0].move.before_s
        columns, rows = laid_out(
            result.curve,
            (
                (Column("at most"), lambda p: _count(p.most_tables)),
                (Column("tables", Kind.COUNT), lambda p: p.move.moved_tables),
                (Column("moved", Kind.BYTES), lambda p: p.move.moved_bytes),
                (Column("over the links", Kind.TIME), lambda p: p.move.time_s),
                (Column("iteration", Kind.TIME), lambda p: p.iteration_s),
                (Column("saves", Kind.SHARE), lambda p: 1.0 - p.iteration_s / before_s),
                (Column("at least", Kind.TIME), lambda p: p.bound_s),
                (Column("paid back after"), lambda p: _payback(p.move.payback_s)),
            ),
        )
        notes = [
            "at least: a proven bound; no plan within the limits of the row has a shorter "
            "iteration. paid back after: training on the new plan until it has saved the time of "
            "the move. A table that is cut anew, while no rank receives a part of it, does not "
            "count as moved."
        ]
        blocked = result.blocked
        if blocked is not None:
            more = 1.0 - blocked.iteration_s / result.estimate.time.time_s
            notes.append(
                f"The limit on moves blocks table {blocked.table}: moving it too "
                f"({units.format_bytes(blocked.moved_bytes)}) would save another "
                f"{format_share(more)}."
            )
        return Section(title=self.title, columns=columns, rows=rows, notes=tuple(notes))


def _count(most: int | None) -> str:
    if most is None:
        return "the limit"
    return "1 table" if most == 1 else f"{most} tables"


def _payback(seconds: float | None) -> str:
    return "-" if seconds is None else units.format_long_time(seconds)
