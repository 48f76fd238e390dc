"""results.csv: one row per plan, rank and stage, for notebooks and spreadsheets."""

from __future__ import annotations

import csv
import io

from planner.report import _figures as figures
from planner.result import Candidate, PlanningResult

HEADER = ("plan", "role", "rank", "stage", "stream", "start_s", "duration_s")


def render_csv(result: PlanningResult) -> str:
    """The stages of every plan that was fully priced, on every rank."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for name, role, plan in figures.named_plans(result):
        writer.writerows(_rows(name, role, plan))
    return text.getvalue()


def _rows(name: str, role: str, plan: Candidate) -> list[tuple[object, ...]]:
    return [
        (name, role, rank, stage.name, stage.stream, f"{start:.9g}", f"{duration:.9g}")
        for stage in plan.estimate.stages
        for rank, (start, duration) in enumerate(zip(stage.start_s, stage.duration_s, strict=True))
    ]
