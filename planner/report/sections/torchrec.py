"""All plans under this package's model and under TorchRec's estimates, side by side."""

from __future__ import annotations

from typing import ClassVar, final

from markupsafe import Markup

from planner.report import figures
from planner.report.base import Cell, Column, Kind, format_factor, laid_out
from planner.report.evidence import Evidence
from planner.report.page import fill, grid
from planner.report.sections.base import AbstractReportSection
from planner.result import TORCHREC_BASELINE, Candidate

_SAME_RATIO = 0.005

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

    def draw(self, evidence: Evidence) -> Markup | None:
        """One row for each plan, as in the section on alternatives."""
        if not evidence.rated_s:
            return None
        best_s, best_rating_s = evidence.result.estimate.time.time_s, evidence.rated_s[0]
        pairs = list(zip(figures.named_plans(evidence.result), evidence.rated_s, strict=True))
        columns, rows = laid_out(
            pairs,
            (
                (Column("plan"), lambda pair: pair[0][0]),
                (Column("role"), lambda pair: pair[0][1]),
                (Column("our model", Kind.TIME), lambda pair: _time_s(pair[0][2])),
                (Column("vs chosen", Kind.FACTOR), lambda pair: _over(_time_s(pair[0][2]), best_s)),
                (Column("TorchRec's rating", Kind.TIME), lambda pair: pair[1]),
                (Column("vs chosen", Kind.FACTOR), lambda pair: _over(pair[1], best_rating_s)),
            ),
        )
        return fill(_BODY, sentence=_sentence(rows), table=grid(columns, rows))


def _time_s(plan: Candidate) -> float:
    return plan.estimate.time.time_s


def _over(time_s: float, best_s: float) -> float | None:
    return time_s / best_s if best_s else None


def _sentence(rows: tuple[tuple[Cell, ...], ...]) -> str:
    found = next((row for row in rows if row[0] == TORCHREC_BASELINE), None)
    if found is None or found[3] is None or found[5] is None:
        return "TorchRec's greedy search found no plan to set beside ours."
    ours, theirs = float(found[3]), float(found[5])
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
