"""Reads a page as people would: which numbers are shown, under which section, in which words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser

from planner.report.html.base import Block

VOID = frozenset({"meta", "link", "input", "br", "wbr", "hr", "img"})
UNITS = {
    **{"%": 1e-2, "x": 1.0, "/s": 1.0, "USD": 1.0},
    **{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    **{"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40},
    **{"k/s": 1e3, "M/s": 1e6, "G/s": 1e9},
}


@dataclass(slots=True)
class Shown:
    """One number on the page; ``words`` is what people see of it, empty in charts."""

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
                self.heads.append(attributes.get("data-q", ""))
            node.column, row.column = row.column, row.column + 1
        if attributes.get("data-v"):
            node.shown = self._shown(node, row)
            self.page.shown.append(node.shown)
        if tag not in VOID:
            self.stack.append(node)

    def _shown(self, node: _Open, row: _Open | None) -> Shown:
        section = next(o.attributes["id"] for o in reversed(self.stack) if o.tag == "section")
        entity = node.attributes.get("data-e") or (row.attributes["data-e"] if row else "")
        quantity = node.attributes.get("data-q") or self.heads[node.column]
        return Shown(section, entity, quantity, node.attributes["data-v"])

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.page.words.append(data)
        if self.stack and self.stack[-1].shown is not None:
            self.stack[-1].shown.words += data


def read_page(text: str) -> Page:
    """The page; fails on tags that do not nest."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.stack
    return reader.page


Values = dict[tuple[str, str, str], str]
"""(section, entity, quantity) -> value."""


def values_of(blocks: Iterable[Block]) -> Values:
    """(section, entity, quantity) -> value of the numbers of a page; fails on a key twice."""
    found: Values = {}
    for block in blocks:
        for number in block.numbers:
            key = (block.name, number.entity, number.quantity)
            assert key not in found, key
            if number.value is not None:
                found[key] = number.text
    return found


def differing(shown: Iterable[Shown], values: Values) -> list[object]:
    """Numbers on the page that its blocks lack or have otherwise, or that are written wrongly."""
    return [s for s in shown if not _agrees(s, values.get((s.section, s.entity, s.quantity)))]


def _agrees(shown: Shown, value: str | None) -> bool:
    if value is None or value != shown.value:
        return False
    if not shown.words or shown.words in ("-", "unproven"):
        return True
    number = _number(shown)
    exact = float(value)
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
    if shown.section.startswith("traffic"):
        return number * 2.0**20
    if not unit and shown.quantity.endswith("_bytes"):
        return number * 2.0**30
    return number * UNITS[unit] if unit else number
