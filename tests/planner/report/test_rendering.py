from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from planner.cli.console import console_of
from planner.report import figures
from planner.report.base import (
    Column,
    Fact,
    Kind,
    Section,
    format_cell,
    format_interval,
    format_share,
)
from planner.report.sections.base import build_sections
from planner.report.terminal import print_facts, print_notes, print_sections
from planner.result import PlanningResult
from tests.planner.report.report_samples import make_result, make_workload


def render(sections: tuple[Section, ...], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    print_sections(console, sections)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_everything_fits_the_terminal(large_result: PlanningResult, width: int) -> None:
    text = render(build_sections(large_result), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_is_survived(large_result: PlanningResult, width: int) -> None:
    assert render(build_sections(large_result), width)


def test_a_wide_terminal_is_not_filled(
    large_result: PlanningResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    output = io.StringIO()
    print_sections(console_of(output), build_sections(large_result))
    assert max(len(line.rstrip()) for line in output.getvalue().splitlines()) <= 100


@pytest.mark.parametrize("width", [80, 100])
def test_numbers_are_never_cut(large_result: PlanningResult, width: int) -> None:
    for section in build_sections(large_result):
        lines = render((section,), width).splitlines()
        numbers = [i for i, c in enumerate(section.columns) if c.is_number and not c.optional]
        for row in section.rows:
            shown = [format_cell(section.columns[i].kind, row[i]) for i in numbers]
            assert any(all(text in line for text in shown) for line in lines), row


def test_optional_columns_go_first() -> None:
    section = Section(
        title="t",
        columns=(
            Column(title="name"),
            Column(title="needed", kind=Kind.COUNT),
            Column(title="spare", kind=Kind.COUNT, optional=True),
        ),
        rows=(("x" * 30, 123456789, 987654321),),
    )
    assert "987,654,321" in render((section,), 80)
    narrow = render((section,), 40)
    assert "987,654,321" not in narrow
    assert "123,456,789" in narrow
    assert narrow.count("x") == 30


def test_markup_and_control_codes_in_names_are_harmless() -> None:
    workload = make_workload(2, prefix="[red]x[/red]\x1b[31m|pipe\n")
    sections = build_sections(make_result(workload))
    text = render(sections, 100)
    assert "[red]" in text
    assert "\x1b" not in text


def test_facts_align_and_wrap_between_parts() -> None:
    console = Console(file=io.StringIO(), width=40)
    facts = (
        Fact(label="Label", parts=("one two three", "four five six", "seven eight")),
        Fact(label="Percent", parts=("12345678 " + "22 % " * 9,)),
        Fact(label="Much longer label", parts=("word " * 12,)),
    )
    print_facts(console, facts)
    print_notes(console, ("a note " * 10,))
    output = console.file
    assert isinstance(output, io.StringIO)
    lines = output.getvalue().splitlines()
    assert not any(line.strip().startswith("%") for line in lines)
    assert lines[0].startswith("Label")
    assert lines[1].startswith(" ")
    assert max(len(line.rstrip()) for line in lines) <= 44


def test_rendering_is_deterministic(result: PlanningResult) -> None:
    again = replace(result)
    assert render(build_sections(result), 100) == render(build_sections(again), 100)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Kind.TEXT, "a\tb", "a\\tb"),
        (Kind.TEXT, 7, "7"),
        (Kind.TEXT, None, "-"),
        (Kind.COUNT, 40_000_000, "40,000,000"),
        (Kind.TIME, 3.1e-3, "3.1 ms"),
        (Kind.BYTES, 2.0**30, "1 GiB"),
        (Kind.GIB, 41.25 * 2**30, "41.2"),
        (Kind.GIB, 2.0**20, "0.001"),
        (Kind.GIB, 0.0, "0.0"),
        (Kind.GIB, 3e-5 * 2**30, "0.00003"),
        (Kind.USD, 12_874.0, "12,874 USD"),
        (Kind.NUMBER, 9_999.7, "10,000"),
        (Kind.SHARE, 0.383, "38 %"),
        (Kind.SHARE, 0.034, "3.4 %"),
        (Kind.SHARE, -0.5, "-50 %"),
        (Kind.SHARE, -4e-4, "0.0 %"),
        (Kind.SHARE, -0.0, "0 %"),
        (Kind.FACTOR, 1.339, "1.34x"),
        (Kind.FACTOR, 1234.0, "1,234x"),
        (Kind.RATE, 21.1e6, "21.1 M/s"),
    ],
)
def test_cells(kind: Kind, value: str | float | None, text: str) -> None:
    assert format_cell(kind, value) == text


def test_shares_that_are_no_number() -> None:
    assert format_share(float("nan")) == "-"


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((3.1e-3, 2.9e-3, 3.4e-3), ("3.10 ms", "[2.90 .. 3.40]")),
        ((1.5, 1.2, 2.0), ("1.50 s", "[1.20 .. 2.00]")),
        ((42e-6, 40e-6, 110e-6), ("42.0 us", "[40.0 .. 110]")),
        ((0.9996e-3, 0.9e-3, 1.1e-3), ("1.00 ms", "[0.900 .. 1.10]")),
    ],
)
def test_an_interval_has_one_unit(
    times: tuple[float, float, float], expected: tuple[str, str]
) -> None:
    assert format_interval(*times) == expected


def test_rank_ranges() -> None:
    assert figures.rank_ranges([0, 1, 2, 8, 3]) == "0-3, 8"
    assert figures.rank_ranges([]) == ""
    assert figures.rank_ranges([5, 5, 6]) == "5-6"
