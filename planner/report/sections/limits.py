"""What the model leaves out, so that nobody expects more of the numbers than they can say."""

from __future__ import annotations

from typing import ClassVar, final

from markupsafe import Markup

from planner.report.evidence import Evidence
from planner.report.page import fill
from planner.report.sections.base import AbstractReportSection

_ALWAYS = (
    "The interval covers the errors of the models and of their inputs, as seen on measurements or "
    "assumed by kind of source. It does not cover a workload that differs from the one described.",
    "Every iteration is taken to be alike: mean pooling factors and stable index distributions. "
    "Bursts, stragglers, restarts and checkpoints are left out.",
    "The cluster is taken to be quiet and its links alike; other jobs on the same network are not "
    "modelled.",
    "Every collective joins all ranks and starts when the last one arrives; partial overlap inside "
    "a kernel is not modelled. Communication beside compute slows compute by one factor.",
    "The bound is proven for the model and the listed options, not for the machine: another "
    "sharding type, kernel or batch size outside the search space may do better.",
    "Memory leaves out what the framework and the allocator add beyond the reserve.",
)


@final
class LimitsSection(AbstractReportSection):
    """A list on the page, which begins with the warnings of this plan."""

    title: ClassVar[str] = "Limits of the model"
    short: ClassVar[str] = "Limits"
    order: ClassVar[int] = 110

    def draw(self, evidence: Evidence) -> Markup:
        """The warnings, and then the limits that hold for every plan."""
        result = evidence.result
        own = dict.fromkeys((*result.warnings, *result.estimate.warnings))
        return fill("{{ blocks.listed(lines) }}", lines=(*own, *_ALWAYS))
