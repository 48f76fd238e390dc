"""Every table's cut and place, the most expensive first."""

from __future__ import annotations

from typing import ClassVar, final

from costmodels.sharding import TablePlacement
from costmodels.workload import Table
from planner.report import _figures as figures
from planner.report.base import AbstractReportSection, Cell, Column, Fact, Kind, Section
from planner.result import PlanningResult

_MOST_ROWS = 40
_MOST_RANKS = 8


@final
class TablesSection(AbstractReportSection):
    """One row per table, ordered by its share of the bytes that lookups read."""

    title: ClassVar[str] = "Tables"
    order: ClassVar[int] = 50

    def build(self, result: PlanningResult) -> Section:
        """The top tables by cost share; the rest are in plan.json."""
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
            facts=(Fact(label="Kinds", parts=figures.kinds_in_words(result.plan)),),
            columns=_columns(),
            rows=rows,
            notes=(note, *left_out),
        )


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
    ranks = sorted({s.rank for s in placement.shards if s.num_rows > 0 and s.num_cols > 0})
    text = figures.rank_ranges(ranks)
    return text if text.count(",") < _MOST_RANKS else f"{len(ranks)} ranks"
