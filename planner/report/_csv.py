"""results.csv: every number of the report, for notebooks and spreadsheets.

There are two kinds of rows. The stages of every plan have ``section`` ``plan stages`` and the
columns from ``plan`` to ``duration_s``. All other rows are in long form: ``section, entity,
quantity, value, unit, source``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.report import _figures as figures
from planner.result import Candidate, PlanningResult
from planner.support.csv_text import csv_text

_WIDE = ("plan", "role", "rank", "stage", "stream", "start_s", "duration_s")
LONG_HEADER = ("section", "entity", "quantity", "value", "unit", "source")
HEADER = (*_WIDE, *LONG_HEADER)
_STAGES = "plan stages"


def render_csv(result: PlanningResult, long_rows: Iterable[Sequence[str]] = ()) -> str:
    """The stages of every plan that was fully priced, on every rank, then ``long_rows``."""
    blank = ("",) * len(_WIDE)
    stages = [row for named in figures.named_plans(result) for row in _rows(*named)]
    return csv_text(HEADER, [*stages, *((*blank, *row) for row in long_rows)])


def _rows(name: str, role: str, plan: Candidate) -> list[tuple[object, ...]]:
    blank = ("",) * (len(LONG_HEADER) - 1)
    return [
        (name, role, rank, stage.name, stage.stream, f"{start:.9g}", f"{duration:.9g}",
         _STAGES, *blank)
        for stage in plan.estimate.stages
        for rank, (start, duration) in enumerate(zip(stage.start_s, stage.duration_s, strict=True))
    ]  # fmt: skip
