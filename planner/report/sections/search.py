"""How the search went: the best plan so far and the proven bound, over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, final

from markupsafe import Markup

from planner.report._figures import gap_parts, objective_kind
from planner.report.base import Kind, format_cell
from planner.report.html._evidence import Evidence
from planner.report.html._svg import round_step
from planner.report.html._templates import fill
from planner.report.html.base import Block, Number, mark, text, written
from planner.report.sections.base import AbstractReportSection
from planner.result import PlanningResult, SolverReport
from planner.support.status import STATUS_WORDS
from planner.support.text import counted, format_gap

_MOST_STEPS = 160
_HEIGHT = 210
_MOST_TICKS = 6
_WORDS = {"bound": "proven bound", "incumbent": "best plan so far"}
"""The names of the two lines for people."""
_LEFT = 76
_RIGHT = 14
_TOP, _BOTTOM = 8, 34

Point = tuple[float, float, float | None]


_BODY = """\
{% if intro %}
<p>{{ intro }}</p>{{ chart }}
{%- endif %}
{% if searched %}
<p>What was searched, and so what the bound is about:</p>{{ blocks.listed(searched) }}
{%- endif %}"""


@final
class SearchSection(AbstractReportSection):
    """A chart with two step lines that come closer to each other."""

    title: ClassVar[str] = "Search"
    short: ClassVar[str] = "Search"
    order: ClassVar[int] = 70

    def build(self, result: PlanningResult) -> None:
        """None: this part is only on the page, and the summary says the same in words."""

    def draw(self, evidence: Evidence) -> Block:
        """What was searched, and the chart, if the search has kept its history."""
        solver = evidence.result.solver
        numbers: list[Number] = []
        intro, chart = "", Markup()
        if solver.progress:
            kind, unit = objective_kind(solver.objective)
            points = _thinned([*solver.progress, (solver.seconds, solver.value, solver.bound)])
            intro, chart = _intro(solver), _chart(points, kind, unit, numbers)
        body = fill(_BODY, intro=intro, chart=chart, searched=evidence.result.searched)
        return Block(name="search", title=self.title, body=body, numbers=tuple(numbers))


def _intro(solver: SolverReport) -> str:
    gap = solver.gap_ratio
    proof = "no bound" if gap is None else f"gap {format_gap(gap)}"
    words = (
        f"Strategy {solver.strategy}, objective {solver.objective}: "
        f"{STATUS_WORDS[solver.status]} after {solver.seconds:.1f} s, "
        f"{counted(solver.evaluations, 'plan')} priced, {proof}, seed {solver.seed}. The optimum "
        "lies between the two lines; time is on a logarithmic axis."
    )
    parts = [f"{format_gap(ratio)} {name}" for ratio, name in gap_parts(solver)]
    return f"{words} Of the value, the gap is {'; '.join(parts)}." if parts else words


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most ``_MOST_STEPS`` of the points, chosen evenly, always with the first and the last."""
    if len(points) <= _MOST_STEPS:
        return list(points)
    step = (len(points) - 1) / (_MOST_STEPS - 1)
    return [points[round(i * step)] for i in range(_MOST_STEPS)]


def _chart(points: list[Point], kind: Kind, unit: str, numbers: list[Number]) -> Markup:
    first_s = max(min(p[0] for p in points), 1e-3)
    last_s = max(p[0] for p in points)
    x = _log_scale(first_s, max(last_s, first_s * 1.5))
    low, high = _range(points)

    def y(value: float) -> float:
        share = (high - min(max(value, low), high)) / (high - low)
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * share

    best = _changes([(t, v) for t, v, _ in points])
    bounds = _changes([(t, b) for t, _, b in points if b is not None and math.isfinite(b)])
    parts, labels = [_value_axis(low, high, y, kind), _time_axis(first_s, last_s, x)], ""
    for name, series in (("bound", bounds), ("incumbent", best)):
        if not series:
            continue
        parts.append(_steps(name, series, x, y))
        numbers += _numbers(name, series, unit)
        parts.append(_marks(name, series, x, y, kind))
        last = text(written(kind, series[-1][1]))
        labels = f'<li><i class="key l-{name}"></i>{_WORDS[name]}, at last {last}</li>{labels}'
    return Markup(
        f'<ul class="legend">{labels}</ul><div class="scroll chartbox">'
        '<div class="chart" style="min-width:330px;'
        f'height:{_HEIGHT + 4}px"><svg class="plot" tabindex="0" role="img" '
        f'aria-label="Best plan so far and proven bound against time" style="left:{_LEFT}px;'
        f'width:calc(100% - {_LEFT + _RIGHT}px)" height="{_HEIGHT}">{"".join(parts)}</svg>'
        '</div></div><p class="detail" aria-live="polite"></p>'
    )


