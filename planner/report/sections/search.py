"""How the search went: the best plan so far and the proven bound, over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final, final

from markupsafe import Markup

from planner.report.base import Kind, format_cell
from planner.report.charts import ChartDot, Figure, Place, legend, scatter
from planner.report.evidence import Evidence
from planner.report.figures import objective_kind
from planner.report.page import fill
from planner.report.sections.base import AbstractReportSection
from planner.result import SolverReport

_MOST_STEPS: Final = 160
_LEAST_S: Final = 1e-3
_INCUMBENT, _BOUND = "best plan so far", "proven bound"

_BODY = """\
<p>The optimum lies between the two lines; both axes are logarithmic.</p>{{ legend }}{{ chart }}"""


@final
class SearchSection(AbstractReportSection):
    """A chart with two step lines that come closer to each other; only on the page."""

    title: ClassVar[str] = "Search"
    short: ClassVar[str] = "Search"
    order: ClassVar[int] = 70

    def draw(self, evidence: Evidence) -> Markup:
        """The chart, if the search has kept its history."""
        solver = evidence.result.solver
        if not solver.progress:
            return Markup()
        return fill(_BODY, legend=legend((_INCUMBENT, _BOUND)), chart=_chart(solver))


def _chart(solver: SolverReport) -> Markup:
    points = [*solver.progress, (solver.seconds, solver.value, solver.bound)]
    best = _changes([(max(t, _LEAST_S), v) for t, v, _ in points])
    bounds = _changes(
        [(max(t, _LEAST_S), b) for t, _, b in points if b is not None and 0 < b < math.inf]
    )
    low, high = _range([v for _, v in best], [b for _, b in bounds])
    kind, unit = objective_kind(solver.objective)
    up = Figure(title="ms", factor=1e3) if kind is Kind.TIME else Figure(title=unit)
    dots, lines = [], {}
    for name, series in ((_BOUND, bounds), (_INCUMBENT, best)):
        shown = [(t, min(max(v, low), high)) for t, v in series]
        dots += [
            ChartDot(x=t, y=y, name=name, told=f"{name} {format_cell(kind, v)} after {t:.2f} s")
            for (t, y), (_, v) in zip(shown, series, strict=True)
        ]
        lines[name] = _steps(shown, end_s=max(solver.seconds, _LEAST_S))
    label = "Best plan so far and proven bound against time"
    names = (_INCUMBENT, _BOUND)
    return scatter(label, dots, names, Figure(title="s"), up, lines=lines, margin=1.01)


def _changes(series: list[Place]) -> list[Place]:
    """The points at which the value changes, and the last one; at most ``_MOST_STEPS``."""
    found = [
        p
        for i, p in enumerate(series)
        if i in (0, len(series) - 1) or abs(p[1] - series[i - 1][1]) > 1e-7 * abs(p[1])
    ]
    if len(found) <= _MOST_STEPS:
        return found
    step = (len(found) - 1) / (_MOST_STEPS - 1)
    return [found[round(i * step)] for i in range(_MOST_STEPS)]


def _range(values: Sequence[float], bounds: Sequence[float]) -> Place:
    """The range of values: from the best bound to the first plan, without far worse values."""
    last = values[-1]
    low = bounds[-1] if bounds else min(values)
    gap = max(last - low, 0.02 * last, 1e-12)
    low = max(min(bounds, default=low), low - gap, 1e-12)
    return low, max(min(max(values), last + 4 * gap), low + 1.25 * gap)


def _steps(series: Sequence[Place], end_s: float) -> list[Place]:
    """The corners of a step line that goes on to the end."""
    corners = []
    for i, (t, value) in enumerate(series):
        until = series[i + 1][0] if i + 1 < len(series) else max(t, end_s)
        corners += [(t, value), (until, value)]
    return corners
