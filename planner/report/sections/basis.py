"""What the figures rest on: the search, the sources of numbers, and the limits of the model."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final, final

from markupsafe import Markup

from costmodels import units
from costmodels.estimates import Source
from costmodels.workload import Workload
from planner.report.base import Column, Fact, Kind, Section, format_cell
from planner.report.charts import ChartDot, Figure, Place, legend, scatter
from planner.report.evidence import Evidence
from planner.report.figures import objective_kind
from planner.report.page import fill
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult, SolverReport

# ------------------------------------------------------------------ search

_LEAST_S: Final = 1e-3
_INCUMBENT, _BOUND = "best plan so far", "proven bound"

_BODY = """\
<p>The optimum lies between the two lines; both axes are logarithmic.</p>{{ legend }}{{ chart }}"""


@final
class SearchSection(AbstractReportSection):
    """A chart with two step lines that come closer to each other; only on the page."""

    name: ClassVar[str] = "search"
    title: ClassVar[str] = "Search"
    short: ClassVar[str] = "Search"
    order: ClassVar[int] = 70

    def draw(self, evidence: Evidence) -> Markup:
        """The chart, if the search has kept its history."""
        solver = evidence.result.solver
        if not solver.progress:
            return Markup()
        return fill(_BODY, legend=legend((_INCUMBENT, _BOUND)), chart=_chart(solver))


def _chart(solver: SolverReport) -> Markup:
    points = [*solver.progress, (solver.seconds, solver.value, solver.bound)]
    best = _changes([(max(t, _LEAST_S), v) for t, v, _ in points])
    bounds = _changes(
        [(max(t, _LEAST_S), b) for t, _, b in points if b is not None and 0 < b < math.inf]
    )
    low, high = _range([v for _, v in best], [b for _, b in bounds])
    kind, unit = objective_kind(solver.objective)
    up = Figure(title="ms", factor=1e3) if kind is Kind.TIME else Figure(title=unit)
    dots, lines = [], {}
    for name, series in ((_BOUND, bounds), (_INCUMBENT, best)):
        shown = [(t, min(max(v, low), high)) for t, v in series]
        dots += [
            ChartDot(x=t, y=y, name=name, told=f"{name} {format_cell(kind, v)} after {t:.2f} s")
            for (t, y), (_, v) in zip(shown, series, strict=True)
        ]
        lines[name] = _steps(shown, end_s=max(solver.seconds, _LEAST_S))
    label = "Best plan so far and proven bound against time"
    names = (_INCUMBENT, _BOUND)
    return scatter(label, dots, names, Figure(title="s"), up, lines=lines, margin=1.01)


def _changes(series: list[Place]) -> list[Place]:
    """The points at which the value changes, and the last one."""
    changed = [next(same) for _, same in itertools.groupby(series, key=lambda point: point[1])]
    return changed if changed[-1:] == series[-1:] else [*changed, series[-1]]


def _range(values: Sequence[float], bounds: Sequence[float]) -> Place:
    """The range of values: from the best bound to the first plan, without far worse values."""
    last = values[-1]
    low = bounds[-1] if bounds else min(values)
    gap = max(last - low, 0.02 * last, 1e-12)
    low = max(min(bounds, default=low), low - gap, 1e-12)
    return low, max(min(max(values), last + 4 * gap), low + 1.25 * gap)


def _steps(series: Sequence[Place], end_s: float) -> list[Place]:
    """The corners of a step line that goes on to the end."""
    corners = []
    for i, (t, value) in enumerate(series):
        until = series[i + 1][0] if i + 1 < len(series) else max(t, end_s)
        corners += [(t, value), (until, value)]
    return corners


# ------------------------------------------------------------------ provenance

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

    name: ClassVar[str] = "provenance"
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
class LimitsSection(AbstractReportSection):
    """A list on the page, which begins with the warnings of this plan."""

    name: ClassVar[str] = "limits"
    title: ClassVar[str] = "Limits of the model"
    short: ClassVar[str] = "Limits"
    order: ClassVar[int] = 110

    def draw(self, evidence: Evidence) -> Markup:
        """The warnings, and then the limits that hold for every plan."""
        result = evidence.result
        own = dict.fromkeys((*result.warnings, *result.estimate.warnings))
        return fill("{{ blocks.listed(lines) }}", lines=(*own, *_ALWAYS))
