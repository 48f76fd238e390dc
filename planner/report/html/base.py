"""A block of the page: its HTML, and every number in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from planner.report.base import Cell, Kind, format_cell
from planner.report.html._templates import fill
from planner.support.text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One value that the page shows.

    ``entity`` is what has the value (``rank 3``, a table), ``quantity`` is its name with the unit,
    and ``source`` is ``predicted``, ``input``, ``search``, or the source of a system's number.
    """

    entity: str
    quantity: str
    value: Cell
    unit: str
    source: str

    @property
    def text(self) -> str:
        """The value as the page holds it: nine digits for floats."""
        return raw(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of the page.

    ``name`` is its anchor; ``short`` is its name in the navigation.
    """

    name: str
    title: str
    body: Markup
    numbers: tuple[Number, ...] = ()
    short: str = ""


# ------------------------------------------------------------------ pieces of HTML

_SHORT_NUMBER = re.compile(r"(?<![\d.,])\d+(\.\d+)?(?= )(?! %)(?! B$)")
_MOST_WHOLE = 1e15
_SIGNED = (Kind.DELTA, Kind.DELTA_BYTES)
_PADDED = (Kind.TIME, Kind.BYTES, Kind.RATE, *_SIGNED)


def text(value: object) -> Markup:
    """Any value as text of an element or an attribute; control codes become ``?``."""
    return escape(printable(str(value)))


def raw(value: Cell) -> str:
    """A value as ``data-v`` has it: nine digits, whole numbers in full."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return printable(str(value))
    whole = abs(value) < _MOST_WHOLE and value == round(value)
    return f"{value:.0f}" if whole else f"{value:.9g}"


def mark(number: Number) -> Markup:
    """Attributes that say which number an element shows."""
    told = f'data-q="{text(number.quantity)}" data-v="{text(number.text)}"'
    return Markup(f' data-e="{text(number.entity)}" {told}')


def written(kind: Kind, value: Cell) -> str:
    """A value for people; times, bytes and rates have three digits, so that they line up."""
    words = format_cell(kind, value)
    return _SHORT_NUMBER.sub(_padded, words) if kind in _PADDED else words


def _padded(found: re.Match[str]) -> str:
    return f"{float(found[0]):#.3g}".rstrip(".")


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table: its heading, its quantity, and how its values are written."""

    title: str
    quantity: str
    kind: Kind = Kind.TEXT
    unit: str = ""
    hint: str = ""
    source: str = "predicted"

    @property
    def is_number(self) -> bool:
        """Whether its cells have numbers."""
        return self.kind is not Kind.TEXT


def grid(
    head: str,
    fields: Sequence[Field],
    rows: Sequence[tuple[str, Sequence[Cell]]],
    *,
    css: str = "",
    ident: str = "",
    tall: bool = False,
) -> tuple[Markup, tuple[Number, ...]]:
    """A table in a box of its own, and its numbers.

    Args:
        head: heading of the first column, which has the names of the rows.
        fields: the other columns.
        rows: name (unique) and values of each row.
        css: style class of the table.
        ident: id of the table, for its search box.
        tall: whether the table has so many rows that it scrolls in its box.
    """
    numbers = [
        Number(entity=name, quantity=f.quantity, value=v, unit=f.unit, source=f.source)
        for name, values in rows
        for f, v in zip(fields, values, strict=True)
        if v is not None
    ]
    shown = [(name, [_cell(f, v) for f, v in zip(fields, values, strict=True)])
             for name, values in rows]  # fmt: skip
    table = fill(_GRID, head=head, heads=fields, rows=shown, css=css, ident=ident, tall=tall)
    return table, tuple(numbers)


_GRID = "{{ blocks.grid(head, heads, rows, css, ident, tall) }}"


def _cell(field: Field, value: Cell) -> tuple[str, str | None, str]:
    """The text, the raw number (None for a text), and the style class of a signed difference."""
    words = written(field.kind, value)
    if not field.is_number:
        return words, None, ""
    side = ""
    if field.kind in _SIGNED and isinstance(value, float) and words != "0":
        side = "up" if value > 0 else "down"
    return words, raw(value), side
