"""The page in a real browser; skipped where there is none.

Needs playwright from the extra ``dev`` and a Chromium on the path (Debian: ``chromium``).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from planner.report.run_files import page as render
from tests.planner.report.page_reader import Shown, differing
from tests.planner.report.report_samples import make_result, make_topology, make_workload

pytestmark = pytest.mark.slow
WIDTHS = {"desktop": 1280, "phone": 390}
SIZES = {"26x8": (26, 1, 8), "300x64": (300, 8, 8), "856x128": (856, 16, 8)}

OVERLAPS = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')]
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3)
    .map(([b]) => `${a} | ${b}`));
})"""
SPILLS = """() => [...document.querySelectorAll('svg.plot rect.on, svg.plot text.in')].filter(t => {
  const shape = t.previousElementSibling;
  return shape && shape.tagName === 'rect'
    && t.getBoundingClientRect().right > shape.getBoundingClientRect().right + 1;
}).map(t => t.textContent)"""
NUMBERS = """() => [...document.querySelectorAll('section td[data-v]')]
  .filter(e => e.dataset.v).map(e => [e.closest('section').id,
  e.closest('tr').cells[0].textContent,
  e.closest('table').tHead.rows[0].cells[e.cellIndex].textContent, e.dataset.v, e.textContent])"""


@dataclass(slots=True)
class Opened:
    """A page in the browser, and what it said and asked for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=SIZES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """report.html of a hand-made result of each size."""
    tables, hosts, local = SIZES[request.param]
    result = make_result(make_workload(tables), make_topology(hosts, local))
    folder = tmp_path_factory.mktemp("page")
    (folder / "report.html").write_text(render(result), encoding="utf-8")
    return folder


def opened(browser: Any, files: Path, width: int = 1280, **options: Any) -> Opened:
    """The page in a window of its own."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.errors.append(message.text))
    found.page.on("pageerror", lambda error: found.errors.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto((files / "report.html").as_uri())
    return found


def ground(page: Any) -> tuple[int, ...]:
    """Red, green and blue behind the text."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(part) for part in colour[4:-1].split(","))


def column(page: Any, index: int) -> list[str]:
    """``data-v`` or the text of a column of the table list, from top to bottom."""
    return page.evaluate(
        "i => [...document.querySelectorAll('#tablelist tbody tr')].filter(r => !r.hidden)"
        ".map(r => r.cells[i].dataset.v ?? r.cells[i].textContent)",
        index,
    )


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_word_and_without_a_request(
    browser: Any, files: Path, width: int, scheme: str
) -> None:
    found = opened(browser, files, width, color_scheme=scheme)
    assert found.errors == []
    assert found.requests == [(files / "report.html").as_uri()]
    assert (max(ground(found.page)) < 80) == (scheme == "dark")
    inner = found.page.evaluate("document.documentElement.scrollWidth")
    assert inner <= width, "the page itself does not scroll sideways"
    assert found.page.evaluate(OVERLAPS) == []
    assert found.page.evaluate(SPILLS) == []


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_very_long_name_leaves_room_for_the_numbers_beside_it(
    browser: Any, tmp_path: Path, width: int
) -> None:
    result = make_result(make_workload(6, prefix="x" * 200))
    (tmp_path / "report.html").write_text(render(result), encoding="utf-8")
    page = opened(browser, tmp_path, width).page
    names, region = page.evaluate(
        "() => { const t = document.querySelector('#tables table');"
        "const edge = e => e.getBoundingClientRect().right;"
        "return [edge(t.querySelector('tbody th')), edge(t.closest('.scroll'))]; }"
    )
    assert names < 0.6 * region


def test_numbers_equal_those_by_which_columns_are_sorted(browser: Any, files: Path) -> None:
    page = opened(browser, files).page
    shown = [Shown(*row) for row in page.evaluate(NUMBERS)]
    assert len(shown) > 200
    assert differing(shown) == []


def test_a_click_sorts_and_a_second_one_turns_round(browser: Any, files: Path) -> None:
    found = opened(browser, files)
    page = found.page
    heads = page.locator("#tablelist thead th")
    pooling = heads.all_text_contents().index("pooling")
    heads.nth(pooling).locator("button").click()
    values = [float(v) for v in column(page, pooling)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 20
    assert heads.nth(pooling).get_attribute("aria-sort") == "descending"
    heads.nth(pooling).locator("button").press("Enter")
    assert [float(v) for v in column(page, pooling)] == sorted(values)
    heads.nth(0).locator("button").click()
    names = column(page, 0)
    assert names == [f"table_{i}" for i in range(len(names))], "2 comes before 10"
    assert page.locator("#tablelist [aria-sort]").count() == 1
    assert found.errors == []


def test_search_leaves_what_has_all_words(browser: Any, files: Path) -> None:
    page = opened(browser, files).page
    every = len(column(page, 0))
    page.fill("#tables input[type=search]", "DENSE table_4")
    names = column(page, 0)
    assert "table_4" in names
    assert 0 < len(names) < every
    assert all(name.startswith("table_4") for name in names)
    assert page.inner_text("#tables output") == f"{len(names)} of {every}"
    page.fill("#tables input[type=search]", "no such table")
    assert column(page, 0) == []
    page.fill("#tables input[type=search]", "")
    assert len(column(page, 0)) == every


def test_the_theme_button_wins_over_the_system(browser: Any, files: Path) -> None:
    page = opened(browser, files, color_scheme="light").page
    light = ground(page)
    page.click("#theme")
    assert max(ground(page)) < 80
    page.reload()
    assert max(ground(page)) < 80, "the choice is kept"
    page.click("#theme")
    assert ground(page) == light


def test_charts_tell_details_to_mouse_and_keyboard(browser: Any, files: Path) -> None:
    page = opened(browser, files).page
    page.locator("#timeline rect").nth(1).hover()
    hovered = page.inner_text("#timeline .detail")
    assert "us" in hovered or "ms" in hovered
    page.mouse.move(1, 1)
    charts, details = page.locator("#stages svg.plot"), page.locator("#stages .detail")
    assert charts.count() == details.count() >= 1
    for at in range(charts.count()):
        charts.nth(at).focus()
        page.keyboard.press("ArrowRight")
        first = details.nth(at).inner_text()
        page.keyboard.press("ArrowRight")
        assert first
        assert details.nth(at).inner_text() not in ("", first)


def test_every_control_is_reached_by_tab(browser: Any, files: Path) -> None:
    page = opened(browser, files).page
    seen = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "A", "BUTTON", "INPUT", "SUMMARY", "svg", "DIV"} <= seen


def test_it_prints_whole_and_dark_on_white(browser: Any, files: Path, tmp_path: Path) -> None:
    page = opened(browser, files, color_scheme="dark").page
    rows = len(column(page, 0))
    page.emulate_media(media="print", color_scheme="dark")
    assert ground(page) == (255, 255, 255)
    assert not page.is_visible("#theme")
    assert not page.is_visible("nav")
    cut = "document.querySelector('#tables .scroll').scrollHeight - " \
        "document.querySelector('#tables .scroll').clientHeight"  # fmt: skip
    assert page.evaluate(cut) <= 1, "no rows hidden in a box"
    page.set_viewport_size({"width": 702, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 702
    printed = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") >= 1 + rows // 150
