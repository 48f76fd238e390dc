"""What was assumed, and where every number comes from."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, final

from markupsafe import Markup

from costmodels import units
from costmodels.estimates import Provenance, Source
from costmodels.workload import Workload
from planner.report.base import Cell, Column, Fact, Section
from planner.report.html._evidence import Evidence
from planner.report.html._templates import fill
from planner.report.html.base import Block, Field, Number, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

_FIELDS = (
    Field("value", "value", source="see source"),
    Field("source", "source", source="see source"),
    Field("reference", "reference", source="see source"),
)

_MEANINGS: dict[Source, str] = {
    Source.MEASURED: "measured on this kind of machine",
    Source.CALIBRATED: "fitted to measurements",
    Source.DATASHEET: "the vendor's figure",
    Source.USER: "given by you",
    Source.DEFAULT: "assumed for want of better",
}


_BODY = """\
{% if table is none %}
{{ assumed }}
{%- else %}
<h3>Workload</h3>{{ assumed }}<h3>System</h3><ul>
{%- for count, source, meaning in meanings %}<li><b>{{ count }} {{ source }}</b>: {{ meaning }}</li>
{%- endfor -%}
</ul>{{ table }}
{%- endif %}"""


@final
class ProvenanceSection(AbstractReportSection):
    """Assumptions about the workload, and then one row for each number of the system."""

    title: ClassVar[str] = "Workload and sources"
    short: ClassVar[str] = "Sources"
    order: ClassVar[int] = 100

    def build(self, result: PlanningResult) -> Section:
        """Name, value as written, source and reference of each number of the system."""
        entries = _entries(result)
        counts = Counter(entry.source for entry in entries)
        columns = (
            Column(title="number"),
            Column(title="value"),
            Column(title="source"),
            Column(title="reference"),
        )
        parts = tuple(f"{counts[s]} {s.value}" for s in Source if counts[s])
        return Section(
            title="Where the numbers come from",
            facts=(Fact(label="Sources", parts=parts),) if parts else (),
            columns=columns,
            rows=tuple((e.name, e.value, e.source.value, e.reference) for e in entries),
        )

    def draw(self, evidence: Evidence) -> Block:
        """The same rows, below the assumptions about the workload."""
        result = evidence.result
        entries = _entries(result)
        seen: Counter[str] = Counter()
        rows: list[tuple[str, tuple[Cell, ...]]] = []
        for entry in entries:
            seen[entry.name] += 1
            again = f" {seen[entry.name]}" if seen[entry.name] > 1 else ""
            rows.append(
                (f"{entry.name}{again}", (entry.value, entry.source.value, entry.reference or None))
            )
        assumed, numbers = _assumptions(result.problem.workload)
        counts = Counter(entry.source for entry in entries)
        table, listed = grid("number", _FIELDS, rows, css="wide")
        body = fill(
            _BODY,
            assumed=assumed,
            meanings=[(counts[s], s.value, _MEANINGS[s]) for s in Source if counts[s]],
            table=table if rows else None,
        )
        return Block(name="provenance", title=self.title, body=body, numbers=numbers + listed)


def _entries(result: PlanningResult) -> list[Provenance]:
    """The numbers behind the estimate, or else those of the system; weak sources come first."""
    entries = result.estimate.provenance or result.problem.topology.provenance
    return sorted(entries, key=lambda entry: -entry.source.strength)


def _optimizers(workload: Workload) -> str:
    """What updates the tables, with the number of tables of each where they differ."""
    used = Counter(workload.optimizer_of(t).value for t in workload.tables)
    if len(used) <= 1:
        return next(iter(used), workload.optimizer.value)
    return ", ".join(f"{kind} ({count:,} tables)" for kind, count in used.most_common())


def _assumptions(workload: Workload) -> tuple[Markup, tuple[Number, ...]]:
    """The properties of the workload, as given or by default."""
    laws = Counter(type(t.distribution).__name__.lower() for t in workload.tables)
    scattered = sum(t.distribution.scattered for t in workload.tables)
    total = len(workload.tables)
    spread = "spread evenly over the ids, as after hashing"
    if scattered < total:
        spread += f", in {scattered:,} of {total:,} tables; in the others as the ids are ordered"
    facts = [
        ("batch_size_per_rank", "Batch", f"{workload.batch_size_per_rank:,} samples per rank"),
        ("pipeline", "Training pipeline", workload.pipeline.value),
        ("optimizer", "Optimizer of tables", _optimizers(workload)),
        (
            "index_laws",
            "Index distributions",
            ", ".join(f"{count:,} {law}" for law, count in laws.most_common()),
        ),
        (
            "hot_rows",
            "Where hot rows lie",
            spread,
        ),
        ("weights", "Weights", units.format_bytes(workload.weight_bytes)),
    ]
    pairs = [(label, value) for _, label, value in facts]
    numbers = tuple(
        Number(entity="workload", quantity=key, value=value, unit="", source="input")
        for key, _, value in facts
    )
    return fill("{{ blocks.facts(pairs) }}", pairs=pairs), numbers
