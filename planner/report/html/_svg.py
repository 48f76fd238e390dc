"""Charts of bars in lanes, as inline SVG with widths in per cent, so that text keeps its size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from costmodels import units
from planner.report.html.base import Number, mark, text

MIN_WIDTH = 700
"""A chart narrower than this many pixels scrolls in its box; labels fit at this width."""

NARROW = 350
"""The same for charts without labels in their bars: the width of a telephone."""

GUTTER = 118
"""Width of the lane labels at the left of the chart, in pixels."""

_CHARACTER = 6.2
"""Mean width of a character of a bar label in the widest font, in pixels."""
_LANE = 22
_THIN_LANE = 14
_ROOMY = 20
"""Lanes are tall if there are at most this many."""
_GROUP = 20
_AXIS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a lane.

    ``css`` is the style class of its colour, ``strong`` outlines it. The first of ``labels`` that
    fits is written into it.
    """

    start_ratio: float
    width_ratio: float
    css: str
    number: Number
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


def lanes_chart(
    label: str,
    lanes: Sequence[Lane],
    *,
    axis: Sequence[Tick],
    value_width: int = 0,
    min_width: int = MIN_WIDTH,
) -> Markup:
    """The chart in a box that scrolls on narrow screens, and a line for details below it."""
    lane_height = _LANE if len(lanes) <= _ROOMY else _THIN_LANE
    base = lane_height - (7 if lane_height == _LANE else 3)
    room = min_width - GUTTER - value_width
    top, parts, left = 0, [], []
    for lane in lanes:
        if lane.group:
            top += _GROUP
            left.append(f'<text class="group" x="0" y="{top - 5}">{text(lane.group)}</text>')
        left.append(f'<text class="lane" x="0" y="{top + base}">{text(lane.label)}</text>')
        if lane.value:
            parts.append(
                f'<text class="value" x="100%" dx="{value_width - 4}" y="{top + base}" '
                f'text-anchor="end">{text(lane.value)}</text>'
            )
        parts += [_bar(bar, top, room, lane_height) for bar in lane.bars]
        top += lane_height
    grid = [_tick(tick, top, odd=i % 2 == 1) for i, tick in enumerate(axis)]
    height = top + _AXIS
    goes_on = " goes-on" if min_width > NARROW else ""
    return Markup(
        f'<div class="scroll chartbox{goes_on}"><div class="chart" style="min-width:{min_width}px;'
        f'height:{height}px"><svg class="gutter" width="{GUTTER}" height="{height}" '
        f'aria-hidden="true">{"".join(left)}</svg>'
        f'<svg class="plot" tabindex="0" role="img" aria-label="{text(label)}" '
        f'style="left:{GUTTER}px;width:calc(100% - {GUTTER + value_width}px)" height="{height}">'
        f"{''.join(grid)}\n{chr(10).join(parts)}</svg></div></div>"
        '<p class="detail" aria-live="polite"></p>'
    )


def _bar(bar: Bar, top: int, room: int, lane_height: int) -> str:
    x, width = 100 * bar.start_ratio, 100 * bar.width_ratio
    strong = " s" if bar.strong else ""
    gap = 2 if lane_height == _LANE else 1
    shape = (
        f'<rect class="c-{bar.css}{strong}" x="{x:.2f}%" width="{width:.2f}%" y="{top + gap}" '
        f'height="{lane_height - 2 * gap}"{mark(bar.number)}><title>{text(bar.title)}</title>'
        "</rect>"
    )
    words = _fitting(bar.labels, room * bar.width_ratio)
    if not words or lane_height < _LANE:
        return shape
    return (
        f'{shape}<text class="in t-{bar.css}" x="{x:.2f}%" dx="5" y="{top + lane_height - 7}">'
        f"{text(words)}</text>"
    )


def _fitting(labels: tuple[str, ...], width: float) -> str:
    """The first label that fits into ``width`` pixels; empty if none does."""
    fits = (words for words in labels if len(words) * _CHARACTER + 8 <= width)
    return next(fits, "")


def _tick(tick: Tick, height: int, *, odd: bool) -> str:
    """A mark with its label; every second (``odd``) label is hidden on narrow screens."""
    x = f"{100 * tick.at_ratio:.2f}%"
    anchor = "start" if tick.at_ratio < 0.03 else "end" if tick.at_ratio > 0.97 else "middle"
    line = f'<line class="{tick.css}" x1="{x}" x2="{x}" y1="0" y2="{height + 4}"/>'
    if not tick.label:
        return line
    shown = ' class="alt"' if odd else ""
    words = text(tick.label)
    return f'{line}<text{shown} x="{x}" y="{height + 18}" text-anchor="{anchor}">{words}</text>'


def axis_s(end_s: float) -> tuple[Tick, ...]:
    """Round times from 0 to ``end_s``."""
    return axis(end_s, units.format_time)


def axis(end: float, write: Callable[[float], str], *, most: int = 7) -> tuple[Tick, ...]:
    """Round numbers from 0 to ``end``."""
    if end <= 0:
        return ()
    step = round_step(end / most)
    ticks = itertools.takewhile(lambda v: v <= end * 1.0001, (i * step for i in itertools.count()))
    return tuple(Tick(at_ratio=v / end, label=write(v) if v else "0") for v in ticks)


def round_step(least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= least * 0.9999)
