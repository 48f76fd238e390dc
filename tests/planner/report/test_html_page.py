from __future__ import annotations

import re
from dataclasses import replace

import pytest

from costmodels.units import GIB
from planner.report.run_files import page as render
from planner.result import PlanningResult
from tests.planner.report.page_reader import Page, differing, read_page, values_of
from tests.planner.report.report_samples import (
    make_memory,
    make_result,
    make_topology,
    make_workload,
)

SECTIONS = [
    *("summary", "timeline", "stages", "memory", "traffic", "tables"),
    *("alternatives", "provenance", "limits"),
]
NASTY = "<script>alert('1')</script>&\"\x1b[31m"


@pytest.fixture
def text(result: PlanningResult) -> str:
    """Of four tables on four ranks."""
    return render(result)


@pytest.fixture
def page(text: str) -> Page:
    """The same, read."""
    return read_page(text)


def test_every_section_is_there_and_reachable(page: Page) -> None:
    assert [i for i in page.ids if i in SECTIONS] == SECTIONS
    assert page.links == [f"#{name}" for name in SECTIONS]
    assert len(set(page.ids)) == len(page.ids)


def test_the_page_loads_nothing(text: str, page: Page) -> None:
    assert page.loads == ["data:,"]
    for word in ("http:", "https:", "@import", "//cdn", "fetch(", "XMLHttpRequest"):
        assert word not in text
    assert "default-src 'none'" in text


def test_numbers_are_those_by_which_columns_are_sorted(text: str, page: Page) -> None:
    assert differing(page.shown) == []
    assert {s.section for s in page.shown} == {"tables", "alternatives"}
    assert values_of(page)["alternatives", "best", "iteration"] == 3.1e-3
    assert "<dd>3.1 ms</dd>" in text
    assert "rank 2: weights, 30.0 GiB" in text
    assert "rank 3: lookup_forward, 1.03 ms from 0" in text


def test_a_wrong_number_would_be_seen(text: str) -> None:
    wrong = text.replace('data-v="0.0031"', 'data-v="0.0032"', 1)
    assert wrong != text
    assert len(differing(read_page(wrong).shown)) == 1


def test_cost_shares_of_tables_sum_to_one(page: Page) -> None:
    shares = [v for (s, _, q), v in values_of(page).items() if (s, q) == ("tables", "cost")]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(1.0)


def test_names_cannot_become_markup() -> None:
    workload = replace(make_workload(3, prefix=NASTY), name=NASTY)
    text = render(make_result(workload))
    page = read_page(text)
    assert page.tags.count("script") == 1
    assert "\x1b" not in text
    assert any("<script>alert('1')</script>" in words for words in page.words)


def test_the_largest_plan_stays_below_a_megabyte() -> None:
    workload = make_workload(856, prefix="a_table_with_a_rather_long_name")
    text = render(make_result(workload, make_topology(16, 8)))
    assert len(text.encode()) < 1_000_000
    page = read_page(text)
    assert differing(page.shown) == []
    assert {s.entity for s in page.shown if s.section == "tables"} == {
        t.name for t in workload.tables
    }
    assert 'title="host 15 to host 0: ' in text


def test_one_rank_has_no_traffic(result: PlanningResult) -> None:
    text = render(make_result(make_workload(2), make_topology(1, 1)))
    page = read_page(text)
    assert "traffic" not in page.ids
    assert "#traffic" not in page.links


def test_a_plan_that_does_not_fit_says_so(result: PlanningResult) -> None:
    memory = make_memory(4, step_bytes=30 * GIB, host_bytes=64 * GIB)
    best = replace(result.best, memory=memory)
    text = render(replace(result, best=best))
    assert "does not fit" in text
    assert "51.0 GiB over" in text
    assert "host 0: 64.0 of 1024.0 GiB" in text


def test_no_bound_is_not_drawn_as_one() -> None:
    assert "<dt>Proven bound</dt><dd>unproven</dd>" in render(make_result(bound=None))


def test_rendering_is_deterministic(result: PlanningResult) -> None:
    assert render(result) == render(replace(result))


def test_a_chart_wider_than_a_telephone_says_that_it_goes_on(text: str) -> None:
    boxes = re.findall(r'chartbox( goes-on)?"><div class="chart" style="min-width:(\d+)px', text)
    assert {width for _, width in boxes} >= {"700"}
    assert all((int(width) > 390) is bool(told) for told, width in boxes)
    assert "The chart goes on to the right" in text
