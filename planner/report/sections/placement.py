"""Where everything is: memory of ranks and hosts, bytes between ranks, and every table."""

from __future__ import annotations

from typing import final

import numpy as np
from markupsafe import Markup

from costmodels import units
from costmodels.estimates import MemoryLedger, RankMemory
from costmodels.memory import ALLOCATOR_RATIO
from costmodels.pipeline import CostPipeline
from costmodels.shard_work.work import output_traffic_bytes
from costmodels.units import GIB
from planner.models import pipeline_of
from planner.report import figures
from planner.report.base import (
    Cell,
    Column,
    Fact,
    Kind,
    Section,
    format_gib,
    format_share,
    laid_out,
)
from planner.report.charts import VALUE_WIDTH, Lane, Tick, axis, lanes_chart, rank_groups, stacked
from planner.report.page import block, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import Candidate, PlanningResult
from planner.support.result_frames import ranks_held
from planner.support.text import significant

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
"""The fields of the ledger, without ``_bytes``, and their names for people; the reserve last."""


@final
class MemorySection(AbstractReportSection, order=40, title="Memory"):
    """The memory of ranks and hosts, compared with its limits.

    Rows are groups of equal ranks, the fullest first; of many, the middle is left out. The page has
    one bar for each rank, or for the fullest rank of each host, and the hosts below them if tables
    are in host memory.
    """

    def build(self, result: PlanningResult) -> Section:
        """Bytes by purpose; ranks with the same printed numbers share a row."""
        ledger = result.best.memory
        groups: dict[tuple[str, ...], list[RankMemory]] = {}
        for rank in _fullest_first(ledger):
            sizes = (rank.used_bytes, rank.capacity_bytes, *purposes_bytes(rank).values())
            groups.setdefault(tuple(map(format_gib, sizes)), []).append(rank)
        used = [p for p in PURPOSES if any(purposes_bytes(r)[p] for r in ledger.ranks)]
        columns, rows = laid_out(
            groups.values(),
            (
                (Column("ranks"), lambda ranks: figures.rank_ranges([r.rank for r in ranks])),
                (Column("used GiB", Kind.GIB), lambda ranks: ranks[0].used_bytes),
                (Column("capacity", Kind.GIB), lambda ranks: ranks[0].capacity_bytes),
                (
                    Column("share", Kind.SHARE),
                    lambda ranks: ranks[0].used_bytes / ranks[0].capacity_bytes,
                ),
                *(
                    (
                        Column(PURPOSES[p].split()[0], Kind.GIB, optional=True),
                        lambda ranks, p=p: purposes_bytes(ranks[0])[p],
                    )
                    for p in used
                ),
            ),
        )
        notes: tuple[str, ...] = ()
        if len(rows) > _MEMORY_MOST_ROWS:
            left_out = len(rows) - 2 * _SHOWN_AT_ENDS
            rows = rows[:_SHOWN_AT_ENDS] + rows[-_SHOWN_AT_ENDS:]
            told = f"{left_out} groups of ranks between them left out"
            notes = (f"Fullest and emptiest shown; {told}.",)
        facts = [Fact(label="Hosts", parts=figures.fullest_hosts(ledger)[:_SHOWN_AT_ENDS])]
        if result.problem.topology.compute_device != "cpu":
            facts.insert(0, _reserve(ledger.fullest))
        facts = [fact for fact in facts if fact.parts]
        return Section(
            title=self.title, facts=tuple(facts), columns=columns, rows=rows, notes=notes
        )

    def draw_plan(self, plan: Candidate, pipeline: CostPipeline, scale_s: float = 0.0) -> Markup:
        """A bar for each rank, or for the fullest of each group of ranks."""
        del scale_s
        groups, in_order = rank_groups(pipeline.topology), _fullest_first(plan.memory)
        fullest = {
            name: next(r for r in in_order if r.rank in ranks) for name, ranks in groups.items()
        }
        each = len(groups) == pipeline.topology.world_size
        end = 1.02 * max(max(r.capacity_bytes, r.used_bytes) for r in fullest.values())
        lanes = [
            _lane(name if each else f"{name}, rank {rank.rank}", rank, end)
            for name, rank in fullest.items()
        ]
        ticks = [*axis(end / GIB, lambda v: f"{v:,.0f} GiB" if v >= 1 else f"{v:g} GiB")]
        limits = {(r.capacity_bytes, r.capacity_bytes - r.reserved_bytes) for r in fullest.values()}
        if len(limits) == 1:
            lines = zip(*limits, ("limit", "reserve"), strict=True)
            ticks += [Tick(at_ratio=at / end, label="", css=css) for at, css in lines]
        used = {p for r in fullest.values() for p, value in purposes_bytes(r).items() if value > 0}
        return block(
            "memory",
            which="each rank" if each else "the fullest rank of each group of ranks",
            keys=[(f"c-m-{p}", words) for p, words in PURPOSES.items() if p in used],
            chart=lanes_chart("Device memory", lanes, axis=ticks, value_width=VALUE_WIDTH),
            hosts=figures.fullest_hosts(plan.memory)[:_SHOWN_AT_ENDS],
        )


def _fullest_first(ledger: MemoryLedger) -> list[RankMemory]:
    return sorted(ledger.ranks, key=lambda r: (r.headroom_bytes, r.rank))


