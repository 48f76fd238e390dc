"""How each rank spends its time: stages stacked in bars, of the busiest if there are many."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from markupsafe import Markup

from costmodels import units
from costmodels.estimates import StageTime
from planner.report import charts
from planner.report.base import Column, Kind, Section, laid_out
from planner.report.evidence import FAMILIES, Evidence, View, family_durations_s, family_legend
from planner.report.page import fill, written
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

_MANY_RANKS, _BUSIEST = 32, 8
"""From so many ranks on, so many of them get a bar."""

_BODY = """\
<p>Busy time of all streams added up, {{ what }}; stages that run beside each other both count, and
waiting for other ranks is left out.</p>
{{- legend }}{{ chart }}"""


@final
class StagesSection(AbstractReportSection):
    """How evenly the ranks are loaded.

    Rows have the slowest, the median and the fastest rank of each stage. The page has one stacked
    bar for each rank, without its waits, or for the busiest of many ranks.
    """

    title: ClassVar[str] = "Time per stage and rank"
    short: ClassVar[str] = "Stages"
    order: ClassVar[int] = 30

    def build(self, result: PlanningResult) -> Section:
        """Stages in the order in which they start."""
        estimate = result.estimate
        stages = sorted(estimate.stages, key=lambda stage: min(stage.start_s, default=0.0))
        columns, rows = laid_out(
            [stage for stage in stages if any(stage.duration_s)],
            (
                (Column("stage"), lambda s: s.name),
                (Column("stream", optional=True), lambda s: s.stream),
                (Column("rank", Kind.COUNT), _slowest_rank),
                (Column("slowest", Kind.TIME), lambda s: max(s.duration_s)),
                (Column("median", Kind.TIME), lambda s: statistics.median(s.duration_s)),
                (Column("fastest", Kind.TIME), lambda s: min(s.duration_s)),
                (
                    Column("worst/mean", Kind.FACTOR, optional=True),
                    lambda s: max(s.duration_s) / statistics.fmean(s.duration_s),
                ),
            ),
        )
        return Section(
            title="Balance of ranks",
            columns=columns,
            rows=rows,
            notes=(
                "Column rank: where the stage takes longest; - if all ranks take equally long.",
            ),
        )

    def draw(self, evidence: Evidence) -> Markup:
        """The chart of the chosen plan."""
        return draw(evidence.view)


def _slowest_rank(stage: StageTime) -> int | None:
    times = stage.duration_s
    return None if min(times) == max(times) else times.index(max(times))


def draw(view: View) -> Markup:
    """Chart of one plan."""
    families_s = family_durations_s(view.plan.estimate)
    busy_s = [sum(column) for column in zip(*families_s.values(), strict=True)]
    shown, what = _shown(view, busy_s)
    rows = [
        {n: statistics.fmean(times[r] for r in group.ranks) for n, times in families_s.items()}
        for group in shown
    ]
    end_s = max((sum(row.values()) for row in rows), default=0.0) or 1.0
    lanes = [_lane(group.name, row, end_s) for group, row in zip(shown, rows, strict=True)]
    label = "Time per stage and rank"
    chart = charts.lanes_chart(
        label, lanes, axis=charts.axis_s(end_s), value_width=charts.VALUE_WIDTH
    )
    legend = family_legend(families_s)
    return fill(_BODY, what=what, legend=legend, chart=chart)


def _shown(view: View, busy_s: Sequence[float]) -> tuple[tuple[charts.BarGroup, ...], str]:
    """The ranks that get a bar, and a line that says which ones they are."""
    world = view.topology.world_size
    if world < _MANY_RANKS:
        return charts.rank_groups(view.topology, most=_MANY_RANKS), "each rank"
    busiest = sorted(range(world), key=lambda r: (-busy_s[r], r))[:_BUSIEST]
    groups = tuple(charts.BarGroup(name=f"rank {r}", ranks=range(r, r + 1)) for r in busiest)
    mean = charts.BarGroup(name="mean of ranks", ranks=range(world))
    return (*groups, mean), f"the {_BUSIEST} busiest ranks and the mean of all"


def _lane(name: str, row: Mapping[str, float], end_s: float) -> charts.Lane:
    """A stacked bar."""
    bars, at_s = [], 0.0
    for family, seconds in row.items():
        if seconds > 0:
            bars.append(
                charts.Bar(
                    start_ratio=at_s / end_s,
                    width_ratio=seconds / end_s,
                    css=family,
                    title=f"{name}: {FAMILIES[family]}, {units.format_time(seconds)}",
                )
            )
        at_s += seconds
    return charts.Lane(label=name, bars=tuple(bars), value=written(Kind.TIME, at_s))
