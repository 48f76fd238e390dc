"""Other values, moves, systems and plans; and what the figures rest on."""

from __future__ import annotations

from typing import final

from markupsafe import Markup

from costmodels import units
from costmodels.estimates import Source
from planner.report import figures
from planner.report.base import Column, Fact, Kind, Section, by_field, format_share
from planner.report.page import block
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult
from planner.support.text import counted


@final
class AssumedSection(AbstractReportSection, order=15, title="Assumed"):
    """One row for each assumed value, with the step of this plan at the other end of its range."""

    def build(self, result: PlanningResult) -> Section | None:
        """Key, value, number of tables, another value, and the step with that value alone."""
        if not result.assumed:
            return None
        ours_s = result.estimate.time.time_s
        return Section.of(
            self.title,
            result.assumed,
            {
                **by_field("what", "assumed=value"),
                Column("tables", Kind.COUNT): lambda a: a.num_tables or None,
                **by_field("at the other end=other", "step=time_s"),
                Column("change", Kind.DELTA): lambda a: a.time_s and a.time_s - ours_s,
            },
            notes=("The same plan, with one value changed at a time.",),
        )


@final
class MovesSection(
    AbstractReportSection, order=25, title="Bytes moved against step time", short="Moves"
):
    """A row for each number of tables; nothing if this was not asked for."""

    def build(self, result: PlanningResult) -> Section | None:
        """The curve, and the table that the limit blocks."""
        if not result.curve:
            return None
        before_s = result.curve[0].move.before_s
        notes = [
            "at least: a proven bound; no plan within the limits of the row has a shorter "
            "iteration. paid back after: training on the new plan until it has saved the time of "
            "the move. A table that is cut anew, while no rank receives a part of it, does not "
            "count as moved."
        ]
        blocked = result.blocked
        if blocked is not None:
            more = format_share(1.0 - blocked.iteration_s / result.estimate.time.time_s)
            moved = units.format_bytes(blocked.moved_bytes)
            notes.append(
                f"The limit on moves blocks table {blocked.table}: moving it too ({moved}) would "
                f"save another {more}."
            )
        return Section.of(
            self.title,
            result.curve,
            {
                Column("at most"): lambda p: _at_most(p.most_tables),
                **by_field("tables=move.moved_tables", "moved=move.moved_bytes"),
                **by_field("over the links=move.time_s", "iteration_s"),
                Column("saves", Kind.SHARE): lambda p: 1.0 - p.iteration_s / before_s,
                **by_field("at least=bound_s"),
                Column("paid back after"): lambda p: _payback(p.move.payback_s),
            },
            notes=tuple(notes),
        )


def _at_most(tables: int | None) -> str:
    return "the limit" if tables is None else counted(tables, "table")


def _payback(seconds: float | None) -> str:
    return "-" if seconds is None else units.format_long_time(seconds)


# ------------------------------------------------------------------ alternatives


@final
class AlternativesSection(
    AbstractReportSection, order=80, title="Runners-up and baselines", short="Alternatives"
):
    """One row for each plan, all priced by the same models."""

    def build(self, result: PlanningResult) -> Section:
        """The chosen plan first, then the others from fast to slow."""
        named = figures.named_plans(result)
        roles = {plan.name: role for role, plan in named}
        best, *others = (plan for _, plan in named)
        words = figures.abbreviations(plan.plan for _, plan in named)
        notes = (
            *((f"Column sharding: {words}",) if words else ()),
            *figures.unfit_baselines(result),
        )
        return Section.of(
            self.title,
            [best, *sorted(others, key=lambda plan: plan.estimate.time.time_s)],
            {
                Column("plan"): lambda p: p.name,
                Column("role", optional=True): lambda p: roles[p.name],
                Column("ratio", Kind.FACTOR): lambda p: figures.speedup(result.best, p),
                **figures.PLAN_CELLS,
            },
            notes=notes,
        )


# ------------------------------------------------------------------ sources, limits


@final
class ProvenanceSection(
    AbstractReportSection, order=100, title="Sources of numbers", short="Sources"
):
    """How the model is trained, and one row for each number of the system, weak sources first."""

    def build(self, result: PlanningResult) -> Section:
        """Name, value as written, source and reference of each number."""
        entries = result.problem.topology.provenance
        workload = result.problem.workload
        optimizers = {workload.optimizer_of(table).value: None for table in workload.tables}
        trained = ", ".join(optimizers) or workload.optimizer.value
        training = (f"pipeline {workload.pipeline.value}", f"optimizer {trained}")
        return Section.of(
            self.title,
            sorted(entries, key=lambda entry: -list(Source).index(entry.source)),
            {
                **by_field("number=name"),
                Column("value"): lambda entry: entry.value,
                **by_field("source=source.value", "reference"),
            },
            facts=(Fact("Training", training),),
        )


@final
class LimitsSection(AbstractReportSection, order=110, title="Limits of the model", short="Limits"):
    """A list on the page, which begins with the warnings of this plan."""

    def draw(self, result: PlanningResult) -> Markup:
        """The warnings, and then the limits that hold for every plan."""
        own = dict.fromkeys((*result.warnings, *result.estimate.warnings))
        return block("limits", own=own)
