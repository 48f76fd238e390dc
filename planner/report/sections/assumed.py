"""What the workload file left open, and what the step would be under other values."""

from __future__ import annotations

from typing import ClassVar, final

from planner.report.base import Column, Kind, Section, laid_out
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult


@final
class AssumedSection(AbstractReportSection):
    """One row for each assumed value, with the step of this plan at the other end of its range."""

    title: ClassVar[str] = "Assumed"
    short: ClassVar[str] = "Assumed"
    order: ClassVar[int] = 15

    def build(self, result: PlanningResult) -> Section | None:
        """Key, value, number of tables, another value, and the step with that value alone."""
        if not result.assumed:
            return None
        ours_s = result.estimate.time.time_s
        columns, rows = laid_out(
            result.assumed,
            (
                (Column("what"), lambda a: a.what),
                (Column("assumed"), lambda a: a.value),
                (Column("tables", Kind.COUNT), lambda a: a.num_tables or None),
                (Column("at the other end"), lambda a: a.other),
                (Column("step", Kind.TIME), lambda a: a.time_s),
                (
                    Column("change", Kind.DELTA),
                    lambda a: None if a.time_s is None else a.time_s - ours_s,
                ),
            ),
        )
        notes = ("The same plan, with one value changed at a time.",)
        return Section(title=self.title, columns=columns, rows=rows, notes=notes)
