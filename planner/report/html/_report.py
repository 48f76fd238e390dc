"""report.html of a planning result."""

from __future__ import annotations

from costmodels import units
from planner.report import _figures as figures
from planner.report.html._page import render_page
from planner.report.html.base import Block
from planner.result import PlanningResult
from planner.support.text import counted


def render_report(result: PlanningResult, blocks: tuple[Block, ...]) -> str:
    """The page of a planning result."""
    workload, topology = result.problem.workload, result.problem.topology
    subtitle = (
        f"{counted(len(workload.tables), 'table')}, "
        f"{units.format_bytes(workload.weight_bytes)} of weights, "
        f"on {figures.cluster(topology)}, {workload.batch_size_per_rank:,} samples per rank"
    )
    return render_page(f"Sharding plan of {workload.name}", subtitle, blocks)
