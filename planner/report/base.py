"""A section of a report: facts and rows of raw values, which are formatted when it is written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, member
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar

from costmodels import units
from planner.support.text import format_gap, printable, significant, unsigned_zero

_NOTHING = 1e-8
"""A difference of fewer seconds is written as 0."""

_NUMBER = re.compile(
    r"[-+<>~]?\d[\d,._]*(e[-+]?\d+)?( ?(%|x|[A-Za-z]+(/[A-Za-z]+)?))?"
    r"( (\.\.|of) \d[\d,._]*( ?[%A-Za-z/]+)?)?"
)
"""A number with its unit, an interval, or a share such as ``3 of 8``."""

Cell = str | int | float | None
Item = TypeVar("Item")


def _signed(value: float) -> str:
    """A difference with ``+`` or a minus sign; ``0`` if it is below ``_NOTHING``."""
    if abs(value) < _NOTHING:
        return "0"
    sign = "+" if value > 0 else "\N{MINUS SIGN}"
    return sign + units.format_time(abs(value))


def format_gib(num_bytes: float) -> str:
    """Bytes as a number of GiB: ``41.2``."""
    gib = num_bytes / units.GIB
    return f"{gib:.1f}" if abs(gib) >= 0.05 or gib == 0 else significant(gib, 1)


def format_share(ratio: float) -> str:
    """A ratio 0..1 in percent: ``38 %``; below 10 % with one decimal."""
    percent = 100 * ratio
    if not math.isfinite(percent):
        return "-"
    whole = abs(percent) >= 9.95 or percent == 0
    decimals = 0 if whole else 1
    return f"{unsigned_zero(percent, decimals):.{decimals}f} %"


def format_percent(ratio: float) -> str:
    """A ratio in percent with one decimal, ``-`` for none."""
    return f"{100 * ratio:.1f} %" if math.isfinite(ratio) else "-"


def format_confidence(ratio: float) -> str:
    """A probability in percent; some hundred samples tell no more than ``over 99 %``."""
    return "over 99 %" if ratio > 0.99 else format_share(ratio)


def format_factor(ratio: float) -> str:
    """A ratio of two times: ``1.34x``."""
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


def format_interval(time_s: float, low_s: float, high_s: float) -> tuple[str, str]:
    """A time and its interval in one unit: ``("3.10 ms", "[2.90 .. 3.40]")``."""
    steps = (("s", 1.0), ("ms", units.MS))
    unit, scale = next(((u, s) for u, s in steps if time_s >= 0.9995 * s), ("us", units.US))
    time, low, high = (_three_digits(t / scale) for t in (time_s, low_s, high_s))
    return f"{time} {unit}", f"[{low} .. {high}]"


def _three_digits(number: float) -> str:
    return f"{number:#.3g}".rstrip(".") if abs(number) < 999.5 else f"{number:,.0f}"


class Kind(Enum):
    """The kind of the values of a column, which writes them for people.

    Values are raw: seconds, bytes, shares 0..1. ``GIB`` writes bytes as a number of GiB without
    unit, for columns whose title has the unit. ``GAP`` writes a share with two digits, ``PERCENT``
    with one decimal, and ``ERROR`` with its sign too. ``FACTOR`` writes ``1.34x``, ``DELTA`` a time
    with its sign.
    """

    TEXT = member(str)
    COUNT = member(lambda v: f"{v:,.0f}")
    NUMBER = member(lambda v: significant(v, 4))
    TIME = member(units.format_time)
    BYTES = member(units.format_bytes)
    GIB = member(format_gib)
    SHARE = member(format_share)
    GAP = member(format_gap)
    PERCENT = member(format_percent)
    ERROR = member(lambda v: f"{100 * v:+.1f} %")
    FACTOR = member(format_factor)
    RATE = member(lambda v: f"{units.format_count(v)}/s")
    DELTA = member(_signed)
    USD = member(lambda v: f"{significant(v)} USD")


def format_cell(kind: Kind, value: Cell) -> str:
    """One value as people read it; ``-`` for a missing one."""
    if value is None:
        return "-"
    return printable(value) if isinstance(value, str) else str(kind.value(value))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a section's table.

    An ``optional`` one is left out on a narrow terminal.
    """

    title: str
    kind: Kind = Kind.TEXT
    optional: bool = False

    @property
    def is_number(self) -> bool:
        """Whether the column has numbers, which are aligned to the right and never wrapped."""
        return self.kind is not Kind.TEXT


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a section: a label and parts that may be spread over several lines.

    ``num_first`` is how many of the parts the first screen of a terminal shows, and None for all.
    """

    label: str
    parts: tuple[str, ...]
    num_first: int | None = None

    @property
    def first(self) -> Fact:
        """The line as the first screen shows it."""
        return self if self.num_first is None else Fact(self.label, self.parts[: self.num_first])


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report: facts, then a table, then notes; each may be missing.

    Facts without parts are not shown; nor is a title without text.
    """

    title: str
    facts: tuple[Fact, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[Item],
        cells: Mapping[Any, Callable[[Item], Cell]],
        **more: Any,
    ) -> Section:
        """A section with a row for each item.

        Args:
            title: its heading.
            items: what the rows are about.
            cells: what makes the cell of an item, under its column. A title alone is a column of
                texts; where all texts with digits are numbers, they are set flush right and never
                wrap. If it ends in ``?``, which is not shown, a narrow terminal may leave it out.
            more: further fields of the section.
        """
        rows = tuple(tuple(make(item) for make in cells.values()) for item in items)
        columns = tuple(
            of if isinstance(of, Column) else _column(of, [str(row[i]) for row in rows])
            for i, of in enumerate(cells)
        )
        return cls(title=title, columns=columns, rows=rows, **more)


