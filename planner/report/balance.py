"""How evenly the ranks are loaded, stage by stage."""

from __future__ import annotations

import statistics
from typing import ClassVar, final

from costmodels.estimates import StageTime
from planner.report import _figures as figures
from planner.report.base import AbstractReportSection, Cell, Column, Fact, Kind, Section
from planner.result import PlanningResult


@final
class BalanceSection(AbstractReportSection):
    """One row per stage: the slowest, the median and the fastest rank."""

    title: ClassVar[str] = "Balance of ranks"
    order: ClassVar[int] = 30

    def build(self, result: PlanningResult) -> Section:
        """Stages in the order in which they start."""
        estimate = result.estimate
        stages = sorted(estimate.stages, key=lambda stage: min(stage.start_s, default=0.0))
        columns = (
            Column(title="stage"),
            Column(title="stream", optional=True),
            Column(title="rank", kind=Kind.COUNT),
            Column(title="slowest", kind=Kind.TIME),
            Column(title="median", kind=Kind.TIME),
            Column(title="fastest", kind=Kind.TIME),
            Column(title="worst/mean", kind=Kind.FACTOR, optional=True),
        )
        facts = (
            Fact(
                label="Ranks",
                parts=(
                    f"most of the critical path {figures.bottleneck_rank(estimate)}",
                    f"most to compute {estimate.slowest_rank}",
                    f"worst/mean {estimate.imbalance_ratio:.2f}",
                ),
            ),
        )
        return Section(
            title=self.title,
            facts=facts,
            columns=columns,
            rows=tuple(_row(stage) for stage in stages if any(stage.duration_s)),
            notes=("Column rank: where the stage takes longest; - where all ranks take as long.",),
        )


def _row(stage: StageTime) -> tuple[Cell, ...]:
    times = stage.duration_s
    slowest = max(times)
    return (
        stage.name,
        stage.stream,
        None if min(times) == slowest else times.index(slowest),
        slowest,
        statistics.median(times),
        min(times),
        slowest / statistics.fmean(times),
    )
