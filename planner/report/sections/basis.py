"""What the figures rest on: the sources of numbers, and the limits of the model."""

from __future__ import annotations

from collections import Counter
from typing import final

from markupsafe import Markup

from costmodels import units
from costmodels.pipeline import CostPipeline
from costmodels.workload import Workload
from planner.report.base import Column, Fact, Section, laid_out
from planner.report.page import fill
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult


@final
class ProvenanceSection(
    AbstractReportSection,
    order=100,
    title="Workload and sources",
    short="Sources",
    name="provenance",
):
    """The workload in short, and one row for each number of the system; weak sources come first."""

    def build(self, result: PlanningResult) -> Section:
        """Name, value as written, source and reference of each number."""
        entries = result.estimate.provenance or result.problem.topology.provenance
        columns, rows = laid_out(
            sorted(entries, key=lambda entry: -entry.source.strength),
            (
                (Column("number"), lambda entry: entry.name),
                (Column("value"), lambda entry: entry.value),
                (Column("source"), lambda entry: entry.source.value),
                (Column("reference"), lambda entry: entry.reference),
            ),
        )
        facts = _workload(result.problem.workload)
        return Section(title=self.title, facts=facts, columns=columns, rows=rows)


def _workload(workload: Workload) -> tuple[Fact, ...]:
    """How it is trained, and how its indices fall."""
    optimizers = Counter(workload.optimizer_of(t).value for t in workload.tables)
    laws = Counter(type(t.distribution).__name__.lower() for t in workload.tables)
    scattered = sum(t.distribution.scattered for t in workload.tables)
    total = len(workload.tables)
    spread = "hot rows spread evenly over the ids, as after hashing"
    if scattered < total:
        spread += f", in {scattered:,} of {total:,} tables; in the others as the ids are ordered"
    training = (
        f"{workload.batch_size_per_rank:,} samples per rank",
        f"pipeline {workload.pipeline.value}",
        f"optimizer {_told(optimizers) or workload.optimizer.value}",
        f"{units.format_bytes(workload.weight_bytes)} of weights",
    )
    indices = [Fact("Indices", (_told(laws), spread))] if total else []
    return (Fact("Training", training), *indices)


def _told(counts: Counter[str]) -> str:
    """What tables have, with the number of tables of each where they differ."""
    if len(counts) <= 1:
        return next(iter(counts), "")
    return ", ".join(f"{kind} ({count:,} tables)" for kind, count in counts.most_common())


# ------------------------------------------------------------------ limits

_ALWAYS = (
    "The interval covers the errors of the models and of their inputs, as seen on measurements or "
    "assumed by kind of source. It does not cover a workload that differs from the one described.",
    "Every iteration is taken to be alike: mean pooling factors and stable index distributions. "
    "Bursts, stragglers, restarts and checkpoints are left out.",
    "The cluster is taken to be quiet and its links alike; other jobs on the same network are not "
    "modelled.",
    "Every collective joins all ranks and starts when the last one arrives; partial overlap inside "
    "a kernel is not modelled. Communication beside compute slows compute by one factor.",
    "The bound is proven for the model and the listed options, not for the machine: another "
    "sharding type, kernel or batch size outside the search space may do better.",
    "Memory leaves out what the framework and the allocator add beyond the reserve.",
)


@final
class LimitsSection(
    AbstractReportSection, order=110, title="Limits of the model", short="Limits", name="limits"
):
    """A list on the page, which begins with the warnings of this plan."""

    def draw(self, result: PlanningResult, pipeline: CostPipeline) -> Markup:
        """The warnings, and then the limits that hold for every plan."""
        del pipeline
        own = dict.fromkeys((*result.warnings, *result.estimate.warnings))
        return fill("{{ blocks.listed(lines) }}", lines=(*own, *_ALWAYS))
