"""A section of the terminal as a block of the page, with its facts, rows and notes."""

from __future__ import annotations

from collections import Counter

from planner.report.base import Column, Kind, Section, format_cell
from planner.report.html._templates import fill
from planner.report.html.base import Block, Field, Number, grid

TALL_ROWS = 24
"""A table with more rows than this scrolls in a box of its own."""

_UNITS: dict[Kind, tuple[str, str]] = {
    Kind.TIME: ("_s", "s"),
    Kind.BYTES: ("_bytes", "B"),
    Kind.GIB: ("_bytes", "B"),
    Kind.SHARE: ("_ratio", "1"),
    Kind.FACTOR: ("_ratio", "1"),
    Kind.RATE: ("_per_s", "1/s"),
}

_BODY = """\
{%- if facts %}{{ blocks.facts(facts) }}{% endif %}
{{- table }}
{%- for note in notes %}<p>{{ note }}</p>{% endfor %}"""


def plain_block(name: str, section: Section) -> Block:
    """The block ``name`` with everything in the section."""
    table, numbers = _table(section) if section.columns else ("", ())
    body = fill(
        _BODY,
        facts=[(fact.label, "; ".join(fact.parts)) for fact in section.facts],
        table=table,
        notes=section.notes,
    )
    return Block(name=name, title=section.title, body=body, numbers=numbers)


def _table(section: Section) -> tuple[str, tuple[Number, ...]]:
    """A table whose rows are named by their first cells; a name that occurs again gets a number."""
    first, *others = section.columns
    seen: Counter[str] = Counter()
    rows = []
    for row in section.rows:
        name = row[0] if isinstance(row[0], str) else format_cell(first.kind, row[0])
        seen[name] += 1
        rows.append((name if seen[name] == 1 else f"{name} ({seen[name]})", row[1:]))
    return grid(first.title, [_field(c) for c in others], rows, tall=len(rows) > TALL_ROWS)


def _field(column: Column) -> Field:
    suffix, unit = _UNITS.get(column.kind, ("", ""))
    quantity = column.title.replace(" GiB", "").replace(" ", "_").replace("/", "_per_")
    kept = quantity if suffix and quantity.endswith(suffix) else quantity + suffix
    title = column.title.removesuffix(" GiB")
    kind = Kind.BYTES if column.kind is Kind.GIB else column.kind
    return Field(title, kept, kind, unit)
