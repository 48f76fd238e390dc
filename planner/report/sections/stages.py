"""One iteration in time: the critical path, and how each rank spends its time."""

from __future__ import annotations

import statistics
from typing import ClassVar, final

from markupsafe import Markup

from costmodels import units
from costmodels.estimates import StageTime
from planner.report import charts, figures
from planner.report.base import Column, Fact, Kind, Section, format_share, laid_out
from planner.report.charts import Bar, Lane, axis_s, lanes_chart
from planner.report.evidence import (
    FAMILIES,
    View,
    family,
    family_durations_s,
    family_legend,
    notable_ranks,
)
from planner.report.page import fill, written
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

# ------------------------------------------------------------------ timeline

_STREAMS = ("compute", "communication", "data_dist", "prefetch", "host")
_SHOWN_RATIO = 1e-4
_SMALLEST_SHARE = 0.01
"""The sums by stage leave out stages with a smaller share of the iteration than this."""
_TIE = 1e-6
"""A stage that ends as late as one on the critical path, up to this share of the iteration, counts
as on it."""


_TIMELINE_BODY = """\
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

    name: ClassVar[str] = "timeline"
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
        columns, rows = laid_out(
            estimate.critical_path,
            (
                (Column("rank", Kind.COUNT), lambda step: step.rank),
                (Column("stage"), lambda step: step.stage),
                (Column("start", Kind.TIME), lambda step: step.start_s),
                (Column("time", Kind.TIME), lambda step: step.duration_s),
                (Column("share", Kind.SHARE), lambda step: step.duration_s / total),
            ),
        )
        facts = (Fact(label="By stage", parts=shares or ("none",)),)
        return Section(title="Critical path", facts=facts, columns=columns, rows=rows)

    def draw_view(self, view: View) -> Markup:
        """Chart of one plan."""
        estimate = view.plan.estimate
        end_s = max(length_s(view), view.scale_s)
        notable = notable_ranks(estimate)
        path = [
            _bar(
                step.stage,
                (step.start_s, step.duration_s),
                end_s,
                f"critical path: {step.stage}, rank {step.rank}",
                labels=(f"{step.stage}, rank {step.rank}",),
            )
            for step in estimate.critical_path
            if step.duration_s >= _SHOWN_RATIO * end_s
        ]
        lanes = [Lane(label="Critical path", bars=tuple(path))]
        for word, rank in notable:
            lanes += _rank_lanes(view, word, rank, end_s)
        shown = [stage.name for stage in estimate.stages if any(stage.duration_s)]
        shown += [step.stage for step in estimate.critical_path]
        return fill(
            _TIMELINE_BODY,
            ranks=", ".join(f"{word} {rank}" for word, rank in notable),
            legend=family_legend({family(name) for name in shown}),
            chart=lanes_chart("Iteration timeline", lanes, axis=axis_s(end_s)),
        )


def length_s(view: View) -> float:
    """Seconds until the last stage of any rank ends."""
    estimate = view.plan.estimate
    return max(
        [estimate.time.time_s]
        + [a + b for s in estimate.stages for a, b in zip(s.start_s, s.duration_s, strict=True)]
    )


def _bar(
    stage: str,
    span_s: tuple[float, float],
    end_s: float,
    told: str,
    *,
    labels: tuple[str, ...] = (),
    strong: bool = False,
) -> Bar:
    """A stage from a start, for a duration; its labels go from long to short."""
    start_s, duration_s = span_s
    note = ", on the critical path" if strong else ""
    return Bar(
        start_ratio=start_s / end_s,
        width_ratio=duration_s / end_s,
        css=family(stage),
        labels=(*labels, stage, figures.merged_name(stage), FAMILIES[family(stage)]),
        title=f"{told}, {units.format_time(duration_s)} from {units.format_time(start_s)}{note}",
        strong=strong,
    )


def _rank_lanes(view: View, word: str, rank: int, end_s: float) -> list[Lane]:
    """A lane for each stream in which the rank does something."""
    estimate = view.plan.estimate
    path_s = {s.stage: s.start_s + s.duration_s for s in estimate.critical_path}
    shown = [s for s in estimate.stages if s.duration_s[rank] > _SHOWN_RATIO * end_s]

    def bar(stage: StageTime) -> Bar:
        span_s = stage.start_s[rank], stage.duration_s[rank]
        is_on_path = abs(path_s.get(stage.name, -1.0) - sum(span_s)) <= _TIE * end_s
        told = f"rank {rank}: {stage.name}"
        return _bar(stage.name, span_s, end_s, told, strong=is_on_path)

    used = {s.stream for s in shown}
    order = [s for s in _STREAMS if s in used] + sorted(used - set(_STREAMS))
    return [
        Lane(
            label=stream.replace("_", " "),
            group="" if i else f"{word[0].upper()}{word[1:]}: rank {rank}",
            bars=tuple(bar(stage) for stage in shown if stage.stream == stream),
        )
        for i, stream in enumerate(order)
    ]


# ------------------------------------------------------------------ stages

_BUSIEST = 8
"""So many ranks get a bar where there are more than :data:`MOST_GROUPS`."""

_STAGES_BODY = """\
<p>Busy time of all streams added up, {{ what }}; stages that run beside each other both count, and
waiting for other ranks is left out.</p>
{{- legend }}{{ chart }}"""


@final
class StagesSection(AbstractReportSection):
    """How evenly the ranks are loaded.

    Rows have the slowest, the median and the fastest rank of each stage. The page has one stacked
    bar for each rank, without its waits, or for the busiest of many ranks.
    """

    name: ClassVar[str] = "stages"
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

    def draw_view(self, view: View) -> Markup:
        """Chart of one plan."""
        families_s = family_durations_s(view.plan.estimate)
        busy_s = [sum(column) for column in zip(*families_s.values(), strict=True)]
        ranks, what = list(range(len(busy_s))), "each rank"
        if len(ranks) > charts.MOST_GROUPS:
            ranks = sorted(ranks, key=lambda r: (-busy_s[r], r))[:_BUSIEST]
            what = f"the {_BUSIEST} busiest ranks and the mean of all"
        rows = {f"rank {r}": {n: times[r] for n, times in families_s.items()} for r in ranks}
        if len(busy_s) > charts.MOST_GROUPS:
            rows["mean of ranks"] = {n: statistics.fmean(t) for n, t in families_s.items()}
        end_s = max((sum(row.values()) for row in rows.values()), default=0.0) or 1.0
        lanes = [
            charts.stacked(
                name,
                [(k, f"{FAMILIES[k]}, {units.format_time(s)}", s) for k, s in row.items()],
                end_s,
                written(Kind.TIME, sum(row.values())),
            )
            for name, row in rows.items()
        ]
        label = "Time per stage and rank"
        chart = charts.lanes_chart(
            label, lanes, axis=charts.axis_s(end_s), value_width=charts.VALUE_WIDTH
        )
        legend = family_legend(families_s)
        return fill(_STAGES_BODY, what=what, legend=legend, chart=chart)


def _slowest_rank(stage: StageTime) -> int | None:
    times = stage.duration_s
    return None if min(times) == max(times) else times.index(max(times))
