"""The memory ledger: what fills each rank, against its capacity."""

from __future__ import annotations

from typing import ClassVar, final

from costmodels.estimates import MemoryLedger, RankMemory
from planner.report import _figures as figures
from planner.report.base import (
    AbstractReportSection,
    Cell,
    Column,
    Fact,
    Kind,
    Section,
    format_cell,
    format_gib,
)
from planner.result import PlanningResult

_MOST_ROWS = 16
_SHOWN_AT_ENDS = 6


@final
class MemorySection(AbstractReportSection):
    """One row per group of equal ranks, fullest first; the middle is left out when many."""

    title: ClassVar[str] = "Memory"
    order: ClassVar[int] = 40

    def build(self, result: PlanningResult) -> Section:
        """Bytes by purpose; ranks whose rows read the same are shown as one."""
        ledger = result.best.memory
        rows = _grouped(ledger)
        shown, notes = _condensed(rows)
        hosts = [h for h in ledger.hosts if h.used_bytes > 0]
        fullest = ledger.fullest
        facts = [
            Fact(
                label="Fullest",
                parts=(
                    f"rank {fullest.rank}",
                    f"{format_gib(fullest.headroom_bytes)} GiB free",
                    "fits" if ledger.fits else "DOES NOT FIT",
                ),
            )
        ]
        if hosts:
            parts = tuple(
                f"{h.host}: {format_gib(h.used_bytes)} of {format_gib(h.capacity_bytes)} GiB"
                for h in sorted(hosts, key=lambda h: -h.used_bytes)[:_SHOWN_AT_ENDS]
            )
            facts.append(Fact(label="Hosts", parts=parts))
        columns = _columns()
        keep = [i for i, c in enumerate(columns) if not c.optional or any(row[i] for row in rows)]
        return Section(
            title=self.title,
            facts=tuple(facts),
            columns=tuple(columns[i] for i in keep),
            rows=tuple(tuple(row[i] for i in keep) for row in shown),
            notes=notes,
        )


def _columns() -> tuple[Column, ...]:
    """Purposes that hold nothing on any rank are left out."""
    purposes = ("weights", "optimizer", "gradients", "cache", "buffers", "dense", "reserve")
    return (
        Column(title="ranks"),
        Column(title="used GiB", kind=Kind.GIB),
        Column(title="capacity", kind=Kind.GIB),
        Column(title="share", kind=Kind.SHARE),
        *(Column(title=title, kind=Kind.GIB, optional=True) for title in purposes),
    )


def _grouped(ledger: MemoryLedger) -> list[tuple[Cell, ...]]:
    """One row per group of ranks whose numbers print alike, the fullest first."""
    kinds = [column.kind for column in _columns()[1:]]
    groups: dict[tuple[str, ...], tuple[list[int], tuple[float, ...]]] = {}
    for rank in sorted(ledger.ranks, key=lambda r: (r.headroom_bytes, r.rank)):
        values = _values(rank)
        key = tuple(format_cell(kind, value) for kind, value in zip(kinds, values, strict=True))
        groups.setdefault(key, ([], values))[0].append(rank.rank)
    return [(figures.rank_ranges(ranks), *values) for ranks, values in groups.values()]


def _values(rank: RankMemory) -> tuple[float, ...]:
    return (
        rank.used_bytes,
        rank.capacity_bytes,
        rank.used_bytes / rank.capacity_bytes,
        rank.weights_bytes,
        rank.optimizer_bytes,
        rank.gradients_bytes,
        rank.cache_bytes,
        rank.buffers_bytes,
        rank.dense_bytes,
        rank.reserved_bytes,
    )


def _condensed(
    rows: list[tuple[Cell, ...]],
) -> tuple[list[tuple[Cell, ...]], tuple[str, ...]]:
    if len(rows) <= _MOST_ROWS:
        return rows, ()
    left_out = len(rows) - 2 * _SHOWN_AT_ENDS
    note = f"Fullest and emptiest shown; {left_out} groups of ranks between them left out."
    return rows[:_SHOWN_AT_ENDS] + rows[-_SHOWN_AT_ENDS:], (note,)