def _changes(series: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points at which the value changes, and the last point."""
    return [
        p
        for i, p in enumerate(series)
        if i in (0, len(series) - 1) or abs(p[1] - series[i - 1][1]) > 1e-7 * abs(p[1])
    ]


def _range(points: list[Point]) -> tuple[float, float]:
    """The range of values: from the best bound to the first plan, without far worse values."""
    values = [p[1] for p in points]
    bounds = [p[2] for p in points if p[2] is not None and math.isfinite(p[2])]
    last = values[-1]
    low = bounds[-1] if bounds else min(values)
    gap = max(last - low, 0.02 * last, 1e-12)
    low = max(min(bounds, default=low), low - gap)
    high = min(max(values), last + 4 * gap)
    return low, max(high, low + 1.25 * gap)


def _log_scale(first: float, last: float) -> Callable[[float], float]:
    def place(value: float) -> float:
        share = math.log(max(value, first) / first) / math.log(last / first)
        return 100 * min(share, 1.0)

    return place


def _steps(
    name: str,
    series: list[tuple[float, float]],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> str:
    """A step line of single pieces, because SVG allows per cent in lines but not in paths."""
    pieces = []
    ends = [*[t for t, _ in series[1:]], series[-1][0]]
    before: float | None = None
    for (t, value), until in zip(series, ends, strict=True):
        a, b, height = x(t), x(until), y(value)
        if before is not None and abs(before - height) > 0.05:
            pieces.append(_line(a, before, a, height))
        if b - a > 0.005:
            pieces.append(_line(a, height, b, height))
        before = height
    if before is not None:
        pieces.append(_line(x(ends[-1]), before, 100.0, before))
    return f'<g class="line {name}">{"".join(pieces)}</g>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'


def _numbers(name: str, series: list[tuple[float, float]], unit: str) -> list[Number]:
    found = []
    for index, (t, value) in enumerate(series):
        entity = f"{name} {index + 1}"
        found.append(
            Number(entity=entity, quantity="value", value=value, unit=unit, source="search")
        )
        found.append(Number(entity=entity, quantity="seconds", value=t, unit="s", source="search"))
    return found


def _marks(
    name: str,
    series: list[tuple[float, float]],
    x: Callable[[float], float],
    y: Callable[[float], float],
    kind: Kind,
) -> str:
    parts = []
    for index, (t, value) in enumerate(series):
        number = Number(
            entity=f"{name} {index + 1}", quantity="value", value=value, unit="", source="search"
        )
        told = f"{_WORDS[name]} {format_cell(kind, value)} after {t:.2f} s"
        parts.append(
            f'<circle class="{name}" cx="{x(t):.2f}%" cy="{y(value):.1f}" r="2.5"{mark(number)}>'
            f"<title>{text(told)}</title></circle>"
        )
    return "".join(parts)


def _value_axis(low: float, high: float, y: Callable[[float], float], kind: Kind) -> str:
    step = round_step((high - low) / 4)
    parts = []
    for i in range(math.ceil(low / step), math.floor(high / step) + 1):
        at = y(i * step)
        parts.append(
            f'<line class="axis" x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="0" dx="-6" y="{at + 4:.1f}" text-anchor="end">'
            f"{text(_tick_text(i * step, step, kind))}</text>"
        )
    return "".join(parts)


def _tick_text(value: float, step: float, kind: Kind) -> str:
    """The text of a mark: all times of an axis have one unit, and the digits that steps need."""
    if kind is not Kind.TIME:
        return format_cell(kind, value)
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if value >= s), ("us", 1e-6))
    digits = max(0, -math.floor(math.log10(step / scale) + 1e-9))
    return f"{value / scale:,.{digits}f} {unit}"


def _time_axis(first_s: float, last_s: float, x: Callable[[float], float]) -> str:
    powers = range(math.floor(math.log10(first_s)), math.ceil(math.log10(last_s)) + 1)
    found = [f * 10.0**p for p in powers for f in (1, 2, 5)]
    ticks = [t for t in found if first_s * 0.999 <= t <= last_s * 1.001]
    if len(ticks) > _MOST_TICKS:
        ticks = [t for t in ticks if math.isclose(math.log10(t) % 1, 0, abs_tol=1e-6)
                 or math.isclose(math.log10(t) % 1, 1, abs_tol=1e-6)]  # fmt: skip
    parts = []
    for t in ticks:
        at = x(t)
        anchor = "start" if at < 3 else "end" if at > 97 else "middle"
        parts.append(f'<text x="{at:.2f}%" y="{_HEIGHT - 4}" text-anchor="{anchor}">{t:g} s</text>')
    return "".join(parts)
