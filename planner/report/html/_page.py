"""The page around the sections: one file that loads nothing from other places."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from markupsafe import Markup

import costmodels
from planner.report._csv import LONG_HEADER
from planner.report.html._templates import render
from planner.report.html.base import Block
from planner.support.csv_text import csv_text


def render_page(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """The document; its script sorts, searches, shows details and switches the theme."""
    style, script = _asset("style.css"), "\n" + _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    page = render(
        "page.html",
        title=title,
        subtitle=subtitle,
        blocks=blocks,
        policy=Markup(policy),
        style=Markup(style),
        script=Markup(script),
        version=costmodels.__version__,
    )
    return str(page)


def long_rows(blocks: Sequence[Block]) -> list[tuple[str, ...]]:
    """The numbers of all sections as rows under :data:`LONG_HEADER`."""
    return [
        (block.name, n.entity, n.quantity, n.text, n.unit, n.source)
        for block in blocks
        for n in block.numbers
        if n.value is not None
    ]


def render_numbers(blocks: Sequence[Block]) -> str:
    """The numbers of a page as a CSV file of their own."""
    return csv_text(LONG_HEADER, long_rows(blocks))


def _asset(name: str) -> str:
    return resources.files("planner.report.html").joinpath(name).read_text(encoding="utf-8")
