"""What was assumed, and where every number comes from."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, final

from costmodels import units
from costmodels.estimates import Source
from costmodels.workload import Workload
from planner.report.base import Cell
from planner.report.html._evidence import Evidence
from planner.report.html.base import AbstractHtmlSection, Block, Field, Number, grid, text

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


@final
class ProvenanceSection(AbstractHtmlSection):
    """Assumptions about the workload, then one row per number of the system."""

    title: ClassVar[str] = "Assumptions and sources"
    short: ClassVar[str] = "Sources"
    order: ClassVar[int] = 100

    def build(self, evidence: Evidence) -> Block:
        """Weakest sources first."""
        result = evidence.result
        entries = result.estimate.provenance or result.problem.topology.provenance
        ordered = sorted(entries, key=lambda entry: -entry.source.strength)
        seen: Counter[str] = Counter()
        rows: list[tuple[str, tuple[Cell, ...]]] = []
        for entry in ordered:
            seen[entry.name] += 1
            again = f" {seen[entry.name]}" if seen[entry.name] > 1 else ""
            rows.append(
                (f"{entry.name}{again}", (entry.value, entry.source.value, entry.reference or None))
            )
        assumed, numbers = _assumptions(result.problem.workload)
        counts = Counter(entry.source for entry in entries)
        meant = "".join(
            f"<li><b>{counts[s]} {s.value}</b>: {_MEANINGS[s]}</li>" for s in Source if counts[s]
        )
        table, listed = grid("number", _FIELDS, rows, css="wide")
        body = (
            f"<h3>Workload</h3>{assumed}<h3>System</h3><ul>{meant}</ul>{table}" if rows else assumed
        )
        return Block(name="provenance", title=self.title, body=body, numbers=numbers + listed)


def _assumptions(workload: Workload) -> tuple[str, tuple[Number, ...]]:
    """What was said, or left to a default, about the workload."""
    laws = Counter(type(t.distribution).__name__.lower() for t in workload.tables)
    scattered = sum(t.distribution.scattered for t in workload.tables)
    total = len(workload.tables)
    spread = "spread evenly over the ids, as after hashing"
    if scattered < total:
        spread += f", in {scattered:,} of {total:,} tables; in the others as the ids are ordered"
    facts = [
        ("batch_size_per_rank", "Batch", f"{workload.local_batch_size:,} samples per rank"),
        ("pipeline", "Training pipeline", workload.pipeline.value),
        ("optimizer", "Optimizer of tables", workload.optimizer.value),
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
    items = "".join(f"<dt>{text(label)}</dt><dd>{text(value)}</dd>" for _, label, value in facts)
    numbers = tuple(
        Number(entity="workload", quantity=key, value=value, unit="", source="input")
        for key, _, value in facts
    )
    return f'<dl class="facts">{items}</dl>', numbers
