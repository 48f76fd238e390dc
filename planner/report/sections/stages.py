"""How each rank spends its time: stages stacked in bars, or a map if there are many ranks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar, final

from markupsafe import Markup

from costmodels import units
from costmodels.estimates import StageTime
from planner.report import _figures as figures
from planner.report.base import Cell, Column, Fact, Kind, Section
from planner.report.html import _stages
from planner.report.html._evidence import Evidence, View
from planner.report.html._groups import Group, rank_groups
from planner.report.html._heat import FEWEST_RANKS, heat_map
from planner.report.html._svg import NARROW, Bar, Lane, axis_s, lanes_chart
from planner.report.html._templates import fill
from planner.report.html.base import Block, Number, written
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

_BUSIEST = 8
_VALUE_WIDTH = 76


_BODY = """\
{% if heat %}<p>Busy time of every rank: a row per host, those with the busiest rank first. The
stronger the colour, the longer; the busiest rank is outlined.{% if left_out %}
{{ left_out }} less busy hosts are left out.{% endif %}</p>
{{- heat }}{% endif -%}
<p>Busy time of all streams added up, {{ what }}; stages that run beside each other both count, and
waiting for other ranks is left out.</p>
{{- legend }}{{ chart }}"""


@final
class StagesSection(AbstractReportSection):
    """How evenly the ranks are loaded.

    Rows have the slowest, the median and the fastest rank of each stage. The page has one stacked
    bar for each rank, without its waits. If there are many ranks, it has a map of hosts and ranks,
    and bars of the busiest ranks.
    """

    title: ClassVar[str] = "Time per stage and rank"
    short: ClassVar[str] = "Stages"
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
                    f"rank {figures.bottleneck_rank(estimate)} has most of the critical path",
                    f"rank {estimate.slowest_rank} computes longest, "
                    f"{estimate.imbalance_ratio:.2f}x the mean of ranks",
                ),
            ),
        )
        return Section(
            title="Balance of ranks",
            facts=facts,
            columns=columns,
            rows=tuple(_row(stage) for stage in stages if any(stage.duration_s)),
            notes=(
                "Column rank: where the stage takes longest; - if all ranks take equally long.",
            ),
        )

    def draw(self, evidence: Evidence) -> Block:
        """The chart of the chosen plan."""
        body, numbers = draw(evidence.view)
        return Block(name="stages", title=self.title, body=body, numbers=numbers)


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


def draw(view: View) -> tuple[Markup, tuple[Number, ...]]:
    """Chart and its numbers for one plan."""
    families_s = _stages.family_durations_s(view.plan.estimate)
    busy_s = [sum(column) for column in zip(*families_s.values(), strict=True)]
    heat, numbers, left_out = None, list[Number](), 0
    if len(busy_s) >= FEWEST_RANKS:
        heat, found, left_out = heat_map(
            "Busy time of every rank", view.topology, busy_s, quantity="busy_s", source=view.source
        )
        numbers += found
    shown, what = _shown(view, busy_s)
    rows = [
        {
            name: statistics.fmean(times[r] for r in group.ranks)
            for name, times in families_s.items()
        }
        for group in shown
    ]
    end_s = max((sum(row.values()) for row in rows), default=0.0) or 1.0
    lanes = [
        _lane(view, g, row, end_s, numbers, told=heat is not None and g.is_rank)
        for g, row in zip(shown, rows, strict=True)
    ]
    chart = lanes_chart(
        "Time per stage and rank",
        lanes,
        axis=axis_s(end_s),
        value_width=_VALUE_WIDTH,
        min_width=NARROW,
    )
    body = fill(
        _BODY,
        what=what,
        legend=_stages.legend_of(families_s),
        chart=chart,
        heat=heat,
        left_out=left_out,
    )
    return body, tuple(numbers)


def _shown(view: View, busy_s: Sequence[float]) -> tuple[tuple[Group, ...], str]:
    """The ranks that get a bar, and a line that says which ones they are."""
    world = view.topology.world_size
    if len(busy_s) < FEWEST_RANKS:
        return rank_groups(view.topology, most=FEWEST_RANKS), "each rank"
    busiest = sorted(range(world), key=lambda r: (-busy_s[r], r))[:_BUSIEST]
    groups = tuple(Group(name=f"rank {r}", ranks=range(r, r + 1)) for r in busiest)
    mean = Group(name="mean of ranks", ranks=range(world))
    return (*groups, mean), f"the {_BUSIEST} busiest ranks and the mean of all"


def _lane(
    view: View,
    group: Group,
    row: dict[str, float],
    end_s: float,
    numbers: list[Number],
    *,
    told: bool,
) -> Lane:
    """A stacked bar; ``told`` says whether its total is among the numbers already."""
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
    if not told:
        numbers.append(
            Number(entity=group.name, quantity="busy_s", value=at_s, unit="s", source=view.source)
        )
    return Lane(label=group.name, bars=tuple(bars), value=written(Kind.TIME, at_s))
