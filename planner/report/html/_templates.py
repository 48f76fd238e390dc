"""Fills Jinja2 templates with autoescape, so that a value in a template can only become text."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup

from planner.support.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def render(name: str, **values: object) -> Markup:
    """The template ``templates/<name>`` with these values."""
    return Markup(_environment().get_template(name).render(values))


def fill(source: str, **values: object) -> Markup:
    """Fill a short template that is written beside the code that uses it.

    ``blocks`` has the macros of ``templates/blocks.html``. A value is escaped, and its control
    codes are replaced, unless it is :class:`markupsafe.Markup`, which only templates and charts
    make.
    """
    return Markup(_compiled(source).render(blocks=_blocks(), **values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("planner.report.html"),
        autoescape=True,
        finalize=_without_control_codes,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _without_control_codes(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))


@cache
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@cache
def _blocks() -> object:
    return _environment().get_template("blocks.html").module
