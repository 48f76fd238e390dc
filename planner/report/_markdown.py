"""Sections as Markdown, for pull requests and tickets."""

from __future__ import annotations

from planner.report.base import Section, format_cell
from planner.support.printable import printable

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]&~$"})
_AT_THE_START = "#+-="
"""Characters that Markdown takes for a list or a heading at the start of a line."""


def render_markdown(title: str, sections: tuple[Section, ...]) -> str:
    """One document: a heading per section, facts as a list, rows as a table."""
    blocks = [f"# {_escape(title)}"]
    for section in sections:
        blocks.append(f"## {_escape(section.title)}")
        blocks.extend(_blocks(section))
    return "\n\n".join(blocks) + "\n"


def _blocks(section: Section) -> list[str]:
    blocks: list[str] = []
    if section.facts:
        lines = (f"- **{_escape(f.label)}**: {_escape('; '.join(f.parts))}" for f in section.facts)
        blocks.append("\n".join(lines))
    if section.rows:
        head = " | ".join(_escape(column.title) for column in section.columns)
        rule = " | ".join("---:" if column.is_number else "---" for column in section.columns)
        rows = [
            " | ".join(
                _escape(format_cell(c.kind, v)) for c, v in zip(section.columns, row, strict=True)
            )
            for row in section.rows
        ]
        blocks.append("\n".join(f"| {line} |" for line in (head, rule, *rows)))
    blocks.extend(_escape_line(note) for note in section.notes)
    return blocks


def _escape_line(text: str) -> str:
    """A text as Markdown, for a line of its own."""
    return "\\" * text.startswith(tuple(_AT_THE_START)) + _escape(text)


def _escape(text: str) -> str:
    return printable(text).translate(_SPECIAL)
