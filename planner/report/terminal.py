"""Prints sections on a terminal, as wide as its console is, without control codes from names.

No text is cut. A table that is too wide wraps its texts, then leaves out optional columns, and at
last becomes a list of records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.base import Column, Fact, Section, format_cell
from planner.support.text import printable

_LABEL_WIDTH = 20
_NARROWEST_LABEL = 10
_STEPS = ((2, 0), (1, 0), (1, 14), (1, 8))
"""Blanks between columns, in addition to the one of the box, and the width at which texts wrap, 0
for none: what is tried one after the other until a table fits."""

_BREAK = re.compile(r" (?!%|[KMGTP]?i?B\b|[num]?s\b|[kMG]\b(?!\s[\d(])|USD\b|FLOP)")
"""Where a text may be broken: at a blank, but not between a number and its unit."""

_SEAMS = re.compile(r"(?<=[_/.-])(?=[^\d_/.-])")
"""The places where a long word is broken if possible."""

Cells = list[tuple[str, ...]]


def print_facts(console: Console, facts: tuple[Fact, ...]) -> None:
    """Print facts as aligned lines, which are broken between their parts if possible."""
    facts = tuple(fact for fact in facts if fact.parts)
    label_width = min(max([_NARROWEST_LABEL, *(len(fact.label) for fact in facts)]), _LABEL_WIDTH)
    for fact in facts:
        room = console.width - label_width - 1
        parts = [line for part in fact.parts for line in wrap(printable(part), room)]
        for i, line in enumerate(_filled(parts, room, "   ")):
            text = Text(f"{'' if i else fact.label:<{label_width}} ", style="bold")
            console.print(text.append(line, style="not bold"), soft_wrap=True, highlight=False)


def print_sections(console: Console, sections: Iterable[Section]) -> None:
    """Print whole sections: heading, facts, table, notes."""
    for section in sections:
        for line in ("", *wrap(printable(section.title), console.width)) if section.title else ():
            console.print(Text(line, style="bold underline"), soft_wrap=True)
        print_facts(console, section.facts)
        if section.rows:
            _print_table(console, section)
        print_notes(console, section.notes)


def print_notes(console: Console, notes: tuple[str, ...]) -> None:
    """Print notes, wrapped at the width of the terminal."""
    for note in notes:
        for line in wrap(printable(note), console.width):
            console.print(Text(line), soft_wrap=True, highlight=False)


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of whole words; a number stays on one line with its unit."""
    return _filled(_BREAK.split(text), width, " ")


def _filled(parts: Sequence[str], width: int, blanks: str) -> list[str]:
    """Join parts by blanks, as many on each line as it has room for."""
    lines: list[str] = []
    for part in parts or [""]:
        if lines and cell_len(lines[-1] + blanks + part) <= width:
            lines[-1] += blanks + part
        else:
            lines.append(part)
    return lines


def _print_table(console: Console, section: Section) -> None:
    columns = tuple(replace(c, title=printable(c.title)) for c in section.columns)
    cells = [
        tuple(format_cell(c.kind, v) for c, v in zip(columns, row, strict=True))
        for row in section.rows
    ]
    found = _column_widths(columns, cells, console.width - 1)
    if found is not None:
        console.print(_table(columns, cells, *found))
        return
    console.print()
    for row in cells:  # a heading, and the other cells below it
        first, *others = (i for i, text in enumerate(row) if text)
        print_notes(console, (row[first],))
        print_facts(console, tuple(Fact(f"  {columns[i].title}", (row[i],)) for i in others))


def _table(columns: tuple[Column, ...], cells: Cells, widths: dict[int, int], gap: int) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0), collapse_padding=True
    )
    for index, width in widths.items():
        table.add_column(
            Text(_folded(columns[index].title, width)),
            justify="right" if columns[index].is_number else "left",
            no_wrap=True,
            width=width,
        )
    for row in cells:
        table.add_row(*(Text(_folded(row[i], width)) for i, width in widths.items()))
    return table


def _folded(text: str, width: int) -> str:
    """The text on as many lines as it needs; words that are too long break at ``_SEAMS``."""
    parts = (line for part in wrap(text, width) for line in _filled(_SEAMS.split(part), width, ""))
    return "\n".join(line for part in parts for line in chop_cells(part, width or 1))


def _column_widths(
    columns: tuple[Column, ...], cells: Cells, width: int
) -> tuple[dict[int, int], int] | None:
    """Widths of the columns that are shown, by index, and the blanks between them.

    Numbers keep their full width; their titles may wrap. If the table is too wide, these steps are
    taken until it fits: narrow gaps; texts wrap at a readable width; optional columns are left out,
    the last one first; texts wrap at a narrow width. None if nothing helps.
    """
    full, least = {}, {}
    for i, column in enumerate(columns):
        full[i] = max(cell_len(text) for text in (column.title, *(row[i] for row in cells)))
        words = (*_BREAK.split(column.title), *(row[i] for row in cells if column.is_number))
        least[i] = max(map(cell_len, words))
    for gap, narrowest in _STEPS:
        while True:
            floor = dict(full)
            if narrowest:
                texts = {i: 0 if columns[i].is_number else narrowest for i in full}
                floor = {i: min(full[i], max(least[i], texts[i])) for i in full}
            room = width - (gap + 1) * len(full)
            if sum(floor.values()) <= room:
                return _shrunk(full, floor, room), gap
            spare = [i for i in full if columns[i].optional and narrowest]
            if not spare:
                break
            del full[spare[-1]]
    return None


def _shrunk(widths: dict[int, int], floor: dict[int, int], room: int) -> dict[int, int]:
    """Narrow the widest column that is above its floor, again and again, until all columns fit."""
    while sum(widths.values()) > room:
        widest = max((i for i in widths if widths[i] > floor[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths
