"""Charts as inline SVG: bars in lanes, and points on log scales."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from costmodels import units
from costmodels.topology import Topology
from planner.report.page import fill
from planner.support.text import significant

# ------------------------------------------------------------------ bars in lanes

_WIDE: Final = 700
"""A chart narrower than this many pixels scrolls in its box; labels fit at this width."""
_NARROW: Final = 350
"""The same for charts without labels in their bars: the width of a telephone."""
_GUTTER: Final = 118
"""Width of the lane labels at the left of the chart, in pixels."""
_CHARACTER: Final = 6.2
"""Mean width of a character of a bar label in the widest font, in pixels."""
_LANE, _GROUP, _AXIS = 22, 20, 24
"""Heights of a lane, of a heading above one, and of the axis, in pixels."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A row of bars, with a heading ``group`` above it and a ``value`` at its right end."""

    label: str
    bars: tuple[Bar, ...]
    group: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on the axis; ``css`` is ``axis`` for a grid line, or ``limit`` for a limit."""

    at_ratio: float
    label: str
    css: str = "axis"

    @property
    def x(self) -> str:
        """The place as a width."""
        return f"{100 * self.at_ratio:.2f}%"

    @property
    def anchor(self) -> str:
        """How the label stands to the mark, so that it stays inside the chart."""
        return "start" if self.at_ratio < 0.03 else "end" if self.at_ratio > 0.97 else "middle"


def lanes_chart(
    label: str, lanes: Sequence[Lane], *, axis: Sequence[Tick], value_width: int = 0
) -> Markup:
    """The chart in a box that scrolls on narrow screens, and a line for details below it.

    Charts with values at the right end have no labels in their bars, and so may be narrow.
    """
    min_width = _NARROW if value_width else _WIDE
    room = min_width - _GUTTER - value_width
    top, placed = 0, []
    for lane in lanes:
        top += _GROUP if lane.group else 0
        bars = [
            (
                f"{100 * bar.start_ratio:.2f}",
                f"{100 * bar.width_ratio:.2f}",
                bar,
                _fitting(bar.labels, room * bar.width_ratio),
            )
            for bar in lane.bars
        ]
        placed.append((top, lane, bars))
        top += _LANE
    chart = {
        "label": label,
        "lanes": placed,
        "ticks": axis,
        "height": top + _AXIS,
        "line": _LANE,
        "gutter": _GUTTER,
        "value_width": value_width,
        "min_width": min_width,
        "goes_on": min_width > _NARROW,
    }
    return fill("{{ blocks.lanes(chart) }}", chart=chart)


def _fitting(labels: tuple[str, ...], width: float) -> str:
    """The first label that fits into ``width`` pixels; empty if none does."""
    return next((words for words in labels if len(words) * _CHARACTER + 8 <= width), "")


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


def axis_s(end_s: float) -> tuple[Tick, ...]:
    """Round times from 0 to ``end_s``."""
    return axis(end_s, units.format_time)


def axis(end: float, write: Callable[[float], str], *, most: int = 7) -> tuple[Tick, ...]:
    """Round numbers from 0 to ``end``."""
    if end <= 0:
        return ()
    power = 10.0 ** math.floor(math.log10(end / most))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= 0.9999 * end / most)
    ticks = itertools.takewhile(lambda v: v <= end * 1.0001, (i * step for i in itertools.count()))
    return tuple(Tick(at_ratio=v / end, label=write(v) if v else "0") for v in ticks)


# ------------------------------------------------------------------ many ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class BarGroup:
    """Some neighbouring ranks under one name."""

    name: str
    ranks: range

    @property
    def is_rank(self) -> bool:
        """Whether it is a single rank."""
        return len(self.ranks) == 1


MOST_GROUPS: Final = 32


def rank_groups(topology: Topology) -> tuple[BarGroup, ...]:
    """At most ``MOST_GROUPS``: ranks, or else hosts, or else groups of equally many hosts."""
    world, local = topology.world_size, topology.local_world_size
    if world <= MOST_GROUPS:
        return tuple(BarGroup(name=f"rank {r}", ranks=range(r, r + 1)) for r in range(world))
    hosts = math.ceil(topology.num_hosts / MOST_GROUPS)
    size = hosts * local
    found = [range(start, min(start + size, world)) for start in range(0, world, size)]
    if hosts == 1 and local > 1:
        return tuple(BarGroup(name=f"host {i}", ranks=ranks) for i, ranks in enumerate(found))
    return tuple(BarGroup(name=f"ranks {r[0]}-{r[-1]}", ranks=r) for r in found)


VALUE_WIDTH: Final = 92
"""Pixels for the value at the end of a lane."""


# ------------------------------------------------------------------ points on log scales

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, on light and dark ground."""
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 16, 46
_MOST_TICKS: Final = 8
_LETTER, _LINE = 6.6, 13.0
"""Width of a letter and height of a line of labels, in units of the chart."""

