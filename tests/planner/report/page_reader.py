"""Reads a page as people would: which numbers are shown, under which section, in which words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "input", "br", "wbr", "hr", "img"})
UNITS = {
    **{"%": 1e-2, "x": 1.0, "/s": 1.0, "USD": 1.0},
    **{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    **{"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
    **{"k/s": 1e3, "M/s": 1e6, "G/s": 1e9},
}


@dataclass(slots=True)
class Shown:
    """One number in a table of the page: its row, its column, and what people see of it."""

    section: str
    entity: str
    quantity: str
    value: str
    words: str = ""


@dataclass(slots=True)
class _Open:
    tag: str
    attributes: dict[str, str]
    shown: Shown | None = None
    column: int = 0
    name: str = ""


@dataclass(slots=True)
class Page:
    """What a page holds."""

    shown: list[Shown] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.stack: list[_Open] = []
        self.heads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.page.tags.append(tag)
        self.page.ids += [attributes["id"]] if "id" in attributes else []
        if tag == "a":
            self.page.links.append(attributes["href"])
        else:
            self.page.loads += [attributes[k] for k in ("src", "href") if k in attributes]
        node = _Open(tag, attributes)
        row = next((o for o in reversed(self.stack) if o.tag == "tr"), None)
        if tag == "table":
            self.heads = []
        if tag in ("td", "th") and row is not None:
            if any(o.tag == "thead" for o in self.stack):
                self.heads.append("")
            node.column, row.column = row.column, row.column + 1
        if attributes.get("data-v"):
            assert row is not None
            section = next(o.attributes["id"] for o in reversed(self.stack) if o.tag == "section")
            node.shown = Shown(section, row.name, self.heads[node.column], attributes["data-v"])
            self.page.shown.append(node.shown)
        if tag not in VOID:
            self.stack.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.page.words.append(data)
        if self.stack and self.stack[-1].shown is not None:
            self.stack[-1].shown.words += data
        row = next((o for o in reversed(self.stack) if o.tag == "tr"), None)
        if row is not None and any(o.tag == "thead" for o in self.stack):
            self.heads[-1] += data
        elif row is not None and any(o.attributes.get("scope") == "row" for o in self.stack):
            row.name += data


def read_page(text: str) -> Page:
    """The page; fails on tags that do not nest."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.stack
    return reader.page


Values = dict[tuple[str, str, str], float]
"""(section, row, column) -> value."""


def values_of(page: Page) -> Values:
    """The numbers in the tables of a page."""
    return {(s.section, s.entity, s.quantity): float(s.value) for s in page.shown}


def differing(shown: Iterable[Shown]) -> list[Shown]:
    """Numbers whose words say something else than the value by which their column is sorted."""
    return [s for s in shown if not _agrees(s)]


def _agrees(shown: Shown) -> bool:
    if shown.words in ("-", "unproven"):
        return True
    number, exact = _number(shown), float(shown.value)
    return abs(number - exact) <= 0.0061 * abs(exact) + _least(shown)


def _least(shown: Shown) -> float:
    """Half of the last digit that is written."""
    if shown.words == "0":
        return 1e-8
    if shown.words.endswith("%"):
        return 0.00051 if "." in shown.words else 0.0051
    return 0.0051 if shown.words.endswith("x") else 0.0


def _number(shown: Shown) -> float:
    words = shown.words.replace(",", "").replace("\N{MINUS SIGN}", "-")
    found = re.fullmatch(r"([+-]?[\d.]+(?:e[+-]?\d+)?)\s*(\S*)", words)
    assert found, shown
    number, unit = float(found[1]), found[2]
    return number * UNITS[unit] if unit else number
