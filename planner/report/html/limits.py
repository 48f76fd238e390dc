"""What the model leaves out, so that nobody reads more into the numbers than is there."""

from __future__ import annotations

from typing import ClassVar, final

from planner.report.html._evidence import Evidence
from planner.report.html.base import AbstractHtmlSection, Block, text

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
class LimitsSection(AbstractHtmlSection):
    """A list, with the warnings of this plan first."""

    title: ClassVar[str] = "Limits of the model"
    short: ClassVar[str] = "Limits"
    order: ClassVar[int] = 110

    def build(self, evidence: Evidence) -> Block:
        """Warnings, then what always holds."""
        result = evidence.result
        own = dict.fromkeys((*result.warnings, *result.estimate.warnings))
        items = "".join(f"<li>{text(line)}</li>" for line in (*own, *_ALWAYS))
        return Block(name="limits", title=self.title, body=f"<ul>{items}</ul>")