Place = tuple[float, float]
"""A position (across, up), in the values of the axes or in units of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartDot:
    """A point: its position, the name that gives its colour, and its text.

    ``label`` is written beside it if there is room.
    """

    x: float
    y: float
    name: str
    told: str
    is_best: bool = True
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What an axis shows: its title, and the factor from values to labels."""

    title: str
    factor: float = 1.0


class ChartScale:
    """A logarithmic axis that covers some values, with a margin around them."""

    def __init__(self, values: Sequence[float], start: float, end: float, margin: float = 1.15):
        self.low = min(values) / margin
        self.high = max(max(values) * margin, self.low * (1 + 3 * (margin - 1)))
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


def legend(names: Sequence[str]) -> Markup:
    """Each name with a dot of its colour before it."""
    keys = [(_colour(names, name), name) for name in names]
    return fill("{{ blocks.dots(keys) }}", keys=keys)


def _colour(names: Sequence[str], name: str) -> str:
    if name not in names:
        return "var(--soft)"
    return _COLOURS[names.index(name) % len(_COLOURS)]


def scatter(
    label: str,
    dots: Sequence[ChartDot],
    names: Sequence[str],
    across: Figure,
    up: Figure,
    *,
    lines: Mapping[str, Sequence[Place]] | None = None,
    margin: float = 1.15,
) -> Markup:
    """A chart of points on log scales; the best are filled, and lines may join some.

    Args:
        label: what the chart shows, for people who cannot see it.
        dots: at least one point; later ones are drawn over earlier ones.
        names: the names that have a colour, in the order of the legend.
        across: the axis to the right.
        up: the axis upwards.
        lines: the points of a line in the colour of a name, grey for others, in the values of the
            axes.
        margin: factor by which the axis upwards goes on beyond the points.
    """
    places = [(d.x, d.y) for d in dots]
    x = ChartScale([a for a, _ in places], LEFT, WIDTH - RIGHT)
    y = ChartScale([b for _, b in places], HEIGHT - BOTTOM, TOP, margin)
    taken = [(x(a), y(b)) for a, b in places]
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    rows = [(f"{x(t):.1f}", significant(t * across.factor, 6)) for t in x.ticks(across.factor)]
    cols = [(y(t), significant(t * up.factor, 6)) for t in y.ticks(up.factor)]
    chart = {
        "label": label,
        "width": WIDTH,
        "height": HEIGHT,
        "across": across.title,
        "up": up.title,
        "grid": [
            *((a, TOP, a, bottom) for a, _ in rows),
            *((LEFT, f"{b:.1f}", right, f"{b:.1f}") for b, _ in cols),
        ],
        "ticks": [
            *((a, bottom + 18, "middle", words) for a, words in rows),
            *((LEFT - 8, f"{b + 4:.1f}", "end", words) for b, words in cols),
        ],
        "lines": [
            (_colour(names, name), " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in joined))
            for name, joined in (lines or {}).items()
        ],
        "dots": [
            (f"{a:.1f}", f"{b:.1f}", _colour(names, dot.name), dot)
            for (a, b), dot in zip(taken, dots, strict=True)
        ],
        "labels": list(
            written([(place, d.label) for place, d in zip(taken, dots, strict=True)], taken)
        ),
    }
    return fill("{{ blocks.scatter(chart) }}", chart=chart)


def written(
    labels: Sequence[tuple[Place, str]], dots: Sequence[Place]
) -> Iterator[tuple[float, float, str]]:
    """Left end, baseline and text of each label that has room beside its place.

    No other label and no dot is in the way of those that are written.

    Args:
        labels: places in units of the chart, and the texts to write there.
        dots: places that have to stay visible.
    """
    boxes = [(a - 6, b - 6, a + 6, b + 6) for a, b in dots]
    for (a, b), text in labels:
        wide = _LETTER * len(text)
        for left, up in (
            *((a + 10, b + 4), (a + 8, b - 8), (a - 10 - wide, b + 4), (a - 8 - wide, b - 8)),
            *((a + 8, b + 18), (a - 8 - wide, b + 18)),
        ):
            box = (left, up - _LINE + 3, left + wide, up + 3)
            across = box[0] >= LEFT and box[2] <= WIDTH - 2
            inside = text and across and box[1] >= 0 and box[3] <= HEIGHT - BOTTOM
            if inside and not any(_meet(box, other) for other in boxes):
                boxes.append(box)
                yield round(left, 1), round(up, 1), text
                break


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) have a part in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
