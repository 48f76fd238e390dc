"""The page around the sections: one file that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

import costmodels
from planner.report._csv import LONG_HEADER
from planner.report.html.base import Block, text
from planner.support.csv_text import csv_text

_HATCH = (
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>'
    '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="5" '
    'style="stroke:var(--soft);stroke-width:1.4"/></pattern></defs></svg>'
)


def render_page(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """The document. Its script sorts, searches, shows details and switches the theme."""
    style, script = _asset("style.css"), "\n" + _asset("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    links = "".join(f'<li><a href="#{b.name}">{text(b.short or b.title)}</a></li>' for b in blocks)
    sections = "\n".join(
        f'<section id="{b.name}"><h2>{text(b.title)}</h2>\n{b.body}</section>' for b in blocks
    )
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{text(title)}</title>",
            f"<style>\n{style}</style></head><body>",
            f'{_HATCH}<header><h1>{text(title)}</h1><button id="theme" type="button">Dark</button>'
            f'<p class="sub">{text(subtitle)}</p></header>',
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>',
            f"<main>\n{sections}\n</main>",
            f"<footer>shardplan {text(costmodels.__version__)}. Every number on this page stands "
            "in results.csv under the name of its section. Times are predictions of a model, not "
            "measurements.</footer>",
            f"<script>{script}</script></body></html>",
            "",
        )
    )


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
