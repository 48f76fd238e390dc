"""Prints sections on a terminal, at most 100 columns wide, without control codes from names.

No text is cut. A table that is too wide wraps its texts, then leaves out optional columns, and at
last becomes a list of records.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.base import Column, Fact, Section, format_cell
from planner.support.text import printable

MAX_WIDTH = 100
_LABEL_WIDTH = 20
_NARROWEST_LABEL = 10
_READABLE_TEXT = 14
_NARROWEST_TEXT = 8
_GAPS = (2, 1)
"""Blanks between columns, in addition to the one of the box: usually, and in narrow tables."""

_BREAK = re.compile(r" (?!%|[KMGTP]?i?B\b|[num]?s\b|[kMG]\b(?!\s[\d(])|USD\b|FLOP)")
"""Where a text may be broken: at a blank, but not between a number and its unit."""

_SEAMS = re.compile(r"(?<=[_/.-])(?=[^\d_/.-])")
"""The places where a long word is broken if possible."""

Cells = list[tuple[str, ...]]


def print_facts(console: Console, facts: tuple[Fact, ...]) -> None:
    """Print facts as aligned lines, which are broken between their parts if possible."""
    width = min(console.width, MAX_WIDTH)
    label_width = max([len(fact.label) for fact in facts], default=0)
    label_width = min(max(label_width, _NARROWEST_LABEL), _LABEL_WIDTH)
    for fact in facts:
        for i, line in enumerate(_pack(tuple(map(printable, fact.parts)), width - label_width - 1)):
            label = fact.label if i == 0 else ""
            text = Text(f"{label:<{label_width}} ", style="bold")
            console.print(text.append(line, style="not bold"), soft_wrap=True, highlight=False)


def print_sections(console: Console, sections: tuple[Section, ...]) -> None:
    """Print whole sections: heading, facts, table, notes."""
    width = min(console.width, MAX_WIDTH)
    for section in map(_printable, sections):
        console.print()
        for line in wrap(section.title, width):
            console.print(Text(line, style="bold underline"), soft_wrap=True)
        print_facts(console, section.facts)
        if section.rows:
            _print_table(console, section, width)
        print_notes(console, section.notes)


def _printable(section: Section) -> Section:
    """The section with control codes taken out of its headings, which can have names of plans."""
    columns = tuple(replace(c, title=printable(c.title)) for c in section.columns)
    return replace(section, title=printable(section.title), columns=columns)


def print_notes(console: Console, notes: tuple[str, ...]) -> None:
    """Print notes, wrapped at the width of the terminal."""
    width = min(console.width, MAX_WIDTH)
    for note in notes:
        for line in wrap(printable(note), width):
            console.print(Text(line), soft_wrap=True, highlight=False)


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of whole words; a number stays on one line with its unit."""
    lines: list[str] = []
    for word in _BREAK.split(text):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(word)
    return lines


def _pack(parts: tuple[str, ...], width: int) -> list[str]:
    """Join parts by three blanks; lines are broken between parts, and only then between words."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + 3 + cell_len(part) <= width:
            lines[-1] = f"{lines[-1]}   {part}"
        else:
            lines.extend(wrap(part, width))
    return lines or [""]


def _print_table(console: Console, section: Section, width: int) -> None:
    cells = [
        tuple(format_cell(c.kind, v) for c, v in zip(section.columns, row, strict=True))
        for row in section.rows
    ]
    for gap in _GAPS:
        widths = _column_widths(section.columns, cells, width - 1, gap + 1)
        if widths is not None:
            console.print(_table(section.columns, cells, widths, gap))
            return
    _print_records(console, section.columns, cells)


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


def _print_records(console: Console, columns: tuple[Column, ...], cells: Cells) -> None:
    """Print every row as a heading (its first cell) with the other cells below it."""
    console.print()
    for row in cells:
        first, *others = (i for i, text in enumerate(row) if text)
        facts = tuple(Fact(label=columns[i].title, parts=(row[i],)) for i in others)
        print_notes(console, (row[first],))
        print_facts(console, tuple(Fact(label=f"  {f.label}", parts=f.parts) for f in facts))


def _folded(text: str, width: int) -> str:
    """The text on as many lines as it needs; words that are too long break at ``_SEAMS``."""
    lines: list[str] = []
    for line in wrap(text, width):
        rest = line
        while cell_len(rest) > width:
            seams = [m.start() for m in _SEAMS.finditer(rest) if m.start() <= width]
            at = seams[-1] if seams else width
            lines.append(rest[:at])
            rest = rest[at:]
        lines.append(rest)
    return "\n".join(lines)


def _column_widths(
    columns: tuple[Column, ...], cells: Cells, width: int, gap: int
) -> dict[int, int] | None:
    """Widths of the columns that are shown, by index; None if they do not fit beside each other.

    Numbers keep their full width; their titles may wrap. If the table is too wide, these steps are
    taken until it fits: narrow gaps; texts wrap at a readable width; optional columns are left out,
    the last one first; texts wrap at a narrow width.
    """
    widths = {
        i: max(cell_len(column.title), *(cell_len(row[i]) for row in cells))
        for i, column in enumerate(columns)
    }
    if _excess(widths, width, gap) <= 0:
        return widths
    if gap > min(_GAPS) + 1:
        return None
    least = {i: _least(column, [row[i] for row in cells]) for i, column in enumerate(columns)}
    for narrowest in (_READABLE_TEXT, _NARROWEST_TEXT):
        while True:
            floor = {
                i: min(w, least[i] if columns[i].is_number else max(narrowest, least[i]))
                for i, w in widths.items()
            }
            if _excess(floor, width, gap) <= 0:
                return _shrunk(widths, floor, width, gap)
            spare = [i for i in widths if columns[i].optional]
            if not spare:
                break
            del widths[spare[-1]]
    return None


def _least(column: Column, texts: list[str]) -> int:
    """The least width of a column: its widest number, or the longest word of its title."""
    title = max(map(cell_len, _BREAK.split(column.title)))
    return max(title, *map(cell_len, texts)) if column.is_number else title


def _shrunk(widths: dict[int, int], floor: dict[int, int], width: int, gap: int) -> dict[int, int]:
    """Narrow the widest column that is above its floor, again and again, until all columns fit."""
    widths = dict(widths)
    while _excess(widths, width, gap) > 0:
        widest = max((i for i in widths if widths[i] > floor[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _excess(widths: dict[int, int], width: int, gap: int) -> int:
    return sum(widths.values()) + gap * len(widths) - width
