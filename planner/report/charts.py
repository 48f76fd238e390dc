"""Pages of studies: a scatter on log scales, and a table that can be sorted.

Both kinds of pages share style, axes, legend and cells, and load nothing from other places. At the
width of a telephone, rows of the table become blocks, and the text of charts grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from planner.support.text import significant

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, on light and dark ground."""
WIDTH: Final = 760
HEIGHT: Final = 420
LEFT: Final = 70
RIGHT: Final = 20
TOP: Final = 16
BOTTOM: Final = 46
_MOST_TICKS: Final = 8
_LETTER, _LINE = 6.6, 13.0
"""Width of a letter and height of a line of labels, in units of the chart."""

_STYLE: Final = """
.name{white-space:nowrap}
:root{--ink:#1b1f24;--soft:#667085;--line:#d9dee5;--ground:#fff;--mark:#eef2f7}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#98a2b3;--line:#344054;
--ground:#14171c;--mark:#1f242c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);margin:0 auto;
max-width:1360px;padding:24px 16px 64px;font-variant-numeric:tabular-nums}
h1{font-size:22px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:16px;margin:32px 0 8px}
p{margin:4px 0;color:var(--soft);overflow-wrap:anywhere}
svg{width:100%;max-width:900px;height:auto;display:block}svg text{fill:var(--soft);font-size:12px}
svg .axis{stroke:var(--line)}svg .front{fill:none;stroke:var(--soft);stroke-dasharray:4 4}
svg .interval{stroke-width:3;opacity:.3}svg text.at{font-size:11px;fill:var(--ink)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{padding:5px 8px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{white-space:normal;vertical-align:bottom}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid}
tr.front td{background:var(--mark);font-weight:600}
.key{display:inline-block;width:10px;height:10px;border-radius:5px;margin:0 4px 0 14px}
@media (max-width:700px){table,thead,tbody,tr,td{display:block}thead tr{display:flex;
flex-wrap:wrap;gap:4px 12px}thead tr::before{content:"Sort by";color:var(--soft)}
th{padding:2px 0;border:0}th button{text-decoration:underline;font-weight:400}
tbody tr{border-bottom:2px solid var(--line);
padding:8px 0}td,td:nth-child(-n+2){display:flex;justify-content:space-between;gap:12px;border:0;
padding:2px 4px;text-align:right;white-space:normal}td:empty{display:none}
td::before{content:attr(data-l);color:var(--soft);text-align:left;font-weight:400}
svg text{font-size:20px}svg text.at{display:none}}
@media print{body{max-width:none;padding:0}tr.front td{font-weight:700}}
"""

_SCRIPT: Final = """
document.querySelectorAll('th button').forEach((button,column)=>{let up=false;
button.onclick=()=>{up=!up;const body=document.querySelector('tbody');
const value=row=>row.children[column].dataset.v??row.children[column].textContent;
const rows=[...body.rows].sort((a,b)=>{const x=value(a),y=value(b),
d=(x===''?Infinity:+x)-(y===''?Infinity:+y);return(isNaN(d)?x.localeCompare(y):d)*(up?1:-1)});
body.append(...rows)}});
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The whole document, with some parts of HTML in it."""
    return "\n".join(
        (
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            f"<script>{_SCRIPT}</script></body></html>\n",
        )
    )


def legend(systems: Sequence[str]) -> str:
    """The legend: each name with a dot of its colour before it."""
    return " ".join(
        f'<span class="name"><span class="key" style="background:{colour(systems, s)}"></span>'
        f"{escape(s)}</span>"
        for s in systems
    )


def colour(systems: Sequence[str], system: str) -> str:
    """The colour of one of the systems."""
    return _COLOURS[systems.index(system) % len(_COLOURS)]


def open_chart(label: str) -> str:
    """The beginning of a chart, with a text for people who cannot see it."""
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'


class Scale:
    """A logarithmic axis that covers some values, with a margin around them."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = min(values) / 1.15
        self.high = max(max(values) * 1.15, self.low * 1.5)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        """The position of a value, in units of the chart."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, factor: float = 1.0) -> list[float]:
        """Values for labels, which are round after multiplication by the factor.

        They are 1, 2 and 5 times the powers of ten; fewer or more of them, depending on the room.
        If the axis covers too little for that, they are equal steps.
        """
        low, high = self.low * factor, self.high * factor
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            found = [s * 10.0**e for e in range(first, last + 1) for s in steps]
            found = [t / factor for t in found if low <= t <= high]
            if len(found) >= 4:
                return found
        step = 10.0 ** math.floor(math.log10(high - low))
        step = next(
            s for s in (step / 5, step / 2, step, 2 * step) if (high - low) / s <= _MOST_TICKS
        )
        start = math.ceil(low / step)
        return [i * step / factor for i in range(start, math.floor(high / step) + 1)]


def axes(
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
    *,
    x_factor: float = 1.0,
    y_factor: float = 1.0,
    x_ticks: Sequence[float] | None = None,
) -> list[str]:
    """Both axes with their grid; labels show values multiplied by the factors.

    ``x_ticks`` are the values to label on the axis to the right; round ones if not given.
    """
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines = []
    for tick in x.ticks(x_factor) if x_ticks is None else x_ticks:
        a = x(tick)
        lines.append(f'<line class="axis" x1="{a:.1f}" x2="{a:.1f}" y1="{TOP}" y2="{bottom}"/>')
        text = significant(tick * x_factor, 6)
        lines.append(f'<text x="{a:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    for tick in y.ticks(y_factor):
        b = y(tick)
        lines.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{b:.1f}" y2="{b:.1f}"/>')
        text = significant(tick * y_factor, 6)
        lines.append(f'<text x="{LEFT - 8}" y="{b + 4:.1f}" text-anchor="end">{text}</text>')
    lines.append(f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{escape(x_label)}</text>')
    lines.append(
        f'<text transform="translate(14 {TOP}) rotate(-90)" text-anchor="end">'
        f"{escape(y_label)}</text>"
    )
    return lines


Place = tuple[float, float]
"""A position (across, up), in the values of the axes or in units of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point of a scatter: its position, the name that gives its colour, and its text.

    ``label`` is written beside it if there is room; a line joins the ``ends`` of its interval.
    """

    x: float
    y: float
    name: str
    told: str
    is_best: bool
    label: str = ""
    ends: tuple[Place, Place] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What an axis shows: its title, and the factor from values to labels."""

    title: str
    factor: float = 1.0


def scatter(
    label: str,
    dots: Sequence[Dot],
    names: Sequence[str],
    across: Figure,
    up: Figure,
    *,
    joined: Sequence[tuple[float, float]] | None = None,
) -> str:
    """A chart of points on log scales; the best are filled, and a line may join some.

    Args:
        label: what the chart shows, for people who cannot see it.
        dots: at least one point; later ones are drawn over earlier ones.
        names: the names that have a colour, in the order of the legend.
        across: the axis to the right.
        up: the axis upwards.
        joined: the points of a line, in the values of the axes.
    """
    places = [(d.x, d.y) for d in dots] + [end for d in dots for end in d.ends or ()]
    x = Scale([a for a, _ in places], LEFT, WIDTH - RIGHT)
    y = Scale([b for _, b in places], HEIGHT - BOTTOM, TOP)
    lines = [open_chart(label)]
    lines += axes(x, y, across.title, up.title, x_factor=across.factor, y_factor=up.factor)
    if joined is not None:
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in joined)
        lines.append(f'<polyline class="front" points="{path}"/>')
    for dot in dots:
        edge = colour(names, dot.name)
        if dot.ends is not None:
            (a, b), (c, d) = dot.ends
            lines.append(
                f'<line class="interval" x1="{x(a):.1f}" y1="{y(b):.1f}" x2="{x(c):.1f}" '
                f'y2="{y(d):.1f}" stroke="{edge}"/>'
            )
        lines.append(
            f'<circle cx="{x(dot.x):.1f}" cy="{y(dot.y):.1f}" r="{7 if dot.is_best else 5}" '
            f'fill="{edge if dot.is_best else "none"}" stroke="{edge}" stroke-width="2" '
            f'tabindex="0"><title>{escape(dot.told)}</title></circle>'
        )
    taken = [(x(d.x), y(d.y)) for d in dots]
    lines += written([(place, d.label) for place, d in zip(taken, dots, strict=True)], taken)
    return "\n".join([*lines, "</svg>"])


def written(labels: Sequence[tuple[Place, str]], dots: Sequence[Place]) -> list[str]:
    """Write labels beside their places, but only where no other label and no dot is in the way.

    Args:
        labels: places in units of the chart, and the texts to write there.
        dots: places that have to stay visible.
    """
    boxes = [(a - 6, b - 6, a + 6, b + 6) for a, b in dots]
    lines = []
    for (a, b), text in labels:
        wide = _LETTER * len(text)
        for left, up in (
            *((a + 10, b + 4), (a + 8, b - 8), (a - 10 - wide, b + 4), (a - 8 - wide, b - 8)),
            *((a + 8, b + 18), (a - 8 - wide, b + 18)),
        ):
            box = (left, up - _LINE + 3, left + wide, up + 3)
            inside = box[0] >= LEFT and box[2] <= WIDTH - 2 and box[1] >= 0
            if (
                text
                and inside
                and box[3] <= HEIGHT - BOTTOM
                and not any(_meet(box, o) for o in boxes)
            ):
                boxes.append(box)
                lines.append(f'<text class="at" x="{left:.1f}" y="{up:.1f}">{escape(text)}</text>')
                break
    return lines


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) have a part in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def table(titles: Sequence[str], rows: Sequence[tuple[bool, Sequence[float | str | None]]]) -> str:
    """A table that can be sorted by each column; rows of the front are marked.

    Args:
        titles: the titles of the columns.
        rows: for each row, whether it is on the front, and its values.
    """
    head = "".join(f"<th><button>{escape(title)}</button></th>" for title in titles)
    body = []
    for is_best, values in rows:
        cells = "".join(_cell(title, value) for title, value in zip(titles, values, strict=True))
        body.append(f'<tr class="front">{cells}</tr>' if is_best else f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{chr(10).join(body)}\n</tbody></table></div>"
    )


def _cell(title: str, value: float | str | None) -> str:
    """A cell with the title of its column, which narrow screens show beside the value."""
    label = f'data-l="{escape(title)}"'
    if isinstance(value, str):
        return f"<td {label}>{escape(value)}</td>"
    if value is None:
        return f'<td {label} data-v=""></td>'
    text = f"{value:,}" if isinstance(value, int) else significant(value, 4)
    return f'<td {label} data-v="{value:.9g}">{text}</td>'
