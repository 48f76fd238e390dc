"""Where every number came from."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, final

from costmodels.estimates import Source
from planner.report.base import AbstractReportSection, Column, Fact, Section
from planner.result import PlanningResult


@final
class ProvenanceSection(AbstractReportSection):
    """One row per input number, the weakest sources first."""

    title: ClassVar[str] = "Where the numbers come from"
    order: ClassVar[int] = 90

    def build(self, result: PlanningResult) -> Section:
        """Name, value as written, source and reference."""
        entries = result.estimate.provenance or result.problem.topology.provenance
        counts = Counter(entry.source for entry in entries)
        ordered = sorted(entries, key=lambda entry: -entry.source.strength)
        columns = (
            Column(title="number"),
            Column(title="value"),
            Column(title="source"),
            Column(title="reference"),
        )
        parts = tuple(f"{counts[s]} {s.value}" for s in Source if counts[s])
        return Section(
            title=self.title,
            facts=(Fact(label="Sources", parts=parts),) if parts else (),
            columns=columns,
            rows=tuple((e.name, e.value, e.source.value, e.reference) for e in ordered),
        )
