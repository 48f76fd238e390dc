"""The files of a run: the plan, the report, what moves, and traces."""

from __future__ import annotations

from pathlib import Path

from planner import io
from planner.models import pipeline_of
from planner.report import figures
from planner.report.page import render_page
from planner.report.sections.base import build_blocks, build_sections
from planner.result import PlanningResult
from planner.support import files as support
from planner.trace.kineto import traces


def first_facts(result: PlanningResult) -> list[tuple[str, str]]:
    """The lines of the summary as the first screen of a terminal shows them, with their labels."""
    (summary,) = build_sections(result, ("summary",))
    return [(fact.label, "; ".join(fact.first.parts)) for fact in summary.facts]


def page(result: PlanningResult) -> str:
    """The text of ``report.html``."""
    (summary,) = build_sections(result, ("summary",))
    workload = result.problem.workload
    subtitle = ", ".join((*summary.facts[0].parts, f"pipeline {workload.pipeline.value}"))
    return render_page(f"Sharding plan of {workload.name}", subtitle, build_blocks(result))


def write_run(folder: Path, result: PlanningResult) -> tuple[Path, ...]:
    """Write the files of a run, completely or not at all, and return what was written.

    In an existing folder each file is replaced in one step, the plan last; the folder of traces is
    replaced as a whole, and what an earlier run has left is removed.
    """
    texts = {support.PLAN_FILE: io.plan_text(result), support.HTML_FILE: page(result)}
    limit = result.problem.move_limit
    if limit is not None:
        local = result.problem.topology.local_world_size
        texts[support.RESHARD_FILE] = io.reshard_text(
            limit.start, result.plan, result.problem.workload, local
        )
    ranks = [rank for _, rank in figures.notable_ranks(result.estimate)]
    traced = traces(pipeline_of(result.problem), result.plan, ranks=ranks)
    files = {name: text.encode() for name, text in texts.items()}
    files |= {f"{support.TRACE_FOLDER}/{name}": data for name, data in traced}
    support.write_files(folder, files, last=support.PLAN_FILE, stale=support.RUN_FILES)
    return tuple(folder / name for name in (*texts, *([support.TRACE_FOLDER] if traced else [])))
