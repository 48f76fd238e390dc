"""The critical path, and the iteration on the slowest, the median and the fastest rank."""

from __future__ import annotations

from typing import ClassVar, final

from markupsafe import Markup

from costmodels import units
from planner.report import _figures as figures
from planner.report.base import Column, Fact, Kind, Section, format_share
from planner.report.html import _stages
from planner.report.html._evidence import Evidence, View, notable_ranks
from planner.report.html._svg import Bar, Lane, axis_s, lanes_chart
from planner.report.html._templates import fill
from planner.report.html.base import Block, Number
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

_STREAMS = ("compute", "communication", "data_dist", "prefetch", "host")
_SHOWN_RATIO = 1e-4
_SMALLEST_SHARE = 0.01
"""The sums by stage leave out stages with a smaller share of the iteration than this."""
_TIE = 1e-6
"""A stage that ends as late as one on the critical path, up to this share of the iteration, counts
as on it."""


_BODY = """\
<p>Ranks: {{ ranks }}; critical is the one with most of the critical path, the others are by compute
time. Outlined: what the iteration waits for, the stages that end as late as the critical path;
shortening any other one gains nothing. Gaps are waits. Hover, tap, or focus a chart and use the
arrow keys for details.</p>
{{- legend }}{{ chart }}"""


@final
class TimelineSection(AbstractReportSection):
    """The critical path, which is the chain of steps that the iteration waits for.

    It has one row for each step. To shorten a stage that is not on it does not shorten the
    iteration. The page also draws a lane for each stream of three ranks.
    """

    title: ClassVar[str] = "Timeline of one iteration"
    short: ClassVar[str] = "Timeline"
    order: ClassVar[int] = 20

    def build(self, result: PlanningResult) -> Section:
        """The steps of the critical path in order of time; facts have their sums by stage."""
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
        return Section(title="Critical path", facts=facts, columns=columns, rows=rows)

    def draw(self, evidence: Evidence) -> Block:
        """The chart of the chosen plan."""
        body, numbers = draw(evidence.view)
        return Block(name="timeline", title=self.title, body=body, numbers=numbers)


def length_s(view: View) -> float:
    """Seconds until the last stage of any rank ends."""
    estimate = view.plan.estimate
    return max(
        [estimate.time.time_s]
        + [a + b for s in estimate.stages for a, b in zip(s.start_s, s.duration_s, strict=True)]
    )


def draw(view: View) -> tuple[Markup, tuple[Number, ...]]:
    """Chart and its numbers for one plan."""
    estimate = view.plan.estimate
    end_s = max(length_s(view), view.scale_s)
    numbers: list[Number] = []
    lanes = [_path_lane(view, end_s, numbers)]
    for word, rank in notable_ranks(estimate):
        lanes += _rank_lanes(view, word, rank, end_s, numbers)
    chart = lanes_chart("Iteration timeline", lanes, axis=axis_s(end_s))
    ranks = ", ".join(f"{word} {rank}" for word, rank in notable_ranks(estimate))
    shown = [stage.name for stage in estimate.stages if any(stage.duration_s)]
    legend = _stages.legend([*shown, *(step.stage for step in estimate.critical_path)])
    return fill(_BODY, ranks=ranks, legend=legend, chart=chart), tuple(numbers)


def _path_lane(view: View, end_s: float, numbers: list[Number]) -> Lane:
    bars = []
    for index, step in enumerate(view.plan.estimate.critical_path):
        entity = f"critical path {index + 1} {step.stage}"
        number = Number(
            entity=entity,
            quantity="duration_s",
            value=step.duration_s,
            unit="s",
            source=view.source,
        )
        numbers.append(number)
        numbers += _extra(entity, step.start_s, step.rank, view.source)
        if step.duration_s < _SHOWN_RATIO * end_s:
            continue
        bars.append(
            Bar(
                start_ratio=step.start_s / end_s,
                width_ratio=step.duration_s / end_s,
                css=_stages.family(step.stage),
                number=number,
                labels=(f"{step.stage}, rank {step.rank}", *_words(step.stage)),
                title=f"critical path: {step.stage}, rank {step.rank}, "
                f"{units.format_time(step.duration_s)} from {units.format_time(step.start_s)}",
            )
        )
    return Lane(label="Critical path", group="", bars=tuple(bars))


def _words(stage: str) -> tuple[str, ...]:
    """Labels of a stage, from long to short."""
    return stage, _stages.merged_name(stage), _stages.FAMILIES[_stages.family(stage)]


def _extra(entity: str, start_s: float, rank: int, source: str) -> list[Number]:
    return [
        Number(entity=entity, quantity="start_s", value=start_s, unit="s", source=source),
        Number(entity=entity, quantity="rank", value=rank, unit="", source=source),
    ]


def _rank_lanes(
    view: View, word: str, rank: int, end_s: float, numbers: list[Number]
) -> list[Lane]:
    estimate = view.plan.estimate
    path_s = {s.stage: s.start_s + s.duration_s for s in estimate.critical_path}
    lanes = []
    used = {s.stream for s in estimate.stages if s.duration_s[rank] > _SHOWN_RATIO * end_s}
    order = [s for s in _STREAMS if s in used] + sorted(used - set(_STREAMS))
    for stream in order:
        bars = []
        for stage in estimate.stages:
            start_s, duration_s = stage.start_s[rank], stage.duration_s[rank]
            if stage.stream != stream or duration_s <= _SHOWN_RATIO * end_s:
                continue
            entity = f"rank {rank} {stage.name}"
            number = Number(
                entity=entity,
                quantity="duration_s",
                value=duration_s,
                unit="s",
                source=view.source,
            )
            numbers += [number, *_extra(entity, start_s, rank, view.source)[:1]]
            on_path = abs(path_s.get(stage.name, -1.0) - start_s - duration_s) <= _TIE * end_s
            note = ", on the critical path" if on_path else ""
            bars.append(
                Bar(
                    start_ratio=start_s / end_s,
                    width_ratio=duration_s / end_s,
                    css=_stages.family(stage.name),
                    number=number,
                    labels=_words(stage.name),
                    title=f"rank {rank}: {stage.name}, {units.format_time(duration_s)} "
                    f"from {units.format_time(start_s)}{note}",
                    strong=on_path,
                )
            )
        title = f"{word[0].upper()}{word[1:]}: rank {rank}" if stream == order[0] else ""
        lanes.append(Lane(label=stream.replace("_", " "), group=title, bars=tuple(bars)))
    return lanes
