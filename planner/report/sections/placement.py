"""Where everything is: memory of ranks and hosts, bytes between ranks, and every table."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from markupsafe import Markup

from costmodels import units
from costmodels.estimates import MemoryLedger, RankMemory
from costmodels.memory import ALLOCATOR_RATIO
from costmodels.sharding import TablePlacement
from costmodels.units import GIB
from costmodels.workload import Table
from planner.models import pipeline_of
from planner.report import figures
from planner.report.base import Cell, Column, Fact, Kind, Section, format_cell, format_gib
from planner.report.charts import VALUE_WIDTH, Lane, Tick, axis, lanes_chart, rank_groups, stacked
from planner.report.evidence import Evidence, View, table_costs
from planner.report.page import fill, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult
from planner.support.result_frames import ranks_held

# ------------------------------------------------------------------ memory

_MEMORY_MOST_ROWS = 16
_SHOWN_AT_ENDS = 6
"""This many rows are shown at each end of a long list."""

PURPOSES: dict[str, str] = {
    "weights": "weights",
    "optimizer": "optimizer state",
    "gradients": "gradients",
    "cache": "cache",
    "buffers": "buffers",
    "dense": "dense part",
    "reserved": "reserve",
}
"""The fields of the ledger, without ``_bytes``, and their names for people."""


_MEMORY_BODY = """\
<p>Device memory of {{ which }}. The solid line is the limit of the device, the dashed line the
limit less the reserve: what the planner may fill. The reserve is hatched.</p>
{{- blocks.legend(keys) }}{{ chart }}
<p>{{ hosts|join("; ") or "No table lives in host memory" }}.</p>"""


@final
class MemorySection(AbstractReportSection):
    """The memory of ranks and hosts, compared with its limits.

    Rows are groups of equal ranks, the fullest first; of many, the middle is left out. The page has
    one bar for each rank, or for the fullest rank of each host, and the hosts below them if tables
    are in host memory.
    """

    name: ClassVar[str] = "memory"
    title: ClassVar[str] = "Memory"
    short: ClassVar[str] = "Memory"
    order: ClassVar[int] = 40

    def build(self, result: PlanningResult) -> Section:
        """Bytes by purpose; ranks with the same printed numbers share a row."""
        ledger = result.best.memory
        rows = _grouped(ledger)
        shown, notes = _condensed(rows)
        hosts, facts = _hosts(ledger), []
        if result.problem.topology.compute_device != "cpu":
            facts.append(_reserve(ledger.fullest))
        if hosts:
            facts.append(Fact(label="Hosts", parts=hosts))
        columns = _columns()
        keep = [i for i, c in enumerate(columns) if not c.optional or any(row[i] for row in rows)]
        return Section(
            title=self.title,
            facts=tuple(facts),
            columns=tuple(columns[i] for i in keep),
            rows=tuple(tuple(row[i] for i in keep) for row in shown),
            notes=notes,
        )

    def draw_view(self, view: View) -> Markup:
        """Charts of one plan."""
        ledger = view.plan.memory
        groups = rank_groups(view.topology)
        fullest = [
            min((ledger.ranks[i] for i in g.ranks), key=lambda r: (r.headroom_bytes, r.rank))
            for g in groups
        ]
        names = [
            g.name if g.is_rank else f"{g.name}, rank {rank.rank}"
            for g, rank in zip(groups, fullest, strict=True)
        ]
        end = 1.02 * max(max(r.capacity_bytes, r.used_bytes) for r in fullest)
        lanes = [_lane(name, rank, end) for name, rank in zip(names, fullest, strict=True)]
        ticks = [*_axis(end)]
        limits = {(r.capacity_bytes, r.reserved_bytes) for r in fullest}
        if len(limits) == 1:
            ((capacity, reserve),) = limits
            ticks.append(Tick(at_ratio=capacity / end, label="", css="limit"))
            ticks.append(Tick(at_ratio=(capacity - reserve) / end, label="", css="reserve"))
        whole = "each host" if groups[0].name.startswith("host") else "each group of hosts"
        used = {p for rank in fullest for p, value in purposes_bytes(rank).items() if value > 0}
        return fill(
            _MEMORY_BODY,
            which="each rank" if groups[0].is_rank else f"the fullest rank of {whole}",
            keys=[(f"c-m-{p}", words) for p, words in PURPOSES.items() if p in used],
            chart=lanes_chart("Device memory", lanes, axis=ticks, value_width=VALUE_WIDTH),
            hosts=_hosts(ledger),
        )


def _reserve(rank: RankMemory) -> Fact:
    """The reserve, beside what PyTorch's allocator adds to the bytes that it gives out."""
    least, usual, most = (f"{ratio:.0%}".replace("%", " %") for ratio in ALLOCATOR_RATIO)
    more = format_gib(ALLOCATOR_RATIO[-1] * (rank.used_bytes - rank.reserved_bytes))
    return Fact(
        label="Reserve",
        parts=(
            f"{format_gib(rank.reserved_bytes)} GiB",
            f"PyTorch's allocator added {least} to {most} in measured steps, {usual} in the median",
            f"here up to {more} GiB",
        ),
    )


