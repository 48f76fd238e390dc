"""Who sends how much to whom: the forward exchange of looked-up vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from markupsafe import Markup

from costmodels import units
from planner.report.html._evidence import Evidence, View
from planner.report.html._groups import Group, rank_groups
from planner.report.html._templates import fill
from planner.report.html.base import Block, Number, mark
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult

_MOST_GROUPS = 32
_MOST_WITH_TEXT = 16
_STRONG = 0.85
"""From this share of the highest value on, the ground is so dark that the text is light."""


_BODY = """\
{% macro total(cell) -%}
<td class="sum"{{ cell.marks }} title="{{ cell.told }}">{{ cell.words }}</td>
{%- endmacro -%}
<p>MiB from {{ unit }} (rows) to {{ unit }} (columns) in one forward exchange of looked-up vectors;
the backward exchange is the transpose.
{% if not by_rank %}
Traffic inside a host is on the diagonal.
{% endif %}
Ranks wait for the fullest row or column.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Traffic matrix">
<table class="{{ css }}"><thead><tr><th scope="col">from \\ to</th>
{%- for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}
<th scope="col">sends</th></tr></thead><tbody>
{% for name, cells, sent in rows -%}
<tr><th scope="row">{{ name }}</th>
{%- for cell in cells -%}
<td style="--a:{{ '%.2f' % cell.share }}"{% if cell.strong %} class="hi"{% endif %}
{{- cell.marks }} title="{{ cell.told }}">{{ cell.words }}</td>
{%- endfor -%}
{{ total(sent) }}</tr>
{% endfor -%}
</tbody><tfoot><tr><th scope="row">receives</th>
{%- for cell in received %}{{ total(cell) }}{% endfor -%}
</tr></tfoot></table></div>"""


@final
class TrafficSection(AbstractReportSection):
    """A matrix of ranks, or of hosts if there are many ranks."""

    title: ClassVar[str] = "All-to-all traffic"
    short: ClassVar[str] = "Traffic"
    order: ClassVar[int] = 50

    def build(self, result: PlanningResult) -> None:
        """None: this part is only on the page."""

    def draw(self, evidence: Evidence) -> Block:
        """The matrix of the chosen plan; empty for a single rank."""
        body, numbers = draw(evidence.view)
        return Block(name="traffic", title=self.title, body=body, numbers=numbers)


def draw(view: View) -> tuple[Markup, tuple[Number, ...]]:
    """The matrix and its numbers for one plan."""
    if view.topology.world_size == 1:
        return Markup(), ()
    groups = rank_groups(view.topology, most=_MOST_GROUPS)
    matrix = _summed(view, groups)
    highest = float(matrix.max()) or 1.0
    dense = len(groups) > _MOST_WITH_TEXT
    numbers: list[Number] = []
    rows = []
    for i, group in enumerate(groups):
        cells = [
            _cell((group, other), float(matrix[i, j]), highest, numbers, with_text=not dense)
            for j, other in enumerate(groups)
        ]
        rows.append((group.name, cells, _total(f"{group.name} sends", matrix[i].sum(), numbers)))
    received = [
        _total(f"{g.name} receives", matrix[:, j].sum(), numbers) for j, g in enumerate(groups)
    ]
    body = fill(
        _BODY,
        unit="hosts" if groups[0].name.startswith("host") else "ranks",
        css="matrix dense" if dense else "matrix",
        heads=[_short(group) for group in groups],
        rows=rows,
        received=[*received, _total("all", matrix.sum(), numbers)],
        by_rank=groups[0].is_rank,
    )
    return body, tuple(numbers)


def _summed(
    view: View, groups: tuple[Group, ...]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    starts = [g.ranks.start for g in groups]
    rows = np.add.reduceat(view.traffic_bytes, starts, axis=0)
    return np.asarray(np.add.reduceat(rows, starts, axis=1), dtype=np.float64)


def _short(group: Group) -> str:
    return group.name.rpartition(" ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One cell: its text, the number it shows, the text for a pointer on it, and its shade."""

    words: str
    marks: Markup
    told: str
    share: float = 0.0

    @property
    def strong(self) -> bool:
        """Whether the ground is so dark that the text is light."""
        return self.share > _STRONG


def _cell(
    pair: tuple[Group, Group],
    value: float,
    highest: float,
    numbers: list[Number],
    *,
    with_text: bool,
) -> _Cell:
    number = _number(f"{pair[0].name} to {pair[1].name}", value, numbers)
    return _Cell(
        words=_mib(value) if with_text else "",
        marks=mark(number),
        told=f"{number.entity}: {units.format_bytes(value)}",
        share=value / highest,
    )


def _total(entity: str, value: float, numbers: list[Number]) -> _Cell:
    number = _number(entity, float(value), numbers)
    told = units.format_bytes(float(value))
    return _Cell(words=_mib(float(value)), marks=mark(number), told=told)


def _number(entity: str, value: float, numbers: list[Number]) -> Number:
    """Make a number, and add it to the list."""
    number = Number(
        entity=entity, quantity="exchange_bytes", value=value, unit="B", source="computed"
    )
    numbers.append(number)
    return number


def _mib(value: float) -> str:
    mib = value / units.MIB
    if value == 0:
        return "0"
    return f"{mib:,.0f}" if mib >= 99.95 else f"{mib:#.3g}".rstrip(".") if mib >= 0.01 else "<0.01"
