"""Every table: what it costs, how it is cut, and where it is."""

from __future__ import annotations

from typing import ClassVar, final

from costmodels.sharding import TablePlacement
from costmodels.workload import Table
from planner.report import _figures as figures
from planner.report.base import Cell, Column, Fact, Kind, Section
from planner.report.html._evidence import Evidence
from planner.report.html._table_costs import TableCost
from planner.report.html._templates import fill
from planner.report.html.base import Block, Field, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult
from planner.support.result_frames import ranks_held

_MOST_ROWS = 40
_MOST_RANKS = 8
"""A row of the terminal lists at most this many ranges of ranks."""
_MOST_PARTS = 4
"""A row of the page lists at most this many ranges of ranks."""
_HOT_RATIO = 0.01
_TOP, _FOLDED = 20, 30
"""With more tables than ``_FOLDED``, only the first ``_TOP`` are shown until a reader unfolds the
list."""
_TALL = 40
"""A list of more rows than this scrolls in a box of its own."""

_FIELDS = (
    Field("cost", "cost_ratio", Kind.SHARE, "1", hint="share of the time that all tables cause"),
    Field("lookup", "lookup_s", Kind.TIME, "s", hint="mean per rank, forward and backward"),
    Field("exchange", "exchange_s", Kind.TIME, "s", hint="mean per rank, all collectives"),
    Field("type", "sharding_type", source="plan", hint="TorchRec's abbreviations, explained above"),
    Field("kernel", "kernel", source="plan"),
    Field("ranks", "ranks", source="plan"),
    Field("shards", "num_shards", Kind.COUNT, "1", source="plan"),
    Field("rows", "num_embeddings", Kind.COUNT, "1", source="input"),
    Field("dim", "embedding_dim", Kind.COUNT, "1", source="input"),
    Field("size", "weight_bytes", Kind.BYTES, "B", source="input"),
    Field("pooling", "pooling_factor", Kind.NUMBER, "1", source="input",
          hint="indices per sample, all features"),
    Field("hot rows", "hot_share_ratio", Kind.SHARE, "1", source="input",
          hint="share of accesses on the hottest 1 % of rows"),
)  # fmt: skip


_BODY = """\
<p>{{ kinds }}. Cost is the time of lookups and collectives, shared out over tables by what each
brings to them on each rank. Hot rows: share of accesses on the hottest 1 % of rows.</p>
{%- if top %}{{ top }}<details><summary>All {{ count }} tables, with a search</summary>{% endif -%}
<p class="tools"><label>Search <input type="search" data-for="tablelist" \
placeholder="name, type, kernel, rank" autocomplete="off"></label> \
<output data-for="tablelist">{{ count }} of {{ count }}</output></p>
{{- box }}{% if top %}</details>{% endif %}"""


@final
class TablesSection(AbstractReportSection):
    """A row for each table, the most expensive first.

    Terminal and Markdown show the tables whose lookups read most. The page has all tables, ordered
    by their time, with a box to search them; of a long list only the first rows are open.
    """

    title: ClassVar[str] = "Tables"
    short: ClassVar[str] = "Tables"
    order: ClassVar[int] = 60

    def build(self, result: PlanningResult) -> Section:
        """The tables with the largest share of bytes read; the rest are in plan.json."""
        workload = result.problem.workload
        cost = {t.name: figures.lookup_bytes(t, workload) for t in workload.tables}
        total = sum(cost.values()) or 1.0
        ordered = sorted(workload.tables, key=lambda t: (-cost[t.name], t.name))
        placements = {p.table: p for p in result.plan.placements}
        rows = tuple(
            _row(table, placements[table.name], cost[table.name] / total)
            for table in ordered[:_MOST_ROWS]
        )
        hidden = len(ordered) - len(rows)
        left_out = (f"{hidden} cheaper tables left out; plan.json has them all.",) if hidden else ()
        note = (
            "Column share: share of the bytes that lookups read (batch x pooling factor x row). "
            f"Column type: {figures.abbreviations((result.plan,))}"
        )
        return Section(
            title=self.title,
            facts=(Fact(label="Sharding", parts=figures.kinds_in_words(result.plan)),),
            columns=_columns(),
            rows=rows,
            notes=(note, *left_out),
        )

    def draw(self, evidence: Evidence) -> Block:
        """The list of the chosen plan."""
        view, costs = evidence.view, evidence.table_costs
        total_s = sum(c.total_s for c in costs.values()) or 1.0
        placements = {p.table: p for p in view.plan.plan.placements}
        ordered = sorted(view.workload.tables, key=lambda t: (-costs[t.name].total_s, t.name))
        rows = [(t.name, row(t, placements[t.name], costs[t.name], total_s)) for t in ordered]
        box, numbers = grid(
            "table", _FIELDS, rows, ident="tablelist", css="list", tall=len(rows) > _TALL
        )
        top = None
        if len(rows) > _FOLDED:
            top, _ = grid("table", _FIELDS, rows[:_TOP], css="list")
        body = fill(
            _BODY,
            top=top,
            kinds=", ".join(figures.kinds_in_words(view.plan.plan)),
            count=f"{len(rows):,}",
            box=box,
        )
        return Block(name="tables", title=self.title, body=body, numbers=numbers)


def _columns() -> tuple[Column, ...]:
    return (
        Column(title="table"),
        Column(title="rows", kind=Kind.COUNT),
        Column(title="dim", kind=Kind.COUNT),
        Column(title="size", kind=Kind.BYTES),
        Column(title="share", kind=Kind.SHARE),
        Column(title="type"),
        Column(title="kernel", optional=True),
        Column(title="ranks"),
    )


def _row(table: Table, placement: TablePlacement, share: float) -> tuple[Cell, ...]:
    ratio = placement.cache_load_factor_ratio
    kernel = placement.kernel.value
    return (
        table.name,
        table.num_embeddings,
        table.embedding_dim,
        table.weight_bytes,
        share,
        figures.short_name(placement),
        kernel if ratio is None else f"{kernel} {ratio:.2g}",
        _where(placement),
    )


def _where(placement: TablePlacement) -> str:
    ranks = sorted(set(ranks_held(placement)))
    text = figures.rank_ranges(ranks)
    return text if text.count(",") < _MOST_RANKS else f"{len(ranks)} ranks"


def row(
    table: Table, placement: TablePlacement, cost: TableCost, total_s: float
) -> tuple[Cell, ...]:
    """The values of one table."""
    ratio = placement.cache_load_factor_ratio
    kernel = placement.kernel.value
    held = ranks_held(placement)
    hottest = table.distribution.access_share(max(1.0, _HOT_RATIO * table.num_embeddings))
    return (
        cost.total_s / total_s,
        cost.lookup_s,
        cost.exchange_s,
        figures.short_name(placement),
        kernel if ratio is None else f"{kernel} {ratio:.2g}",
        where(held),
        len(held),
        table.num_embeddings,
        table.embedding_dim,
        table.weight_bytes,
        table.pooling_factor,
        hottest,
    )


def where(ranks: list[int]) -> str:
    """Ranks as ranges if there are few of these, otherwise the number of ranks."""
    ranges = figures.rank_ranges(ranks)
    return ranges if ranges.count(",") < _MOST_PARTS else f"{len(set(ranks))} ranks"
