"""One iteration in time: the critical path, and how each rank spends its time."""

from __future__ import annotations

import statistics
from typing import final

from markupsafe import Markup

from costmodels import units
from costmodels.estimates import IterationEstimate, StageTime
from costmodels.pipeline import CostPipeline
from planner.report import charts, figures
from planner.report.base import Column, Fact, Kind, Section, format_share
from planner.report.charts import Bar, Lane, axis_s, lanes_chart
from planner.report.figures import FAMILIES, family, family_keys
from planner.report.page import block, written
from planner.report.sections.base import AbstractReportSection
from planner.result import Candidate, PlanningResult

# ------------------------------------------------------------------ timeline

_SHOWN_RATIO = 1e-4
_SMALLEST_SHARE = 0.01
"""The sums by stage leave out stages with a smaller share of the iteration than this."""
_TIE = 1e-6
"""A stage that ends as late as one on the critical path, up to this share of the iteration, counts
as on it."""


@final
class TimelineSection(
    AbstractReportSection, order=20, title="Timeline of one iteration", short="Timeline"
):
    """The critical path, which is the chain of steps that the iteration waits for.

    It has one row for each step. To shorten a stage that is not on it does not shorten the
    iteration. The page also draws a lane for each stream of some ranks.
    """

    def build(self, result: PlanningResult) -> Section:
        """The steps of the critical path in order of time; facts have their sums by stage."""
        estimate = result.estimate
        total = estimate.time.time_s or 1.0
        shares = tuple(
            f"{stage} {format_share(share)}"
            for stage, share in figures.path_shares(estimate)
            if share >= _SMALLEST_SHARE
        )
        facts = (Fact(label="By stage", parts=shares or ("none",)),)
        return Section.of(
            "Critical path",
            estimate.critical_path,
            (
                (Column("rank", Kind.COUNT), lambda step: step.rank),
                (Column("stage"), lambda step: step.stage),
                (Column("start", Kind.TIME), lambda step: step.start_s),
                (Column("time", Kind.TIME), lambda step: step.duration_s),
                (Column("share", Kind.SHARE), lambda step: step.duration_s / total),
            ),
            facts=facts,
        )

    def draw_plan(self, plan: Candidate, pipeline: CostPipeline, scale_s: float = 0.0) -> Markup:
        """The critical path, and a lane for each stream of the notable ranks."""
        del pipeline
        estimate = plan.estimate
        end_s = max(length_s(estimate), scale_s)
        ranks = figures.notable_ranks(estimate)
        path = tuple(
            _bar(
                s.stage, f"critical path: {s.stage}, rank {s.rank}", s.start_s, s.duration_s, end_s
            )
            for s in estimate.critical_path
            if s.duration_s >= _SHOWN_RATIO * end_s
        )
        lanes = [Lane(label="Critical path", bars=path)]
        for word, rank in ranks:
            lanes += _rank_lanes(estimate, word, rank, end_s)
        shown = [stage.name for stage in estimate.stages if any(stage.duration_s)]
        shown += [step.stage for step in estimate.critical_path]
        return block(
            "timeline",
            ranks=", ".join(f"{word} {rank}" for word, rank in ranks),
            keys=family_keys({family(name) for name in shown}),
            chart=lanes_chart("Iteration timeline", lanes, axis=axis_s(end_s)),
        )


def length_s(estimate: IterationEstimate) -> float:
    """Seconds until the last stage of any rank ends."""
    spans = (zip(s.start_s, s.duration_s, strict=True) for s in estimate.stages)
    return max([estimate.time.time_s, *(sum(span) for stage in spans for span in stage)])


