"""The page around the sections: one file that loads nothing from other places."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from markupsafe import Markup

import costmodels
from planner.report.html._templates import render
from planner.report.html.base import Block


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


def _asset(name: str) -> str:
    return resources.files("planner.report.html").joinpath(name).read_text(encoding="utf-8")
