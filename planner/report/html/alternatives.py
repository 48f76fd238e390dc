"""Runner-up plans and baselines: how much each loses, and in which stages."""

from __future__ import annotations

from typing import ClassVar, final

from planner.printable import printable
from planner.report import _figures as figures
from planner.report.base import Cell, Kind
from planner.report.html import _stages
from planner.report.html._evidence import Evidence
from planner.report.html.base import AbstractHtmlSection, Block, Field, Number, grid, text
from planner.result import Candidate

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


@final
class AlternativesSection(AbstractHtmlSection):
    """A table of plans, and a table of what each spends more or less per family of stages."""

    title: ClassVar[str] = "Runners-up and baselines"
    short: ClassVar[str] = "Alternatives"
    order: ClassVar[int] = 80

    def build(self, evidence: Evidence) -> Block:
        """The chosen plan first, then the others from fast to slow."""
        result = evidence.result
        chosen, *others = figures.named_plans(result)
        others.sort(key=lambda item: item[2].estimate.time.time_s)
        plans = [chosen, *others]
        best = result.best
        rows = [(printable(name), _row(best, role, plan)) for name, role, plan in plans]
        table, numbers = grid("plan", _FIELDS, rows)
        losses, more = _losses(best, others)
        unfit = "".join(
            f"<p>{text(name)}: found no plan that fits or keeps the constraints.</p>"
            for name in result.unfit_baselines
        )
        kinds = figures.abbreviations(plan.plan for _, _, plan in plans)
        intro = (
            "<p>All priced by the same models as the chosen plan. "
            f"{text(f'Column kinds: {kinds}' if kinds else '')}</p>"
        )
        body = f"{intro}{table}{unfit}{losses}"
        return Block(name="alternatives", title=self.title, body=body, numbers=numbers + more)


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
) -> tuple[str, tuple[Number, ...]]:
    """Seconds per family of stages on the critical path, less those of the chosen plan."""
    if not others:
        return "", ()
    mine = _stages.family_seconds(best.estimate)
    spent = {name: _stages.family_seconds(plan.estimate) for name, _, plan in others}
    used = [f for f in _stages.FAMILIES if f in mine or any(f in s for s in spent.values())]
    fields = tuple(Field(_stages.FAMILIES[f], f"loss_{f}_s", Kind.DELTA, "s") for f in used)
    rows = [
        (f"{printable(name)}", tuple(s.get(f, 0.0) - mine.get(f, 0.0) for f in used))
        for name, s in spent.items()
    ]
    table, numbers = grid("plan", fields, rows, css="delta")
    words = (
        "<h3>Where they lose</h3><p>Time on the critical path, less that of the chosen plan; each "
        "row sums to what the plan loses.</p>"
    )
    return words + table, numbers
