"""What a section of the page is: HTML, and a row of results.csv for every number in it."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import ClassVar

from costmodels import discovery
from planner.report.base import Cell, Kind, format_cell
from planner.report.html._evidence import Evidence
from planner.support.printable import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One value that the page shows, as results.csv lists it.

    ``entity`` is what has the value (``rank 3``, a table), ``quantity`` its name with the unit,
    ``source`` where it is from: predicted, input, search, or the source of a system number.
    """

    entity: str
    quantity: str
    value: Cell
    unit: str
    source: str

    @property
    def text(self) -> str:
        """The value as written in both files: nine digits for floats."""
        return raw(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of the page: ``name`` is its anchor and its section in results.csv.

    ``short`` is what the navigation calls it.
    """

    name: str
    title: str
    body: str
    numbers: tuple[Number, ...] = ()
    short: str = ""


class AbstractHtmlSection(ABC):
    """One file of this package."""

    title: ClassVar[str]
    short: ClassVar[str]
    order: ClassVar[int]

    @abstractmethod
    def build(self, evidence: Evidence) -> Block:
        """The section for one planning result."""


def build_blocks(evidence: Evidence) -> tuple[Block, ...]:
    """All sections in their order."""
    package = importlib.import_module("planner.report.html")
    found = [
        discovery.load(package, name, AbstractHtmlSection)() for name in discovery.names(package)
    ]
    ordered = sorted(found, key=lambda section: section.order)
    blocks = (replace(s.build(evidence), short=s.short) for s in ordered)
    return tuple(block for block in blocks if block.body)


# ------------------------------------------------------------------ pieces of HTML

_SHORT_NUMBER = re.compile(r"(?<![\d.,])\d+(\.\d+)?(?= )(?! %)(?! B$)")
_MOST_WHOLE = 1e15
_SIGNED = (Kind.DELTA, Kind.DELTA_BYTES)
_PADDED = (Kind.TIME, Kind.BYTES, Kind.RATE, *_SIGNED)


def text(value: object) -> str:
    """Any value as text of an element or an attribute; control codes become ``?``."""
    return escape(printable(str(value)))


def raw(value: Cell) -> str:
    """A value as results.csv and ``data-v`` write it: nine digits, whole numbers in full."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return printable(str(value))
    whole = abs(value) < _MOST_WHOLE and value == round(value)
    return f"{value:.0f}" if whole else f"{value:.9g}"


def mark(number: Number, *, entity: bool = True) -> str:
    """Attributes that say which number of results.csv an element shows."""
    owner = f' data-e="{text(number.entity)}"' if entity else ""
    return f'{owner} data-q="{number.quantity}" data-v="{text(number.text)}"'


def written(kind: Kind, value: Cell) -> str:
    """A value as people read it; times, bytes and rates with three digits, to line up."""
    words = format_cell(kind, value)
    return _SHORT_NUMBER.sub(_padded, words) if kind in _PADDED else words


def _padded(found: re.Match[str]) -> str:
    return f"{float(found[0]):#.3g}".rstrip(".")


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table: its heading, its name in results.csv, how values are written."""

    title: str
    quantity: str
    kind: Kind = Kind.TEXT
    unit: str = ""
    hint: str = ""
    source: str = "predicted"


def grid(
    head: str,
    fields: Sequence[Field],
    rows: Sequence[tuple[str, Sequence[Cell]]],
    *,
    css: str = "",
    ident: str = "",
    tall: bool = False,
) -> tuple[str, tuple[Number, ...]]:
    """A table in a box of its own, and its numbers.

    Args:
        head: heading of the first column, which names the rows.
        fields: the other columns.
        rows: name (unique) and values of each row.
        css: class of the table.
        ident: id of the table, for its search box.
        tall: whether the table has so many rows that it scrolls in its box.
    """
    numbers = [
        Number(entity=name, quantity=f.quantity, value=v, unit=f.unit, source=f.source)
        for name, values in rows
        for f, v in zip(fields, values, strict=True)
        if v is not None
    ]
    heads = "".join([_head(head), *(_head_of(f) for f in fields)])
    lines = (
        f'<tr data-e="{text(name)}"><th scope="row">{text(name)}</th>'
        + "".join(_cell(f, v) for f, v in zip(fields, values, strict=True))
        + "</tr>"
        for name, values in rows
    )
    body = "\n".join(lines)
    marks = (f' id="{ident}"' if ident else "") + (f' class="{css}"' if css else "")
    table = f"<table{marks}><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    shape = "scroll tall" if tall else "scroll"
    box = f'<div class="{shape}" tabindex="0" role="region" aria-label="{text(head)}">'
    return f"{box}{table}</div>", tuple(numbers)


def _head(title: str, marks: str = "") -> str:
    return f'<th scope="col"{marks}><button type="button">{text(title)}</button></th>'


def _head_of(field: Field) -> str:
    marks = f' data-q="{field.quantity}"'
    marks += ' class="n"' if field.kind is not Kind.TEXT else ""
    marks += f' title="{text(field.hint)}"' if field.hint else ""
    return _head(field.title, marks)


def _cell(field: Field, value: Cell) -> str:
    words = text(written(field.kind, value))
    if field.kind is Kind.TEXT:
        return f"<td>{words}</td>"
    side = ""
    if field.kind in _SIGNED and isinstance(value, float) and words != "0":
        side = ' class="up"' if value > 0 else ' class="down"'
    return f'<td{side} data-v="{raw(value)}">{words}</td>'
