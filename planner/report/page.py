"""Pages: blocks of HTML in one file that loads nothing from other places.

HTML is written as Jinja2 templates with autoescape, so that a value can only become text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING

from markupsafe import Markup

import costmodels
from costmodels import units
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
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    page = _environment().get_template("page.html")
    return page.render(
        title=title,
        subtitle=subtitle,
        blocks=blocks,
        policy=Markup(policy),
        style=Markup(style),
        script=Markup(script),
        version=costmodels.__version__,
    )


def _asset(name: str) -> str:
    return (resources.files("planner.report") / "html" / name).read_text(encoding="utf-8")


# ------------------------------------------------------------------ templates


def fill(source: str, **values: object) -> Markup:
    """Fill a short template that is written beside the code that uses it.

    ``blocks`` has the macros of ``templates/blocks.html``. A value is escaped, and its control
    codes are replaced, unless it is :class:`markupsafe.Markup`, which only templates make.
    """
    return Markup(_environment().from_string(source).render(blocks=_blocks(), **values))


def block(name: str, **values: object) -> Markup:
    """Fill a macro of ``templates/blocks.html``, as :func:`fill` does."""
    return Markup(getattr(_blocks(), name)(**values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("planner.report", "html/templates"),
        autoescape=True,
        finalize=_without_control_codes,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {kind.name.lower(): partial(format_cell, kind) for kind in Kind}
    made.filters["mib"] = lambda num_bytes: significant(num_bytes / units.MIB)
    made.filters["counted"] = counted
    return made


def _blocks() -> object:
    return _environment().get_template("blocks.html").module


def _without_control_codes(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


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
    return block(
        "grid",
        heads=[(c.title.removesuffix(" GiB"), c.is_number) for c in columns],
        rows=[[_cell(c.kind, v) for c, v in zip(columns, row, strict=True)] for row in rows],
        css=css,
        ident=ident,
        marked=marked,
    )


def _cell(kind: Kind, value: Cell) -> tuple[str, str | None, str]:
    """The text, the raw number (None for a text), and the style class of a signed difference."""
    words = format_cell(Kind.BYTES if kind is Kind.GIB else kind, value)
    if kind is Kind.TEXT or isinstance(value, str):
        return words, None, ""
    if not isinstance(value, float):
        return words, "" if value is None else printable(str(value)), ""
    side = "up" if value > 0 else "down"
    return words, f"{value:.9g}", side if kind is Kind.DELTA and words != "0" else ""
