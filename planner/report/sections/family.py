"""The plans for fewer hosts, and what the loss of a host takes."""

from __future__ import annotations

import math
from statistics import mean
from typing import ClassVar, final

from costmodels import units
from planner.report.base import Cell, Column, Kind, Section, format_interval
from planner.report.sections.base import AbstractReportSection
from planner.result import FamilyMember, PlanningResult


@final
class FamilySection(AbstractReportSection):
    """A row for each number of hosts; nothing if no family was asked for."""

    title: ClassVar[str] = "When hosts are lost"
    short: ClassVar[str] = "Lost hosts"
    order: ClassVar[int] = 27

    def build(self, result: PlanningResult) -> Section | None:
        """The plans of the family, with what moves from each to the next."""
        family = result.family
        if family is None:
            return None
        columns = [
            Column(title="hosts", kind=Kind.COUNT),
            Column(title="samples per rank", kind=Kind.COUNT, optional=True),
            Column(title="iteration", kind=Kind.TIME),
            Column(title="90 %"),
            Column(title="over the fastest", kind=Kind.SHARE, optional=True),
            Column(title="gap", kind=Kind.SHARE, optional=True),
            Column(title="restored", kind=Kind.BYTES),
            Column(title="moved", kind=Kind.BYTES),
            Column(title="worst host", kind=Kind.BYTES, optional=True),
            Column(title="takes"),
            Column(title="one by one", kind=Kind.BYTES),
            Column(title="fastest pays after", optional=True),
        ]
        fails = math.isfinite(family.members[0].checkpoint_interval_s)
        if fails:
            columns += [
                Column(title="to save", kind=Kind.BYTES, optional=True),
                Column(title="checkpoint every"),
            ]
        rows = tuple(_cells(member)[: len(columns)] for member in family.members)
        notes = (
            "restored, moved: bytes that ranks receive from the checkpoint and from other ranks "
            "when a host of the row above is lost. worst host: both together, for the host whose "
            "loss costs most. one by one: both together if the plan for each number of hosts had "
            "been searched alone. fastest pays after: so much training makes it better to move "
            "to the fastest plan found for so many hosts.",
            *family.notes,
        )
        return Section(title=self.title, columns=tuple(columns), rows=rows, notes=notes)


def _cells(member: FamilyMember) -> tuple[Cell, ...]:
    time, losses = member.result.estimate.time, member.losses
    received = [loss.received_bytes for loss in losses]
    pays_s = member.fastest_pays_after_s
    return (
        member.num_hosts,
        member.result.problem.workload.local_batch_size,
        time.time_s,
        format_interval(time.time_s, time.low_s, time.high_s)[1],
        time.time_s / member.fastest_s - 1.0,
        member.result.gap_ratio,
        mean(loss.restored_bytes for loss in losses) if losses else None,
        mean(loss.moved_bytes for loss in losses) if losses else None,
        max(received, default=None),
        units.format_long_time(mean(loss.time_s for loss in losses)) if losses else None,
        mean(loss.received_bytes for loss in member.alone) if losses else None,
        None if pays_s is None else units.format_long_time(pays_s),
        member.checkpoint_bytes,
        units.format_long_time(member.checkpoint_interval_s),
    )