def _reserve(rank: RankMemory) -> Fact:
    """The reserve, beside what PyTorch's allocator adds to the bytes that it gives out."""
    least, usual, most = map(format_share, ALLOCATOR_RATIO)
    more = format_gib(ALLOCATOR_RATIO[-1] * (rank.used_bytes - rank.reserved_bytes))
    return Fact(
        label="Reserve",
        parts=(
            f"{format_gib(rank.reserved_bytes)} GiB",
            f"PyTorch's allocator added {least} to {most} in measured steps, {usual} in the median",
            f"here up to {more} GiB",
        ),
    )


def purposes_bytes(rank: RankMemory) -> dict[str, float]:
    """Bytes by purpose."""
    return {name: float(getattr(rank, f"{name}_bytes")) for name in PURPOSES}


def _lane(name: str, rank: RankMemory, end: float) -> Lane:
    """Bytes by purpose, then what is free, then the reserve at the end of the memory."""
    used = purposes_bytes(rank)
    gap = max(0.0, rank.capacity_bytes - sum(used.values()))
    parts = [(f"m-{p}", f"{PURPOSES[p]}, {format_gib(v)} GiB", v) for p, v in used.items()]
    parts.insert(-1, ("", "", gap))
    free = rank.headroom_bytes
    value = f"{format_gib(free)} GiB free" if free >= 0 else f"{format_gib(-free)} GiB over"
    return stacked(name, parts, end, value)


# ------------------------------------------------------------------ traffic

_MOST_WITH_TEXT = 16
_STRONG = 0.85
"""From this share of the highest value on, the ground is so dark that the text is light."""


@final
class TrafficSection(AbstractReportSection, order=50, title="All-to-all traffic", short="Traffic"):
    """A matrix of ranks, or of hosts if there are many ranks; only on the page."""

    def draw_plan(
        self, plan: Candidate, pipeline: CostPipeline, scale_s: float = 0.0
    ) -> Markup | None:
        """The matrix of one plan, unless there is a single rank."""
        del scale_s
        world = pipeline.topology.world_size
        if world == 1:
            return None
        groups = rank_groups(pipeline.topology)
        names, starts = list(groups), [ranks.start for ranks in groups.values()]
        traffic = output_traffic_bytes(pipeline.plan_work(plan.plan), pipeline.topology)
        matrix = np.add.reduceat(np.add.reduceat(traffic, starts, axis=0), starts, axis=1)
        highest = float(matrix.max()) or 1.0
        rows = []
        for a, row in zip(names, matrix, strict=True):
            cells = zip(names, row, strict=True)
            shown = [(*_cell(f"{a} to {b}", value), value / highest) for b, value in cells]
            rows.append((a, shown, _cell(f"{a} sends", row.sum())))
        sums = zip(names, matrix.sum(axis=0), strict=True)
        received = [_cell(f"{a} receives", value) for a, value in sums]
        return block(
            "traffic",
            unit="hosts" if names[0].startswith("host") else "ranks",
            dense=len(groups) > _MOST_WITH_TEXT,
            strong=_STRONG,
            heads=[name.rpartition(" ")[2] for name in names],
            rows=rows,
            received=[*received, _cell("all", matrix.sum())],
            by_rank=len(groups) == world,
        )


def _cell(entity: str, num_bytes: float) -> tuple[str, str]:
    """MiB as text, and the text for a pointer on it."""
    return significant(num_bytes / units.MIB), f"{entity}: {units.format_bytes(num_bytes)}"


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
_NOTE = (
    "Cost is the time of lookups and collectives, shared out over tables by what each brings to "
    "them on each rank. Hot rows: share of accesses on the hottest 1 % of rows."
)


@final
class TablesSection(AbstractReportSection, order=60, title="Tables"):
    """A row for each table, the most expensive first.

    The terminal shows the first ones. The page has all tables and a box to search them; of a long
    list only the first rows are open.
    """

    def build(self, result: PlanningResult) -> Section:
        """The tables that cost most; the rest are in plan.json."""
        rows = _rows(result)
        hidden = len(rows) - _TABLES_MOST_ROWS
        left_out = [f"{hidden} cheaper tables left out; plan.json has them all."]
        return Section(
            title=self.title,
            facts=(Fact(label="Sharding", parts=figures.kinds_in_words(result.plan)),),
            columns=_COLUMNS,
            rows=rows[:_TABLES_MOST_ROWS],
            notes=(_NOTE, *(left_out if hidden > 0 else ())),
        )

    def draw(self, result: PlanningResult) -> Markup:
        """The list of the chosen plan."""
        rows = _rows(result)
        top = grid(_COLUMNS, rows[:_TOP], css="list") if len(rows) > _FOLDED else None
        kinds = ", ".join(figures.kinds_in_words(result.plan))
        box = grid(_COLUMNS, rows, css="list", ident="tablelist")
        return block("tables", kinds=kinds, note=_NOTE, count=f"{len(rows):,}", top=top, box=box)


def _rows(result: PlanningResult) -> tuple[tuple[Cell, ...], ...]:
    """A row for each table, in the order of their costs."""
    tables = {t.name: t for t in result.problem.workload.tables}
    costs = figures.table_costs(result.best, pipeline_of(result.problem))
    total_s = sum(map(sum, costs.values())) or 1.0
    in_order = sorted(result.plan.placements, key=lambda p: (-sum(costs[p.table]), p.table))
    return tuple(
        (
            table.name,
            sum(costs[table.name]) / total_s,
            *costs[table.name],
            figures.short_name(placement),
            figures.kernel_name(placement),
            figures.where(ranks_held(placement)),
            table.num_embeddings,
            table.embedding_dim,
            table.weight_bytes,
            table.pooling_factor,
            table.distribution.access_share(max(1.0, _HOT_RATIO * table.num_embeddings)),
        )
        for placement in in_order
        for table in (tables[placement.table],)
    )
