"""Who sends how much to whom: the forward exchange of looked-up vectors."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from markupsafe import Markup

from costmodels import units
from planner.report.charts import rank_groups
from planner.report.evidence import Evidence, View
from planner.report.page import fill
from planner.report.sections.base import AbstractReportSection

_MOST_GROUPS = 32
_MOST_WITH_TEXT = 16
_STRONG = 0.85
"""From this share of the highest value on, the ground is so dark that the text is light."""

_BODY = """\
<p>MiB from {{ unit }} (rows) to {{ unit }} (columns) in one forward exchange of looked-up vectors;
the backward exchange is the transpose.
{% if not by_rank %}
Traffic inside a host is on the diagonal.
{% endif %}
Ranks wait for the fullest row or column.</p>
{{ blocks.matrix(heads, rows, received, dense, strong) }}"""


@final
class TrafficSection(AbstractReportSection):
    """A matrix of ranks, or of hosts if there are many ranks; only on the page."""

    title: ClassVar[str] = "All-to-all traffic"
    short: ClassVar[str] = "Traffic"
    order: ClassVar[int] = 50

    def draw(self, evidence: Evidence) -> Markup:
        """The matrix of the chosen plan; empty for a single rank."""
        return draw(evidence.view)


def draw(view: View) -> Markup:
    """The matrix of one plan."""
    if view.topology.world_size == 1:
        return Markup()
    groups = rank_groups(view.topology, most=_MOST_GROUPS)
    names = [group.name for group in groups]
    starts = [g.ranks.start for g in groups]
    rows = np.add.reduceat(view.traffic_bytes, starts, axis=0)
    matrix = np.add.reduceat(rows, starts, axis=1)
    highest = float(matrix.max()) or 1.0
    cells = [
        [
            (*_cell(f"{a} to {b}", value), value / highest)
            for b, value in zip(names, row, strict=True)
        ]
        for a, row in zip(names, matrix, strict=True)
    ]
    sent = [_cell(f"{a} sends", v) for a, v in zip(names, matrix.sum(axis=1), strict=True)]
    received = [_cell(f"{a} receives", v) for a, v in zip(names, matrix.sum(axis=0), strict=True)]
    return fill(
        _BODY,
        unit="hosts" if names[0].startswith("host") else "ranks",
        dense=len(groups) > _MOST_WITH_TEXT,
        strong=_STRONG,
        heads=[name.rpartition(" ")[2] for name in names],
        rows=list(zip(names, cells, sent, strict=True)),
        received=[*received, _cell("all", matrix.sum())],
        by_rank=groups[0].is_rank,
    )


def _cell(entity: str, num_bytes: float) -> tuple[str, str]:
    """MiB as text, and the text for a pointer on it."""
    mib = num_bytes / units.MIB
    words = f"{mib:,.0f}" if mib >= 99.95 else f"{mib:#.3g}".rstrip(".") if mib >= 0.01 else "<0.01"
    return words if num_bytes else "0", f"{entity}: {units.format_bytes(num_bytes)}"
