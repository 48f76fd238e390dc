"""Charts as inline SVG: bars in lanes, and points on log scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from markupsafe import Markup

from costmodels import units
from costmodels.topology import Topology
from planner.report.page import block
from planner.support.text import significant

_MOST_TICKS: Final = 7

# ------------------------------------------------------------------ bars in lanes

_CHARACTER: Final = 6.2
"""Mean width of a character of a bar label in the widest font, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a lane.

    ``css`` is the style class of its colour, ``strong`` outlines it. The first of ``labels`` that
    fits is written into it.
    """

    start_ratio: float
    width_ratio: float
    css: str
    title: str
    labels: tuple[str, ...] = ()
    strong: bool = False

    def label(self, chart_width: float) -> str:
        """The first label that fits into the bar; empty if none does."""
        letters = (self.width_ratio * chart_width - 8) / _CHARACTER
        return next((words for words in self.labels if len(words) <= letters), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of bars, with a heading ``group`` above it and a ``value`` at its right end."""

    label: str
    bars: tuple[Bar, ...]
    group: str = ""
    value: str = ""


Tick = tuple[float, str, str]
"""A mark on the axis: its place 0..1, its label, and ``axis`` for a grid line, or ``limit``."""


def stacked(name: str, parts: Iterable[tuple[str, str, float]], end: float, value: str) -> Lane:
    """A lane of bars one behind the other.

    Args:
        name: its label, with which the texts of its bars begin.
        parts: style class, text and length of each; one without a class is a gap.
        end: length of the axis.
        value: what stands at the right end.
    """
    bars, at = [], 0.0
    for css, words, length in parts:
        if css and length > 0:
            start, width = at / end, min(length, end - at) / end
            title = f"{name}: {words}"
            bars.append(Bar(start_ratio=start, width_ratio=width, css=css, title=title))
        at += length
    return Lane(label=name, bars=tuple(bars), value=value)


def axis(end: float, write: Callable[[float], str] = units.format_time) -> tuple[Tick, ...]:
    """Round numbers from 0 to ``end``, by default times."""
    if end <= 0:
        return ()
    step = _round_step(end / _MOST_TICKS)
    ticks = (i * step for i in range(int(end / step * 1.0001) + 1))
    return tuple((v / end, write(v) if v else "0", "axis") for v in ticks)


def _round_step(least: float) -> float:
    """The next number above ``least`` that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= 0.9999 * least)


# ------------------------------------------------------------------ many ranks

MOST_GROUPS: Final = 32


def rank_groups(topology: Topology) -> dict[str, range]:
    """At most ``MOST_GROUPS`` names and ranks: of ranks, or hosts, or groups of as many hosts."""
    world, local = topology.world_size, topology.local_world_size
    if world <= MOST_GROUPS:
        return {f"rank {r}": range(r, r + 1) for r in range(world)}
    size = math.ceil(topology.num_hosts / MOST_GROUPS) * local
    found = [range(start, min(start + size, world)) for start in range(0, world, size)]
    if size == local > 1:
        return {f"host {i}": ranks for i, ranks in enumerate(found)}
    return {f"ranks {r[0]}-{r[-1]}": r for r in found}


# ------------------------------------------------------------------ points on log scales

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, on light and dark ground."""
_MARGIN: Final = 1.15
"""Factor by which the axes go on beyond the points."""
Place = tuple[float, float]
"""A position (across, up), in the values of the axes or as shares of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartDot:
    """A point: its position, the name that gives its colour, and its text."""

    x: float
    y: float
    name: str
    told: str
    is_best: bool = True


class ChartScale:
    """A logarithmic axis that covers some values, with a margin around them."""

    def __init__(self, values: Sequence[float]):
        self.low = min(values) / _MARGIN
        self.high = max(max(values) * _MARGIN, self.low * (3 * _MARGIN - 2))

    def __call__(self, value: float) -> float:
        """The position of a value, 0..1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, factor: float = 1.0) -> list[float]:
        """Values for labels, which are round after multiplication by the factor.

        They have one digit, or two where the axis covers too little for that.
        """
        digits = 1 if self.high > 10 * self.low else 2
        even = np.geomspace(self.low, self.high, _MOST_TICKS) * factor
        marks = {float(f"{t:.{digits}g}") / factor for t in even}
        return sorted(t for t in marks if self.low <= t <= self.high)


def legend(names: Sequence[str]) -> Markup:
    """Each name with a dot of its colour before it."""
    keys = [(_colour(names, name), name) for name in names]
    return block("dots", keys=keys)


def _colour(names: Sequence[str], name: str) -> str:
    return _COLOURS[names.index(name) % len(_COLOURS)]


def scatter(
    dots: Sequence[ChartDot],
    names: Sequence[str],
    across: tuple[str, float],
    up: tuple[str, float],
    line: Sequence[Place] = (),
) -> Markup:
    """A chart of points on log scales; the best are filled, and a grey line may join some.

    Args:
        dots: at least one point; later ones are drawn over earlier ones.
        names: the names that have a colour, in the order of the legend.
        across: the title of the axis to the right, and the factor from values to its labels.
        up: the same of the axis upwards.
        line: the points of a line, in the values of the axes.
    """
    x, y = ChartScale([d.x for d in dots]), ChartScale([d.y for d in dots])
    return block(
        "scatter",
        across=across[0],
        up=up[0],
        rows=[(x(t), significant(t * across[1], 6)) for t in x.ticks(across[1])],
        cols=[(y(t), significant(t * up[1], 6)) for t in y.ticks(up[1])],
        line=[(x(a), y(b)) for a, b in line],
        dots=[(x(d.x), y(d.y), _colour(names, d.name), d) for d in dots],
    )
