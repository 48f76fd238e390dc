"""A part of the reports is one file: with rows alone it is in every output, on the page too."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import planner.report.sections
from costmodels.distribution.uniform import Uniform
from planner.report.page import block
from planner.report.run_files import page as render
from planner.report.sections.base import build_sections
from planner.report.terminal import print_sections
from planner.result import PlanningResult
from tests.planner.report.page_reader import differing, read_page
from tests.planner.report.report_samples import blocks_of

OWN = '''
"""Tables that are looked up more than twice per sample."""

from typing import final

from planner.report.base import Column, Fact, Kind, Section
from planner.report.sections.base import AbstractReportSection


@final
class BusyTables(AbstractReportSection, order=65, title="Busy <tables>", short="Busy"):
    """One row per such table."""

    def build(self, result):
        """Pooling factor and size."""
        found = [t for t in result.problem.workload.tables if t.pooling_factor > 2]
        return Section(
            title=self.title,
            facts=(Fact(label="Found", parts=(f"{len(found)} tables",)),),
            columns=(
                Column(title="class"),
                Column(title="pooling", kind=Kind.NUMBER),
                Column(title="size", kind=Kind.BYTES),
            ),
            rows=tuple(("busy", t.pooling_factor, t.weight_bytes) for t in found),
            notes=("More than <two> per sample.",),
        )
'''


@pytest.fixture
def own_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file ``busy_tables.py``, as if it lay in the package."""
    (tmp_path / "busy_tables.py").write_text(OWN, encoding="utf-8")
    package = planner.report.sections
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])


@pytest.mark.usefixtures("own_section")
def test_one_file_is_in_every_output(result: PlanningResult) -> None:
    sections = build_sections(result)
    titles = [section.title for section in sections]
    assert (
        titles.index("Tables")
        < titles.index("Busy <tables>")
        < titles.index("Runners-up and baselines")
    )
    console = Console(file=io.StringIO(), width=100, no_color=True)
    print_sections(console, sections)
    assert "Busy <tables>" in console.file.getvalue()  # type: ignore[attr-defined]
    page = read_page(render(result))
    assert "#busy_tables" in page.links
    assert {"Busy <tables>", "More than <two> per sample.", "2 tables"} <= set(page.words)
    assert differing(page.shown) == []
    own = [s for s in page.shown if s.section == "busy_tables" and s.quantity == "pooling"]
    assert [(s.entity, s.value) for s in own] == [("busy", "3"), ("busy", "4")]


def test_without_the_file_nothing_of_it_is_there(result: PlanningResult) -> None:
    assert "busy_tables" not in blocks_of(result)


def test_values_in_a_template_are_text_and_markup_stays() -> None:
    inner = block("facts", pairs=[("<i>&\"'\x1b[0m", "")])
    assert "<i>" not in inner
    assert "\x1b" not in inner
    outer = block("card", label='"><script>', value=inner, note="")
    assert f">{inner}</dd>" in outer
    assert "<script>" not in outer


def test_names_in_every_place_of_the_page_are_text(result: PlanningResult) -> None:
    """Names of workload, tables, plans, sources and warnings, as hostile as they can be."""
    bad = "</script><img src=x onerror=alert(1)>"
    tables = tuple(
        replace(t, name=f"{bad}{i}", distribution=Uniform(num_embeddings=t.num_embeddings))
        for i, t in enumerate(result.problem.workload.tables)
    )
    workload = replace(result.problem.workload, name=bad, tables=tables)
    names = {old.name: new.name for old, new in zip(
        result.problem.workload.tables, tables, strict=True)}  # fmt: skip

    def renamed(plan: object) -> object:
        placements = tuple(
            replace(p, table=names[p.table])
            for p in plan.plan.placements  # type: ignore[attr-defined]
        )
        return replace(plan, name=bad, plan=replace(plan.plan, placements=placements))  # type: ignore

    hostile = replace(
        result,
        problem=replace(result.problem, workload=workload),
        best=renamed(result.best),
        runners_up=tuple(map(renamed, result.runners_up)),
        baselines=tuple(map(renamed, result.baselines)),
        unfit_baselines=(bad,),
        warnings=(bad,),
        searched=(bad,),
    )
    page = read_page(render(hostile))
    assert "img" not in page.tags
    assert page.tags.count("script") == 1
    assert any(bad in words for words in page.words)
