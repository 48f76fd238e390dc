"""Every table: what it costs, how it is cut, and where it is."""

from __future__ import annotations

from typing import ClassVar, final

from markupsafe import Markup

from costmodels.sharding import TablePlacement
from costmodels.workload import Table
from planner.models import pipeline_of
from planner.report import figures
from planner.report.base import Cell, Column, Fact, Kind, Section
from planner.report.evidence import Evidence, table_costs
from planner.report.page import fill, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult
from planner.support.result_frames import ranks_held

_MOST_ROWS = 40
_HOT_RATIO = 0.01
_TOP, _FOLDED = 20, 30
"""With more tables than ``_FOLDED``, only the first ``_TOP`` are shown until a reader unfolds the
list."""

_COLUMNS = (
    Column("table"),
    Column("cost", Kind.SHARE, hint="share of the time that all tables cause"),
    Column("lookup", Kind.TIME, optional=True, hint="mean per rank, forward and backward"),
    Column("exchange", Kind.TIME, optional=True, hint="mean per rank, all collectives"),
    Column("type", hint="TorchRec's abbreviations, explained above"),
    Column("kernel", optional=True),
    Column("ranks"),
    Column("rows", Kind.COUNT),
    Column("dim", Kind.COUNT),
    Column("size", Kind.BYTES),
    Column("pooling", Kind.NUMBER, optional=True, hint="indices per sample, all features"),
    Column("hot rows", Kind.SHARE, optional=True, hint="accesses on the hottest 1 % of rows"),
)

_BODY = """\
<p>{{ kinds }}. {{ note }}</p>
{%- if top %}{{ top }}<details><summary>All {{ count }} tables, with a search</summary>{% endif -%}
<p class="tools"><label>Search <input type="search" data-for="tablelist" \
placeholder="name, type, kernel, rank" autocomplete="off"></label> \
<output data-for="tablelist">{{ count }} of {{ count }}</output></p>
{{- box }}{% if top %}</details>{% endif %}"""
_NOTE = (
    "Cost is the time of lookups and collectives, shared out over tables by what each brings to "
    "them on each rank. Hot rows: share of accesses on the hottest 1 % of rows."
)


@final
class TablesSection(AbstractReportSection):
    """A row for each table, the most expensive first.

    The terminal shows the first ones. The page has all tables and a box to search them; of a long
    list only the first rows are open.
    """

    title: ClassVar[str] = "Tables"
    short: ClassVar[str] = "Tables"
    order: ClassVar[int] = 60

    def build(self, result: PlanningResult) -> Section:
        """The tables that cost most; the rest are in plan.json."""
        rows = _rows(result)
        hidden = len(rows) - _MOST_ROWS
        left_out = [f"{hidden} cheaper tables left out; plan.json has them all."]
        return Section(
            title=self.title,
            facts=(Fact(label="Sharding", parts=figures.kinds_in_words(result.plan)),),
            columns=_COLUMNS,
            rows=tuple(rows[:_MOST_ROWS]),
            notes=(_NOTE, *(left_out if hidden > 0 else ())),
        )

    def draw(self, evidence: Evidence) -> Markup:
        """The list of the chosen plan."""
        rows = _rows(evidence.result)
        top = grid(_COLUMNS, rows[:_TOP], css="list") if len(rows) > _FOLDED else None
        kinds = ", ".join(figures.kinds_in_words(evidence.result.plan))
        box = grid(_COLUMNS, rows, css="list", ident="tablelist")
        return fill(_BODY, kinds=kinds, note=_NOTE, count=f"{len(rows):,}", top=top, box=box)


def _rows(result: PlanningResult) -> list[tuple[Cell, ...]]:
    tables = {t.name: t for t in result.problem.workload.tables}
    costs = table_costs(result.best, pipeline_of(result.problem))
    total_s = sum(map(sum, costs.values())) or 1.0
    ordered = sorted(result.plan.placements, key=lambda p: (-sum(costs[p.table]), p.table))
    return [_row(tables[p.table], p, costs[p.table], total_s) for p in ordered]


def _row(
    table: Table, placement: TablePlacement, cost_s: tuple[float, float], total_s: float
) -> tuple[Cell, ...]:
    ratio, kernel = placement.cache_load_factor_ratio, placement.kernel.value
    return (
        table.name,
        sum(cost_s) / total_s,
        *cost_s,
        figures.short_name(placement),
        kernel if ratio is None else f"{kernel} {ratio:.2g}",
        figures.where(ranks_held(placement)),
        table.num_embeddings,
        table.embedding_dim,
        table.weight_bytes,
        table.pooling_factor,
        table.distribution.access_share(max(1.0, _HOT_RATIO * table.num_embeddings)),
    )