def _columns() -> tuple[Column, ...]:
    return (
        Column("ranks"),
        Column("used GiB", Kind.GIB),
        Column("capacity", Kind.GIB),
        Column("share", Kind.SHARE),
        *(Column(words.split()[0], Kind.GIB, optional=True) for words in PURPOSES.values()),
    )


def _grouped(ledger: MemoryLedger) -> list[tuple[Cell, ...]]:
    """One row for each group of ranks with the same printed numbers, the fullest first."""
    kinds = [column.kind for column in _columns()[1:]]
    groups: dict[tuple[str, ...], tuple[list[int], tuple[float, ...]]] = {}
    for rank in sorted(ledger.ranks, key=lambda r: (r.headroom_bytes, r.rank)):
        values = _values(rank)
        key = tuple(format_cell(kind, value) for kind, value in zip(kinds, values, strict=True))
        groups.setdefault(key, ([], values))[0].append(rank.rank)
    return [(figures.rank_ranges(ranks), *values) for ranks, values in groups.values()]


def _values(rank: RankMemory) -> tuple[float, ...]:
    share = rank.used_bytes / rank.capacity_bytes
    return (rank.used_bytes, rank.capacity_bytes, share, *purposes_bytes(rank).values())


def _condensed(rows: list[tuple[Cell, ...]]) -> tuple[list[tuple[Cell, ...]], tuple[str, ...]]:
    if len(rows) <= _MEMORY_MOST_ROWS:
        return rows, ()
    left_out = len(rows) - 2 * _SHOWN_AT_ENDS
    note = f"Fullest and emptiest shown; {left_out} groups of ranks between them left out."
    return rows[:_SHOWN_AT_ENDS] + rows[-_SHOWN_AT_ENDS:], (note,)


def purposes_bytes(rank: RankMemory) -> dict[str, float]:
    """Bytes by purpose, the reserve last."""
    return {name: float(getattr(rank, f"{name}_bytes")) for name in PURPOSES}


def _axis(end: float) -> tuple[Tick, ...]:
    return axis(end / GIB, lambda v: f"{v:,.0f} GiB" if v >= 1 else f"{v:g} GiB")


def _lane(name: str, rank: RankMemory, end: float) -> Lane:
    used = purposes_bytes(rank)
    reserved = used.pop("reserved")
    parts = [(f"m-{p}", f"{PURPOSES[p]}, {format_gib(v)} GiB", v) for p, v in used.items()]
    left = max(0.0, rank.capacity_bytes - reserved - sum(used.values()))
    parts += [("", "", left), ("m-reserved", f"reserve, {format_gib(reserved)} GiB", reserved)]
    free = rank.headroom_bytes
    value = f"{format_gib(free)} GiB free" if free >= 0 else f"{format_gib(-free)} GiB over"
    return stacked(name, parts, end, value)


def _hosts(ledger: MemoryLedger) -> tuple[str, ...]:
    """The fullest hosts; empty if no table is in host memory."""
    used = sorted((h for h in ledger.hosts if h.used_bytes > 0), key=lambda h: -h.used_bytes)
    return tuple(
        f"host {h.host}: {format_gib(h.used_bytes)} of {format_gib(h.capacity_bytes)} GiB"
        for h in used[:_SHOWN_AT_ENDS]
    )


