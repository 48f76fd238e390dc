"""Who sends how much to whom: the forward exchange of looked-up vectors."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np

from costmodels import units
from planner.report.html._evidence import Evidence, View
from planner.report.html._groups import Group, rank_groups
from planner.report.html.base import AbstractHtmlSection, Block, Number, mark, text

_MOST_GROUPS = 32
_MOST_WITH_TEXT = 16
_STRONG = 0.85
"""Share of the highest value from which the ground is so dark that the text is light."""


@final
class TrafficSection(AbstractHtmlSection):
    """A matrix of ranks, or of hosts where ranks are many."""

    title: ClassVar[str] = "All-to-all traffic"
    short: ClassVar[str] = "Traffic"
    order: ClassVar[int] = 50

    def build(self, evidence: Evidence) -> Block:
        """The chosen plan; empty on one rank."""
        body, numbers = draw(evidence.view)
        return Block(name="traffic", title=self.title, body=body, numbers=numbers)


def draw(view: View) -> tuple[str, tuple[Number, ...]]:
    """The matrix and its numbers for one plan."""
    if view.topology.world_size == 1:
        return "", ()
    groups = rank_groups(view.topology, most=_MOST_GROUPS)
    matrix = _summed(view, groups)
    highest = float(matrix.max()) or 1.0
    dense = len(groups) > _MOST_WITH_TEXT
    numbers: list[Number] = []
    rows = []
    for i, group in enumerate(groups):
        cells = "".join(
            _cell((group, other), float(matrix[i, j]), highest, numbers, with_text=not dense)
            for j, other in enumerate(groups)
        )
        sent = _total(f"{group.name} sends", float(matrix[i].sum()), numbers)
        rows.append(f'<tr><th scope="row">{text(group.name)}</th>{cells}{sent}</tr>')
    heads = "".join(f'<th scope="col">{text(_short(g))}</th>' for g in groups)
    received = "".join(
        _total(f"{g.name} receives", float(matrix[:, j].sum()), numbers)
        for j, g in enumerate(groups)
    )
    total = _total("all", float(matrix.sum()), numbers)
    css = "matrix dense" if dense else "matrix"
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Traffic matrix">'
        f'<table class="{css}"><thead><tr><th scope="col">from \\ to</th>{heads}'
        f'<th scope="col">sends</th></tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody><tfoot>'
        f'<tr><th scope="row">receives</th>{received}{total}</tr></tfoot></table></div>'
    )
    unit = (
        "ranks" if groups[0].is_rank else "hosts" if groups[0].name.startswith("host") else "ranks"
    )
    intro = (
        f"<p>MiB from {unit} (rows) to {unit} (columns) in one forward exchange of looked-up "
        "vectors; the backward exchange is the transpose. "
        + ("Traffic inside a host is on the diagonal. " if not groups[0].is_rank else "")
        + "Ranks wait for the fullest row or column.</p>"
    )
    return intro + table, tuple(numbers)


def _summed(
    view: View, groups: tuple[Group, ...]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    starts = [g.ranks.start for g in groups]
    rows = np.add.reduceat(view.traffic_bytes, starts, axis=0)
    return np.asarray(np.add.reduceat(rows, starts, axis=1), dtype=np.float64)


def _short(group: Group) -> str:
    return group.name.rpartition(" ")[2]


def _cell(
    pair: tuple[Group, Group],
    value: float,
    highest: float,
    numbers: list[Number],
    *,
    with_text: bool,
) -> str:
    number = Number(
        entity=f"{pair[0].name} to {pair[1].name}",
        quantity="exchange_bytes",
        value=value,
        unit="B",
        source="computed",
    )
    numbers.append(number)
    share = value / highest
    told = f"{number.entity}: {units.format_bytes(value)}"
    strong = ' class="hi"' if share > _STRONG else ""
    words = _mib(value) if with_text else ""
    return f'<td style="--a:{share:.2f}"{strong}{mark(number)} title="{text(told)}">{words}</td>'


def _total(entity: str, value: float, numbers: list[Number]) -> str:
    number = Number(
        entity=entity, quantity="exchange_bytes", value=value, unit="B", source="computed"
    )
    numbers.append(number)
    told = text(units.format_bytes(value))
    return f'<td class="sum"{mark(number)} title="{told}">{_mib(value)}</td>'


def _mib(value: float) -> str:
    mib = value / units.MIB
    if value == 0:
        return "0"
    return f"{mib:,.0f}" if mib >= 99.95 else f"{mib:#.3g}".rstrip(".") if mib >= 0.01 else "<0.01"