def by_place(*titles: str | Column) -> dict[Any, Callable[[Any], Any]]:
    """The cells of rows that are there already, by the titles of their columns."""
    return {title: itemgetter(i) for i, title in enumerate(titles)}


_BY_UNIT: Final = {
    **{"samples_per_s": Kind.RATE, "usd_per_billion_samples": Kind.USD, "usd_per_hour": Kind.USD},
    **{"coverage_ratio": Kind.SHARE, "width_ratio": Kind.SHARE},
    **{"_s": Kind.TIME, "_bytes": Kind.BYTES, "_ratio": Kind.PERCENT},
}
_SIGNED: Final = ("error_ratio", "bias_ratio")


def by_field(*fields: str) -> dict[Any, Callable[[Any], Cell]]:
    """The cells of items, by the names of their fields or keys; units say how they are written.

    Times under ``measured_s`` have the title ``measured``, and shares under ``p90=p90_error_ratio``
    the title ``p90``. Names without a unit are columns as :meth:`Section.of` makes them of titles.
    """
    cells: dict[Any, Callable[[Any], Cell]] = {}
    for told in fields:
        title, _, name = told.removesuffix("?").rpartition("=")
        unit = next((unit for unit in _BY_UNIT if name.endswith(unit)), "")
        words = title or name.removesuffix(unit).replace("_", " ")
        kind = Kind.ERROR if name in _SIGNED else _BY_UNIT.get(unit)
        column = Column(words, kind, optional=told.endswith("?")) if kind else words
        cells[column] = partial(_field, name)
    return cells


def _field(name: str, item: Any) -> Any:
    """What an item has under a name such as ``figures.time_s``; None where it has no figures."""
    for part in name.split("."):
        if item is not None:
            item = item[part] if isinstance(item, Mapping) else getattr(item, part)
    return item


def _column(title: str, texts: Sequence[str]) -> Column:
    numbers = [text for text in texts if _NUMBER.fullmatch(text)]
    words = [text for text in texts if any(c.isdigit() for c in text)]
    kind = Kind.COUNT if numbers and len(numbers) == len(words) else Kind.TEXT
    return Column(title.removesuffix("?"), kind, optional=title.endswith("?"))
