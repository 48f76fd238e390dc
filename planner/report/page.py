"""Pages: blocks of HTML in one file that loads nothing from other places.

HTML is written as Jinja2 templates with autoescape, so that a value can only become text. Charts
are inline SVG: bars in lanes, and points on log scales.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Final

import numpy as np
from markupsafe import Markup

import costmodels
from costmodels import units
from costmodels.topology import Topology
from planner.report.base import Cell, Column, Kind, Section, format_cell
from planner.support.text import counted, printable, significant

if TYPE_CHECKING:
    from jinja2 import Environment

_WIDE_TEXT = 60
"""A table with longer texts than this wraps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of the page.

    ``name`` is its anchor; ``short`` is its name in the navigation.
    """

    name: str
    title: str
    body: Markup
    short: str = ""


def render_page(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """The document; its script sorts, searches, shows details and switches the theme."""
    style, script = _asset("style.css"), "\n" + _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _environment().get_template("page.html")
    return page.render(
        title=title,
        subtitle=subtitle,
        blocks=blocks,
        digest=digest,
        style=Markup(style),
        script=Markup(script),
        version=costmodels.__version__,
    )


def _asset(name: str) -> str:
    return (resources.files("planner.report") / "html" / name).read_text(encoding="utf-8")


# ------------------------------------------------------------------ templates


def block(name: str, **values: object) -> Markup:
    """Fill a macro of ``templates/blocks.html``.

    A value is escaped, and its control codes are replaced, unless it is
    :class:`markupsafe.Markup`, which only templates make.
    """
    blocks = _environment().get_template("blocks.html").module
    return Markup(getattr(blocks, name)(**values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("planner.report", "html/templates"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {kind.name.lower(): partial(format_cell, kind) for kind in Kind}
    made.filters["mib"] = lambda num_bytes: significant(num_bytes / units.MIB)
    made.filters |= {"counted": counted, "cell": _cell}
    return made


# ------------------------------------------------------------------ sections and tables


def plain_body(section: Section) -> Markup:
    """Facts, table and notes of a section."""
    pairs = [(fact.label, "; ".join(fact.parts)) for fact in section.facts if fact.parts]
    table = grid(section.columns, section.rows) if section.rows else ""
    return block("plain", pairs=pairs, table=table, notes=section.notes)


def grid(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    css: str = "",
    ident: str = "",
    marked: int = 0,
) -> Markup:
    """A table in a box of its own; it scrolls there if it has many rows.

    Args:
        columns: the columns, of which the first one names the rows.
        rows: a value for each column.
        css: style class of the table; by default what its columns need.
        ident: id of the table, for its search box.
        marked: number of first rows that stand out.
    """
    if not css and any(column.kind is Kind.DELTA for column in columns):
        css = "delta"
    if not css and any(isinstance(v, str) and len(v) > _WIDE_TEXT for row in rows for v in row[1:]):
        css = "wide"
    return block("grid", columns=columns, rows=rows, css=css, ident=ident, marked=marked)


def _cell(column: Column, value: Cell) -> tuple[str, str | None, str]:
    """The text, the raw number (None for a text), and the style class of a signed difference."""
    kind = column.kind
    words = format_cell(Kind.BYTES if kind is Kind.GIB else kind, value)
    if kind is Kind.TEXT or isinstance(value, str):
        return words, None, ""
    if not isinstance(value, float):
        return words, "" if value is None else printable(str(value)), ""
    side = "up" if value > 0 else "down"
    return words, f"{value:.9g}", side if kind is Kind.DELTA and words != "0" else ""


# ------------------------------------------------------------------ charts: bars in lanes

_MOST_TICKS: Final = 7


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
    """Round numbers from 0 to ``end``, by default times: 1, 2 or 5 times a power of ten apart."""
    if end <= 0:
        return ()
    least = end / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= 0.9999 * least)
    ticks = (i * step for i in range(int(end / step * 1.0001) + 1))
    return tuple((v / end, write(v) if v else "0", "axis") for v in ticks)


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


def scatter(
    dots: Sequence[ChartDot],
    names: Sequence[str],
    across: tuple[str, float],
    up: tuple[str, float],
    line: Sequence[tuple[float, float]] = (),
) -> Markup:
    """A chart of points on log scales, below the names with a dot of their colour before each.

    The best points are filled, and a grey line may join some.

    Args:
        dots: at least one point; later ones are drawn over earlier ones.
        names: the names that have a colour, in the order of the legend.
        across: the title of the axis to the right, and the factor from values to its labels.
        up: the same of the axis upwards.
        line: the points of a line, in the values of the axes.
    """
    x, y = ChartScale([d.x for d in dots]), ChartScale([d.y for d in dots])
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    return block(
        "scatter",
        colours=colours,
        across=across[0],
        up=up[0],
        rows=[(x(t), significant(t * across[1], 6)) for t in x.ticks(across[1])],
        cols=[(y(t), significant(t * up[1], 6)) for t in y.ticks(up[1])],
        line=[(x(a), y(b)) for a, b in line],
        dots=[(x(d.x), y(d.y), colours[d.name], d) for d in dots],
    )
