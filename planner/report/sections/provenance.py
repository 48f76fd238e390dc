"""What was planned for, and where every number of the system comes from."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final, final

from costmodels import units
from costmodels.estimates import Source
from costmodels.workload import Workload
from planner.report.base import Column, Fact, Section
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

_MEANINGS: Final[dict[Source, str]] = {
    Source.MEASURED: "measured on this kind of machine",
    Source.CALIBRATED: "fitted to measurements",
    Source.DATASHEET: "the vendor's figure",
    Source.USER: "given by you",
    Source.DEFAULT: "assumed for want of better",
}


@final
class ProvenanceSection(AbstractReportSection):
    """The workload in short, and one row for each number of the system; weak sources come first."""

    title: ClassVar[str] = "Workload and sources"
    short: ClassVar[str] = "Sources"
    order: ClassVar[int] = 100

    def build(self, result: PlanningResult) -> Section:
        """Name, value as written, source and reference of each number."""
        entries = result.estimate.provenance or result.problem.topology.provenance
        counts = Counter(entry.source for entry in entries)
        parts = tuple(f"{counts[s]} {s.value}: {_MEANINGS[s]}" for s in Source if counts[s])
        return Section(
            title=self.title,
            facts=tuple(
                fact
                for fact in (*_workload(result.problem.workload), Fact("Sources", parts))
                if fact.parts
            ),
            columns=(Column("number"), Column("value"), Column("source"), Column("reference")),
            rows=tuple(
                (e.name, e.value, e.source.value, e.reference)
                for e in sorted(entries, key=lambda entry: -entry.source.strength)
            ),
        )


def _workload(workload: Workload) -> tuple[Fact, ...]:
    """How it is trained, and how its indices fall."""
    optimizers = Counter(workload.optimizer_of(t).value for t in workload.tables)
    laws = Counter(type(t.distribution).__name__.lower() for t in workload.tables)
    scattered = sum(t.distribution.scattered for t in workload.tables)
    total = len(workload.tables)
    spread = "hot rows spread evenly over the ids, as after hashing"
    if scattered < total:
        spread += f", in {scattered:,} of {total:,} tables; in the others as the ids are ordered"
    return (
        Fact(
            "Training",
            (
                f"{workload.batch_size_per_rank:,} samples per rank",
                f"pipeline {workload.pipeline.value}",
                f"optimizer {_told(optimizers) or workload.optimizer.value}",
                f"{units.format_bytes(workload.weight_bytes)} of weights",
            ),
        ),
        Fact("Indices", (_told(laws), spread) if total else ()),
    )


def _told(counts: Counter[str]) -> str:
    """What tables have, with the number of tables of each where they differ."""
    if len(counts) <= 1:
        return next(iter(counts), "")
    return ", ".join(f"{kind} ({count:,} tables)" for kind, count in counts.most_common())
