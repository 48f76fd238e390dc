from __future__ import annotations

import re
from dataclasses import replace

import pytest

from costmodels.units import GIB
from planner.report.html._evidence import gather
from planner.report.html._report import render_report
from planner.report.sections.base import build_blocks
from planner.result import PlanningResult
from tests.planner.report.page_reader import Page, Values, differing, read_page, values_of
from tests.planner.report.report_samples import (
    make_memory,
    make_result,
    make_topology,
    make_workload,
)

SECTIONS = [
    *("headline", "timeline", "help", "stages", "memory", "traffic", "tables", "search"),
    *("alternatives", "torchrec", "provenance", "limits"),
]
NASTY = "<script>alert('1')</script>&\"\x1b[31m"

Files = tuple[str, Values]


def with_history(result: PlanningResult) -> PlanningResult:
    """A search that closed in from 4 ms and 2 ms."""
    steps = tuple((0.1 * 1.3**i, 4e-3 * 0.99**i, 2e-3 * 1.01**i) for i in range(300))
    return replace(result, solver=replace(result.solver, progress=steps))


def rendered(result: PlanningResult) -> Files:
    """The page and the values of its blocks."""
    blocks = build_blocks(gather(result))
    return render_report(result, blocks), values_of(blocks)


@pytest.fixture
def files(result: PlanningResult) -> Files:
    """Of four tables on four ranks."""
    return rendered(with_history(result))


@pytest.fixture
def page(files: Files) -> Page:
    """The same, read."""
    return read_page(files[0])


def test_every_section_is_there_and_reachable(page: Page) -> None:
    assert [i for i in page.ids if i in SECTIONS] == SECTIONS
    assert page.links == [f"#{name}" for name in SECTIONS]
    assert len(set(page.ids)) == len(page.ids)


def test_the_page_loads_nothing(files: Files, page: Page) -> None:
    assert page.loads == ["data:,"]
    for word in ("http:", "https:", "@import", "//cdn", "fetch(", "XMLHttpRequest"):
        assert word not in files[0]
    assert "default-src 'none'" in files[0]


def test_numbers_shown_are_those_of_the_blocks(files: Files, page: Page) -> None:
    values = files[1]
    assert differing(page.shown, values) == []
    assert {s.section for s in page.shown} == set(SECTIONS) - {"provenance", "limits"}
    assert float(values["headline", "plan", "iteration_time_s"]) == 3.1e-3
    assert float(values["memory", "rank 2", "weights_bytes"]) == 30 * GIB
    assert float(values["timeline", "rank 3 lookup_forward", "duration_s"]) == 1.03e-3


def test_a_wrong_number_would_be_seen(files: Files, page: Page) -> None:
    values = files[1]
    values["headline", "plan", "iteration_time_s"] = "0.0032"
    del values["tables", "table_0", "cost_ratio"]
    assert len(differing(page.shown, values)) == 2


def test_cost_shares_of_tables_sum_to_one(files: Files) -> None:
    shares = [float(v) for (s, _, q), v in files[1].items() if q == "cost_ratio"]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(1.0)


def test_losses_by_stage_sum_to_the_loss(files: Files) -> None:
    """The sample's critical path is the same in all plans, so nothing may be lost on it."""
    values = files[1]
    parts = [float(v) for (s, _, q), v in values.items() if q.startswith("loss_") and q != "loss_s"]
    assert parts
    assert not any(parts)


def test_names_cannot_become_markup() -> None:
    workload = replace(make_workload(3, prefix=NASTY), name=NASTY)
    text, _ = rendered(make_result(workload))
    page = read_page(text)
    assert page.tags.count("script") == 1
    assert "\x1b" not in text
    assert any("<script>alert('1')</script>" in words for words in page.words)


def test_the_largest_plan_stays_below_a_megabyte() -> None:
    workload = make_workload(856, prefix="a_table_with_a_rather_long_name")
    text, table = rendered(with_history(make_result(workload, make_topology(16, 8))))
    assert len(text.encode()) < 1_000_000
    page = read_page(text)
    assert differing(page.shown, table) == []
    assert {s.entity for s in page.shown if s.section == "tables"} == {
        t.name for t in workload.tables
    }
    assert any(s.entity == "host 15 to host 0" for s in page.shown)


def test_one_rank_has_no_traffic(result: PlanningResult) -> None:
    text, _ = rendered(make_result(make_workload(2), make_topology(1, 1)))
    page = read_page(text)
    assert "traffic" not in page.ids
    assert "search" not in page.ids, "no history was kept"
    assert "#traffic" not in page.links


def test_a_plan_that_does_not_fit_says_so(result: PlanningResult) -> None:
    memory = make_memory(4, step_bytes=30 * GIB, host_bytes=64 * GIB)
    best = replace(result.best, memory=memory)
    text, table = rendered(replace(result, best=best))
    assert "does not fit" in text
    assert "51.0 GiB over" in text
    values = table
    assert float(values["memory", "rank 3", "headroom_bytes"]) == -51 * GIB
    assert float(values["memory", "host 0", "host_used_bytes"]) == 64 * GIB
    assert differing(read_page(text).shown, values) == []


def test_no_bound_is_not_drawn_as_one() -> None:
    text, table = rendered(make_result(bound=None))
    assert "unproven" in text
    assert ("headline", "plan", "bound") not in table


def test_rendering_is_deterministic(result: PlanningResult) -> None:
    assert rendered(result) == rendered(replace(result))


def test_a_chart_wider_than_a_telephone_says_that_it_goes_on(files: Files) -> None:
    html, _ = files
    boxes = re.findall(r'chartbox( goes-on)?"><div class="chart" style="min-width:(\d+)px', html)
    assert {width for _, width in boxes} >= {"700"}
    assert all((int(width) > 390) is bool(told) for told, width in boxes)
    assert "The chart goes on to the right" in html
