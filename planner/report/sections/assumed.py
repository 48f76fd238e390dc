"""What the workload file left open, and what the step would be under other values."""

from __future__ import annotations

from typing import ClassVar, final

from planner.report.base import Column, Kind, Section
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
        return Section(
            title=self.title,
            columns=(
                Column("what"),
                Column("assumed"),
                Column("tables", Kind.COUNT),
                Column("at the other end"),
                Column("step", Kind.TIME),
                Column("change", Kind.DELTA),
            ),
            rows=tuple(
                (
                    a.what,
                    a.value,
                    a.num_tables or None,
                    a.other,
                    a.time_s,
                    None if a.time_s is None else a.time_s - ours_s,
                )
                for a in result.assumed
            ),
            notes=("The same plan, with one value changed at a time.",),
        )
