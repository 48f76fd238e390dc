"""Where each rank's time goes: stages stacked, hosts where there are many ranks."""

from __future__ import annotations

import statistics
from typing import ClassVar, final

from costmodels import units
from planner.report.base import Kind
from planner.report.html import _stages
from planner.report.html._evidence import Evidence, View
from planner.report.html._groups import Group, rank_groups
from planner.report.html._svg import NARROW, Bar, Lane, axis_s, lanes_chart
from planner.report.html.base import AbstractHtmlSection, Block, Number, written

_MOST_RANKS = 64
_VALUE_WIDTH = 76


@final
class StagesSection(AbstractHtmlSection):
    """One stacked bar per rank or host; waits are not in it."""

    title: ClassVar[str] = "Time per stage and rank"
    short: ClassVar[str] = "Stages"
    order: ClassVar[int] = 30

    def build(self, evidence: Evidence) -> Block:
        """The chosen plan."""
        body, numbers = draw(evidence.view)
        return Block(name="stages", title=self.title, body=body, numbers=numbers)


def draw(view: View) -> tuple[str, tuple[Number, ...]]:
    """Chart and its numbers for one plan."""
    families_s = _stages.family_durations_s(view.plan.estimate)
    groups = rank_groups(view.topology, most=_MOST_RANKS)
    rows = [
        {
            name: statistics.fmean(times[r] for r in group.ranks)
            for name, times in families_s.items()
        }
        for group in groups
    ]
    end_s = max((sum(row.values()) for row in rows), default=0.0) or 1.0
    numbers: list[Number] = []
    lanes = [_lane(view, g, row, end_s, numbers) for g, row in zip(groups, rows, strict=True)]
    what = "each rank" if groups[0].is_rank else "mean over the ranks of a host"
    intro = (
        f"<p>Busy time of all streams added up, {what}; stages that run beside each other both "
        "count, and waiting for other ranks is left out. Every stage on every rank stands in "
        "results.csv.</p>"
    )
    chart = lanes_chart(
        "Time per stage and rank",
        lanes,
        axis=axis_s(end_s),
        value_width=_VALUE_WIDTH,
        min_width=NARROW,
    )
    return intro + _stages.legend_of(families_s) + chart, tuple(numbers)


def _lane(
    view: View, group: Group, row: dict[str, float], end_s: float, numbers: list[Number]
) -> Lane:
    bars, at_s = [], 0.0
    for name, seconds in row.items():
        words = _stages.FAMILIES[name]
        number = Number(
            entity=f"{group.name} {words}",
            quantity="duration_s",
            value=seconds,
            unit="s",
            source=view.source,
        )
        if seconds > 0:
            numbers.append(number)
            bars.append(
                Bar(
                    start_ratio=at_s / end_s,
                    width_ratio=seconds / end_s,
                    css=name,
                    number=number,
                    title=f"{group.name}: {words}, {units.format_time(seconds)}",
                )
            )
        at_s += seconds
    numbers.append(
        Number(entity=group.name, quantity="busy_s", value=at_s, unit="s", source=view.source)
    )
    return Lane(label=group.name, bars=tuple(bars), value=written(Kind.TIME, at_s))
