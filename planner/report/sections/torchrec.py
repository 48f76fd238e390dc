"""All plans under this package's model and under TorchRec's estimates, side by side."""

from __future__ import annotations

from typing import ClassVar, final

from planner.report import _figures as figures
from planner.report.base import Cell, Kind, format_factor
from planner.report.html._evidence import Evidence
from planner.report.html._templates import fill
from planner.report.html.base import Block, Field, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import TORCHREC_BASELINE, PlanningResult
from planner.support.text import printable

_SAME_RATIO = 0.005

_FIELDS = (
    Field("role", "role", source="search"),
    Field("our model", "iteration_time_s", Kind.TIME, "s"),
    Field("vs chosen", "time_ratio", Kind.FACTOR, "1"),
    Field("TorchRec's rating", "rating_s", Kind.TIME, "s", source="TorchRec 1.8 estimates"),
    Field("vs chosen", "rating_ratio", Kind.FACTOR, "1", source="TorchRec 1.8 estimates"),
)


_BODY = """\
<p>TorchRec's planner minimises the largest sum, over ranks, of its estimates of the shards there:
lookups at a share of the memory bandwidth and exchanges at the link's bandwidth, no unique rows, no
overlap, no waiting. Its rating is a score in seconds, not a prediction of the iteration; here it is
computed with the bandwidths of this system.</p><p>{{ sentence }}</p>
{{- table }}"""


@final
class TorchrecSection(AbstractReportSection):
    """Every plan under both models, on the page; absent if no plan could be rated."""

    title: ClassVar[str] = "Judged by TorchRec's estimates"
    short: ClassVar[str] = "TorchRec's view"
    order: ClassVar[int] = 90

    def build(self, result: PlanningResult) -> None:
        """None: this part is only on the page."""

    def draw(self, evidence: Evidence) -> Block | None:
        """One row for each plan, as in the section on alternatives."""
        if not evidence.rated_s:
            return None
        best_s, best_rating_s = evidence.result.estimate.time.time_s, evidence.rated_s[0]
        pairs = list(zip(figures.named_plans(evidence.result), evidence.rated_s, strict=True))
        rows: list[tuple[str, tuple[Cell, ...]]] = [
            (
                printable(name),
                (
                    role,
                    plan.estimate.time.time_s,
                    plan.estimate.time.time_s / best_s if best_s else None,
                    rating_s,
                    rating_s / best_rating_s if best_rating_s else None,
                ),
            )
            for (name, role, plan), rating_s in pairs
        ]
        table, numbers = grid("plan", _FIELDS, rows)
        body = fill(_BODY, sentence=_sentence(rows), table=table)
        return Block(name="torchrec", title=self.title, body=body, numbers=numbers)


def _sentence(rows: list[tuple[str, tuple[Cell, ...]]]) -> str:
    found = next((values for name, values in rows if name == TORCHREC_BASELINE), None)
    if found is None or found[2] is None or found[4] is None:
        return "TorchRec's greedy search found no plan to set beside ours."
    ours, theirs = float(found[2]), float(found[4])
    return (
        f"TorchRec's own plan takes {format_factor(ours)} the time of the chosen plan under our "
        f"model, and {_rated(theirs)} under TorchRec's own estimates."
    )


def _rated(ratio: float) -> str:
    if abs(ratio - 1) < _SAME_RATIO:
        return "is rated the same"
    if ratio == 0:
        return "is rated better (at no time at all)"
    return (
        f"is rated {format_factor(ratio)} as slow"
        if ratio > 1
        else (f"is rated better (the chosen plan is rated {format_factor(1 / ratio)} as slow)")
    )