def _bar(
    stage: str, told: str, start_s: float, duration_s: float, end_s: float, *, strong: bool = False
) -> Bar:
    """A stage from a start, for a duration; its labels go from long to short."""
    span = f"{units.format_time(duration_s)} from {units.format_time(start_s)}"
    return Bar(
        start_ratio=start_s / end_s,
        width_ratio=duration_s / end_s,
        css=family(stage),
        labels=(stage, figures.merged_name(stage), FAMILIES[family(stage)]),
        title=f"{told}, {span}{', on the critical path' if strong else ''}",
        strong=strong,
    )


def _rank_lanes(estimate: IterationEstimate, word: str, rank: int, end_s: float) -> list[Lane]:
    """A lane for each stream in which the rank does something."""
    path_s = {s.stage: s.start_s + s.duration_s for s in estimate.critical_path}
    lanes: dict[str, list[Bar]] = {}
    for stage in estimate.stages:
        start_s, duration_s = stage.start_s[rank], stage.duration_s[rank]
        if duration_s > _SHOWN_RATIO * end_s:
            late = abs(path_s.get(stage.name, -1.0) - start_s - duration_s) <= _TIE * end_s
            told = f"rank {rank}: {stage.name}"
            bar = _bar(stage.name, told, start_s, duration_s, end_s, strong=late)
            lanes.setdefault(stage.stream, []).append(bar)
    group = f"{word[0].upper()}{word[1:]}: rank {rank}"
    return [
        Lane(label=stream.replace("_", " "), group="" if i else group, bars=tuple(lanes[stream]))
        for i, stream in enumerate(sorted(lanes, key=lambda name: name != "compute"))
    ]


# ------------------------------------------------------------------ stages

_BUSIEST = 8
"""So many ranks get a bar where there are more than :data:`MOST_GROUPS`."""


@final
class StagesSection(
    AbstractReportSection, order=30, title="Time per stage and rank", short="Stages"
):
    """How evenly the ranks are loaded.

    Rows have the slowest, the median and the fastest rank of each stage. The page has one stacked
    bar for each rank, without its waits, or for the busiest of many ranks.
    """

    def build(self, result: PlanningResult) -> Section:
        """Stages in the order in which they start."""
        stages = [stage for stage in result.estimate.stages if any(stage.duration_s)]
        note = "Column rank: where the stage takes longest; - if all ranks take equally long."
        return Section.of(
            "Balance of ranks",
            sorted(stages, key=lambda stage: min(stage.start_s)),
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
            notes=(note,),
        )

    def draw_plan(self, plan: Candidate, pipeline: CostPipeline, scale_s: float = 0.0) -> Markup:
        """A stacked bar for each rank, or for the busiest."""
        del pipeline, scale_s
        families_s = figures.family_durations_s(plan.estimate)
        busy_s = [sum(column) for column in zip(*families_s.values(), strict=True)]
        ranks, what = list(range(len(busy_s))), "each rank"
        is_long = len(ranks) > charts.MOST_GROUPS
        if is_long:
            ranks = sorted(ranks, key=lambda r: (-busy_s[r], r))[:_BUSIEST]
            what = f"the {_BUSIEST} busiest ranks and the mean of all"
        rows = {f"rank {r}": {n: times[r] for n, times in families_s.items()} for r in ranks}
        if is_long:
            rows["mean of ranks"] = {n: statistics.fmean(t) for n, t in families_s.items()}
        sums_s = {name: sum(row.values()) for name, row in rows.items()}
        end_s = max(sums_s.values(), default=0.0) or 1.0
        lanes = [
            charts.stacked(
                name,
                [(k, f"{FAMILIES[k]}, {units.format_time(s)}", s) for k, s in row.items()],
                end_s,
                written(Kind.TIME, sums_s[name]),
            )
            for name, row in rows.items()
        ]
        chart = lanes_chart(self.title, lanes, axis=axis_s(end_s), value_width=charts.VALUE_WIDTH)
        return block("stages", what=what, keys=family_keys(families_s), chart=chart)


def _slowest_rank(stage: StageTime) -> int | None:
    times = stage.duration_s
    return None if min(times) == max(times) else times.index(max(times))
