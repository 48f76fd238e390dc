"""Runners-up and baselines: how much slower each plan is, and in which stages."""

from __future__ import annotations

from typing import ClassVar, final

from markupsafe import Markup

from planner.report import _figures as figures
from planner.report.base import Cell, Column, Kind, Section
from planner.report.html import _stages
from planner.report.html._evidence import Evidence
from planner.report.html._templates import fill
from planner.report.html.base import Block, Field, Number, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import Candidate, PlanningResult
from planner.support.text import printable

_FIELDS = (
    Field("role", "role", source="search"),
    Field("iteration", "iteration_time_s", Kind.TIME, "s"),
    Field("loses", "loss_s", Kind.DELTA, "s", hint="against the chosen plan"),
    Field("ratio", "time_ratio", Kind.FACTOR, "1"),
    Field("samples", "samples_per_s", Kind.RATE, "1/s"),
    Field("fullest device", "fullest_used_bytes", Kind.BYTES, "B", source="computed"),
    Field("worst/mean rank", "imbalance_ratio", Kind.FACTOR, "1"),
    Field("kinds", "kinds", source="search"),
)


_BODY = """\
<p>All priced by the same models as the chosen plan.\
{% if kinds %} Column kinds: {{ kinds }}{% endif %}</p>
{{- table }}
{%- for name in unfit -%}
<p>{{ name }}: found no plan that fits or keeps the constraints.</p>
{%- endfor %}
{% if losses %}
<h3>Where they lose</h3><p>Time on the critical path, less that of the chosen plan; each row sums to
what the plan loses.</p>
{{- losses }}
{% endif %}"""


@final
class AlternativesSection(AbstractReportSection):
    """One row for each plan, all priced by the same models.

    The page also shows how much more or less time each plan spends in each family of stages.
    """

    title: ClassVar[str] = "Runners-up and baselines"
    short: ClassVar[str] = "Alternatives"
    order: ClassVar[int] = 80

    def build(self, result: PlanningResult) -> Section:
        """The chosen plan first, then the others from fast to slow."""
        best = result.best
        plans = _plans(result)
        columns = (
            Column(title="plan"),
            Column(title="role", optional=True),
            Column(title="iteration", kind=Kind.TIME),
            Column(title="ratio", kind=Kind.FACTOR),
            Column(title="samples", kind=Kind.RATE),
            Column(title="fullest GiB", kind=Kind.GIB, optional=True),
            Column(title="worst/mean", kind=Kind.FACTOR, optional=True),
            Column(title="kinds"),
        )
        rows = tuple(_cells(best, *item) for item in plans)
        keeps = " and keeps the constraints" if result.problem.has_rules else ""
        unfit = tuple(
            f"{printable(name)}: found no plan that fits{keeps}" for name in result.unfit_baselines
        )
        words = figures.abbreviations(plan.plan for _, _, plan in plans)
        kinds = (f"Column kinds: {words}",) if words else ()
        return Section(
            title="Baselines and runners-up", columns=columns, rows=rows, notes=(*kinds, *unfit)
        )

    def draw(self, evidence: Evidence) -> Block:
        """The same plans in the same order, and the stages in which the others lose time."""
        result = evidence.result
        plans = _plans(result)
        rows = [(printable(name), _row(result.best, role, plan)) for name, role, plan in plans]
        table, numbers = grid("plan", _FIELDS, rows)
        losses, more = _losses(result.best, plans[1:])
        body = fill(
            _BODY,
            kinds=figures.abbreviations(plan.plan for _, _, plan in plans),
            table=table,
            unfit=result.unfit_baselines,
            losses=losses,
        )
        return Block(name="alternatives", title=self.title, body=body, numbers=numbers + more)


def _plans(result: PlanningResult) -> list[tuple[str, str, Candidate]]:
    """Name, role and plan: the chosen one, then the others from fast to slow."""
    chosen, *others = figures.named_plans(result)
    return [chosen, *sorted(others, key=lambda item: item[2].estimate.time.time_s)]


def _cells(best: Candidate, name: str, role: str, plan: Candidate) -> tuple[Cell, ...]:
    return (
        name,
        role,
        plan.estimate.time.time_s,
        figures.speedup(best, plan),
        plan.estimate.samples_per_s,
        plan.memory.fullest.used_bytes,
        plan.estimate.imbalance_ratio,
        ", ".join(figures.sharding_kinds(plan.plan)),
    )


def _row(best: Candidate, role: str, plan: Candidate) -> tuple[Cell, ...]:
    estimate = plan.estimate
    loss_s = estimate.time.time_s - best.estimate.time.time_s
    return (
        role,
        estimate.time.time_s,
        None if plan is best else loss_s,
        figures.speedup(best, plan),
        estimate.samples_per_s,
        plan.memory.fullest.used_bytes,
        estimate.imbalance_ratio,
        ", ".join(figures.sharding_kinds(plan.plan)),
    )


def _losses(
    best: Candidate, others: list[tuple[str, str, Candidate]]
) -> tuple[Markup, tuple[Number, ...]]:
    """Seconds of each family of stages on the critical path, minus those of the chosen plan."""
    if not others:
        return Markup(), ()
    mine = _stages.family_seconds(best.estimate)
    spent = {name: _stages.family_seconds(plan.estimate) for name, _, plan in others}
    used = [f for f in _stages.FAMILIES if f in mine or any(f in s for s in spent.values())]
    fields = tuple(Field(_stages.FAMILIES[f], f"loss_{f}_s", Kind.DELTA, "s") for f in used)
    rows = [
        (f"{printable(name)}", tuple(s.get(f, 0.0) - mine.get(f, 0.0) for f in used))
        for name, s in spent.items()
    ]
    table, numbers = grid("plan", fields, rows, css="delta")
    return table, numbers
