from __future__ import annotations

import re
from dataclasses import replace

import pytest

from costmodels.estimates import IterationEstimate
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from planner import api
from planner.models import pipeline_of
from planner.report.comparison import (
    Comparison,
    difference_sections,
    render_compare,
)
from planner.report.sections.one_plan import TimelineSection, length_s
from planner.result import Candidate, PlanningResult
from tests.planner.report.page_reader import Page, Values, differing, read_page, values_of


@pytest.fixture
def pipeline(result: PlanningResult) -> CostPipeline:
    """Of the sample workload."""
    return pipeline_of(result.problem)


def compared(pipeline: CostPipeline, plans: dict[str, Plan]) -> tuple[Page, Comparison, Values]:
    """The page of some plans, and the values of its blocks."""
    priced = api.compare(pipeline.workload, pipeline.topology, plans)
    first, *others = plans.values()
    sure = tuple(pipeline.confidence_faster(p, first) for p in others)
    comparison = Comparison(pipeline=pipeline, plans=priced, confidences=sure)
    page = read_page(render_compare(comparison))
    return page, comparison, values_of(page)


def one_moved(best: Candidate) -> Plan:
    """The plan with table_1 on another rank."""
    placements = list(best.plan.placements)
    (shard,) = placements[1].shards
    placements[1] = replace(placements[1], shards=(replace(shard, rank=3),))
    return Plan(placements=tuple(placements))


def test_a_plan_differs_in_nothing_from_itself(
    result: PlanningResult, pipeline: CostPipeline
) -> None:
    page, _, table = compared(pipeline, {"old": result.plan, "new": result.plan})
    words = " ".join(page.words)
    assert "new takes as long as old" in words
    assert "0 of 4 tables differ" in words
    deltas = [v for (_, _, q), v in table.items() if q == "change"]
    assert deltas
    assert not any(deltas)


def test_one_moved_table_is_the_only_one_listed(
    result: PlanningResult, pipeline: CostPipeline
) -> None:
    page, comparison, table = compared(
        pipeline, {"old": result.plan, "new": one_moved(result.best)}
    )
    assert {e for s, e, _ in table if s == "moved-2"} == {"table_1"}
    assert differing(page.shown) == []
    first = [i for i in page.ids if i in ("plans", "moved-2", "stages", "timeline-1")]
    assert first == ["plans", "moved-2", "stages", "timeline-1"], "differences come first"
    told = str(difference_sections(comparison))
    assert "table_1" in told
    assert "table_2" not in told
    assert "Re-sharding" in told


def test_three_plans_have_three_timelines(result: PlanningResult, pipeline: CostPipeline) -> None:
    plans = {"a<b": result.plan, "b": result.plan, "c": one_moved(result.best)}
    page, _, _ = compared(pipeline, plans)
    assert [i for i in page.ids if i.startswith("timeline-")] == [
        f"timeline-{i}" for i in (1, 2, 3)
    ]
    assert page.links == [f"#{i}" for i in page.ids if f"#{i}" in page.links]
    assert differing(page.shown) == []
    assert any("a<b" in words for words in page.words)


def test_timelines_of_one_page_share_their_scale(
    result: PlanningResult, pipeline: CostPipeline
) -> None:
    """A plan of half the time has bars of half the length."""
    best, draw = result.best, TimelineSection().draw_plan
    alone = _longest_bar(draw(best, pipeline))
    scaled = TimelineSection(2.0 * length_s(best.estimate)).draw_plan
    shared = _longest_bar(scaled(best, pipeline))
    assert shared == pytest.approx(alone / 2, rel=0.01)
    slower = replace(result.best, name="slower", estimate=_twice(result.best.estimate))
    page = render_compare(
        Comparison(pipeline=pipeline, plans=(result.best, slower), confidences=(0.5,))
    )
    parts = re.findall(r'<section id="(timeline-\d)">(.*?)</section>', page, re.DOTALL)
    drawn = {name: _longest_bar(body) for name, body in parts}
    assert drawn["timeline-1"] == pytest.approx(alone / 2, rel=0.01)
    assert drawn["timeline-2"] == pytest.approx(alone, rel=0.01)


def _longest_bar(chart: str) -> float:
    """Percent of the axis."""
    return max(float(w) for w in re.findall(r'<rect class="c-[^>]* width="([\d.]+)%', chart))


def _twice(estimate: IterationEstimate) -> IterationEstimate:
    """Every stage starts twice as late and takes twice as long."""
    stages = tuple(
        replace(
            s,
            start_s=tuple(2 * t for t in s.start_s),
            duration_s=tuple(2 * t for t in s.duration_s),
        )
        for s in estimate.stages
    )
    path = tuple(
        replace(s, start_s=2 * s.start_s, duration_s=2 * s.duration_s)
        for s in estimate.critical_path
    )
    time = replace(estimate.time, time_s=2 * estimate.time.time_s, high_s=1.0)
    return replace(estimate, stages=stages, critical_path=path, time=time)
