"""What else was priced: the plans of the baselines and the runners-up."""

from __future__ import annotations

from typing import ClassVar, final

from planner.printable import printable
from planner.report import _figures as figures
from planner.report.base import AbstractReportSection, Cell, Column, Kind, Section
from planner.result import Candidate, PlanningResult


@final
class AlternativesSection(AbstractReportSection):
    """One row per plan, all priced by the same models."""

    title: ClassVar[str] = "Baselines and runners-up"
    order: ClassVar[int] = 60

    def build(self, result: PlanningResult) -> Section:
        """The chosen plan first, then the others from fast to slow."""
        best = result.best
        chosen, *others = figures.named_plans(result)
        others.sort(key=lambda item: item[2].estimate.time.time_s)
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
        rows = tuple(_row(best, *item) for item in [chosen, *others])
        keeps = " and keeps the constraints" if result.problem.has_rules else ""
        unfit = tuple(
            f"{printable(name)}: found no plan that fits{keeps}" for name in result.unfit_baselines
        )
        words = figures.abbreviations(plan.plan for _, _, plan in [chosen, *others])
        kinds = (f"Column kinds: {words}",) if words else ()
        return Section(title=self.title, columns=columns, rows=rows, notes=(*kinds, *unfit))


def _row(best: Candidate, name: str, role: str, plan: Candidate) -> tuple[Cell, ...]:
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