# ------------------------------------------------------------------ traffic

_MOST_WITH_TEXT = 16
_STRONG = 0.85
"""From this share of the highest value on, the ground is so dark that the text is light."""

_TRAFFIC_BODY = """\
<p>MiB from {{ unit }} (rows) to {{ unit }} (columns) in one forward exchange of looked-up vectors;
the backward exchange is the transpose.
{% if not by_rank %}
Traffic inside a host is on the diagonal.
{% endif %}
Ranks wait for the fullest row or column.</p>
{{ blocks.matrix(heads, rows, received, dense, strong) }}"""


@final
class TrafficSection(AbstractReportSection):
    """A matrix of ranks, or of hosts if there are many ranks; only on the page."""

    name: ClassVar[str] = "traffic"
    title: ClassVar[str] = "All-to-all traffic"
    short: ClassVar[str] = "Traffic"
    order: ClassVar[int] = 50

    def draw_view(self, view: View) -> Markup:
        """The matrix of one plan."""
        if view.topology.world_size == 1:
            return Markup()
        groups = rank_groups(view.topology)
        names = [group.name for group in groups]
        starts = [g.ranks.start for g in groups]
        rows = np.add.reduceat(view.traffic_bytes, starts, axis=0)
        matrix = np.add.reduceat(rows, starts, axis=1)
        highest = float(matrix.max()) or 1.0
        cells = [
            [
                (*_cell(f"{a} to {b}", value), value / highest)
                for b, value in zip(names, row, strict=True)
            ]
            for a, row in zip(names, matrix, strict=True)
        ]
        sent = [_cell(f"{a} sends", v) for a, v in zip(names, matrix.sum(axis=1), strict=True)]
        received = [
            _cell(f"{a} receives", v) for a, v in zip(names, matrix.sum(axis=0), strict=True)
        ]
        return fill(
            _TRAFFIC_BODY,
            unit="hosts" if names[0].startswith("host") else "ranks",
            dense=len(groups) > _MOST_WITH_TEXT,
            strong=_STRONG,
            heads=[name.rpartition(" ")[2] for name in names],
            rows=list(zip(names, cells, sent, strict=True)),
            received=[*received, _cell("all", matrix.sum())],
            by_rank=groups[0].is_rank,
        )


def _cell(entity: str, num_bytes: float) -> tuple[str, str]:
    """MiB as text, and the text for a pointer on it."""
    mib = num_bytes / units.MIB
    words = f"{mib:,.0f}" if mib >= 99.95 else f"{mib:#.3g}".rstrip(".") if mib >= 0.01 else "<0.01"
    return words if num_bytes else "0", f"{entity}: {units.format_bytes(num_bytes)}"


# ------------------------------------------------------------------ tables

_TABLES_MOST_ROWS = 40
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

_TABLES_BODY = """\
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

    name: ClassVar[str] = "tables"
    title: ClassVar[str] = "Tables"
    short: ClassVar[str] = "Tables"
    order: ClassVar[int] = 60

    def build(self, result: PlanningResult) -> Section:
        """The tables that cost most; the rest are in plan.json."""
        rows = _rows(result)
        hidden = len(rows) - _TABLES_MOST_ROWS
        left_out = [f"{hidden} cheaper tables left out; plan.json has them all."]
        return Section(
            title=self.title,
            facts=(Fact(label="Sharding", parts=figures.kinds_in_words(result.plan)),),
            columns=_COLUMNS,
            rows=tuple(rows[:_TABLES_MOST_ROWS]),
            notes=(_NOTE, *(left_out if hidden > 0 else ())),
        )

    def draw(self, evidence: Evidence) -> Markup:
        """The list of the chosen plan."""
        rows = _rows(evidence.result)
        top = grid(_COLUMNS, rows[:_TOP], css="list") if len(rows) > _FOLDED else None
        kinds = ", ".join(figures.kinds_in_words(evidence.result.plan))
        box = grid(_COLUMNS, rows, css="list", ident="tablelist")
        return fill(_TABLES_BODY, kinds=kinds, note=_NOTE, count=f"{len(rows):,}", top=top, box=box)


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
