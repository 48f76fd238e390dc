"""Runners-up and baselines: how much slower each plan is, and in which stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, final

from markupsafe import Markup

from costmodels import units
from planner.report import figures
from planner.report.base import Cell, Column, Kind, Section, format_factor, laid_out
from planner.report.evidence import FAMILIES, Evidence, family_seconds
from planner.report.page import fill, grid, plain_body
from planner.report.sections.base import AbstractReportSection
from planner.result import Candidate, PlanningResult
from planner.support.text import printable

_BODY = """\
{{ plain }}<p>TorchRec's rating is the largest sum, over ranks, of its planner's estimates, with the
bandwidths of this system: a score in seconds, not a prediction. {{ sentence }}</p>
{%- if losses %}<h3>Where they lose</h3><p>Time on the critical path, less that of the chosen plan;
each row sums to what the plan loses.</p>{{ losses }}{% endif %}"""


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
        plans = _plans(result)
        keeps = " and keeps the constraints" if result.problem.has_rules else ""
        unfit = tuple(
            f"{printable(name)}: found no plan that fits{keeps}" for name in result.unfit_baselines
        )
        words = figures.abbreviations(plan.plan for _, _, plan in plans)
        kinds = (f"Column kinds: {words}",) if words else ()
        columns, rows = laid_out(
            plans,
            (
                (Column("plan"), lambda item: item[0]),
                (Column("role", optional=True), lambda item: item[1]),
                (Column("iteration", Kind.TIME), lambda item: item[2].estimate.time.time_s),
                (Column("ratio", Kind.FACTOR), lambda item: figures.speedup(result.best, item[2])),
                (Column("samples", Kind.RATE), lambda item: item[2].estimate.samples_per_s),
                (
                    Column("fullest GiB", Kind.GIB, optional=True),
                    lambda item: item[2].memory.fullest.used_bytes,
                ),
                (
                    Column("worst/mean", Kind.FACTOR, optional=True),
                    lambda item: item[2].estimate.imbalance_ratio,
                ),
                (Column("kinds"), lambda item: ", ".join(figures.sharding_kinds(item[2].plan))),
            ),
        )
        return Section(title=self.title, columns=columns, rows=rows, notes=(*kinds, *unfit))

    def draw(self, evidence: Evidence) -> Markup:
        """The same plans with TorchRec's ratings, and the stages in which others lose time."""
        result = evidence.result
        names = (name for name, _, _ in figures.named_plans(result))
        rated_s = dict(zip(names, evidence.rated_s, strict=True))
        section = self.build(result)
        ratings = replace(
            section,
            columns=(*section.columns, Column("TorchRec's rating", Kind.TIME)),
            rows=tuple((*row, rated_s[str(row[0])]) for row in section.rows),
        )
        losses = _losses(result.best, _plans(result)[1:])
        return fill(
            _BODY, plain=plain_body(ratings), sentence=_sentence(result, rated_s), losses=losses
        )


def _sentence(result: PlanningResult, rated_s: Mapping[str, float]) -> str:
    """How TorchRec's own plan compares under both judges."""
    own, _ = figures.split_baselines(result)
    if own is None:
        return "TorchRec's greedy search found no plan to set beside ours."
    ours, theirs = rated_s[result.best.name], rated_s[own.name]
    ratio = f"{format_factor(theirs / ours)} that" if ours else f"{units.format_time(theirs)}"
    return (
        f"TorchRec's own plan takes {format_factor(figures.speedup(result.best, own))} the time of "
        f"the chosen plan under our model; its rating is {ratio} of the chosen plan."
    )


def _plans(result: PlanningResult) -> list[tuple[str, str, Candidate]]:
    """Name, role and plan: the chosen one, then the others from fast to slow."""
    chosen, *others = figures.named_plans(result)
    return [chosen, *sorted(others, key=lambda item: item[2].estimate.time.time_s)]


def _losses(best: Candidate, others: list[tuple[str, str, Candidate]]) -> Markup | None:
    """Seconds of each family of stages on the critical path, minus those of the chosen plan."""
    if not others:
        return None
    mine = family_seconds(best.estimate)
    spent = {name: family_seconds(plan.estimate) for name, _, plan in others}
    used = [f for f in FAMILIES if f in mine or any(f in s for s in spent.values())]
    columns = (Column("plan"), *(Column(FAMILIES[f], Kind.DELTA) for f in used))
    rows: list[tuple[Cell, ...]] = [
        (name, *(s.get(f, 0.0) - mine.get(f, 0.0) for f in used)) for name, s in spent.items()
    ]
    return grid(columns, rows)
