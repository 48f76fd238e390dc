"""Sections for a terminal: at most 100 columns, no markup of its own in names."""

from __future__ import annotations

import re

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.base import Column, Fact, Section, format_cell

MAX_WIDTH = 100
_LABEL_WIDTH = 20
_NARROWEST_LABEL = 10
_NARROWEST_TEXT = 14
_GAP = 2


def print_facts(console: Console, facts: tuple[Fact, ...]) -> None:
    """Facts as aligned lines; parts wrap between each other, under their label."""
    width = min(console.width, MAX_WIDTH)
    label_width = max([len(fact.label) for fact in facts], default=0)
    label_width = min(max(label_width, _NARROWEST_LABEL), _LABEL_WIDTH)
    for fact in facts:
        for i, line in enumerate(_pack(fact.parts, width - label_width - 1)):
            label = fact.label if i == 0 else ""
            text = Text(f"{label:<{label_width}} ", style="bold")
            console.print(text.append(line, style="not bold"), soft_wrap=True, highlight=False)


def print_sections(console: Console, sections: tuple[Section, ...]) -> None:
    """Whole sections: heading, facts, table, notes."""
    for section in sections:
        console.print()
        console.print(Text(section.title, style="bold underline"))
        print_facts(console, section.facts)
        if section.rows:
            console.print(_table(section, min(console.width, MAX_WIDTH)))
        print_notes(console, section.notes)


def print_notes(console: Console, notes: tuple[str, ...]) -> None:
    """Notes, wrapped at the width of the terminal."""
    width = min(console.width, MAX_WIDTH)
    for note in notes:
        console.print(Text(note), width=width, highlight=False)


def _pack(parts: tuple[str, ...], width: int) -> list[str]:
    """Parts joined by three spaces, broken between parts, then between words."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] = f"{lines[-1]}   {part}"
        else:
            lines.extend(_wrap(part, width))
    return lines or [""]


def _wrap(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for word in re.split(r" (?!%)", text):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(word)
    return lines


def _table(section: Section, width: int) -> Table:
    cells = [
        tuple(format_cell(c.kind, v) for c, v in zip(section.columns, row, strict=True))
        for row in section.rows
    ]
    widths = _column_widths(section.columns, cells, width)
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP, 0, 0), collapse_padding=True
    )
    for index, column_width in widths.items():
        column = section.columns[index]
        table.add_column(
            Text(column.title, overflow="ellipsis"),
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=column_width,
        )
    for row in cells:
        table.add_row(*(Text(row[index]) for index in widths))
    return table


def _column_widths(
    columns: tuple[Column, ...], cells: list[tuple[str, ...]], width: int
) -> dict[int, int]:
    """Widths of the columns that are shown, by index.

    Numbers keep their full width. If the rest is too wide, texts are cut down to a readable width,
    then optional columns go, the last first; what then remains is cut for good.
    """
    widths = {
        i: max(cell_len(text) for text in (column.title, *(row[i] for row in cells)))
        for i, column in enumerate(columns)
    }
    texts = [i for i, column in enumerate(columns) if not column.is_number]
    while _excess(widths, width) > 0:
        spare = [i for i in widths if columns[i].optional]
        long = [i for i in texts if i in widths and widths[i] > _NARROWEST_TEXT]
        shortest = sum(widths[i] - _NARROWEST_TEXT for i in long)
        if spare and shortest < _excess(widths, width):
            del widths[spare[-1]]
            continue
        cut = max(long or [i for i in texts if i in widths], key=lambda i: widths[i], default=None)
        if cut is None or widths[cut] <= 1:
            break
        widths[cut] -= 1
    return widths


def _excess(widths: dict[int, int], width: int) -> int:
    return sum(widths.values()) + (_GAP + 1) * len(widths) + 1 - width
