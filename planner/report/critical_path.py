"""The chain of stages that the iteration waits for, rank by rank."""

from __future__ import annotations

from typing import ClassVar, final

from costmodels import units
from planner.report import _figures as figures
from planner.report.base import AbstractReportSection, Column, Fact, Kind, Section, format_share
from planner.result import PlanningResult

_SMALLEST_SHARE = 0.01


@final
class CriticalPathSection(AbstractReportSection):
    """One row per step; shortening a stage that is not here does not shorten the iteration."""

    title: ClassVar[str] = "Critical path"
    order: ClassVar[int] = 20

    def build(self, result: PlanningResult) -> Section:
        """Steps in order of time; facts sum them by stage."""
        estimate = result.estimate
        total = estimate.time.time_s or 1.0
        shares = tuple(
            f"{stage} {format_share(share)}"
            for stage, share in figures.path_shares(estimate)
            if share >= _SMALLEST_SHARE
        )
        exposed = estimate.exposed_communication_s
        exposed_parts = (
            units.format_time(exposed),
            f"{format_share(exposed / total)} of the iteration",
        )
        columns = (
            Column(title="rank", kind=Kind.COUNT),
            Column(title="stage"),
            Column(title="start", kind=Kind.TIME),
            Column(title="time", kind=Kind.TIME),
            Column(title="share", kind=Kind.SHARE),
        )
        rows = tuple(
            (step.rank, step.stage, step.start_s, step.duration_s, step.duration_s / total)
            for step in estimate.critical_path
        )
        facts = (
            Fact(label="By stage", parts=shares or ("none",)),
            Fact(label="Exposed", parts=exposed_parts),
        )
        return Section(title=self.title, facts=facts, columns=columns, rows=rows)
