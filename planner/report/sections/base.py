"""The base class of a part of the reports, which serves terminal and page."""

from __future__ import annotations

import importlib
from abc import ABC
from collections.abc import Iterator
from typing import ClassVar

from markupsafe import Markup

from costmodels import discovery
from planner.report.base import Section
from planner.report.evidence import Evidence
from planner.report.page import Block, plain_body
from planner.result import PlanningResult

_PACKAGE = "planner.report.sections"


class AbstractReportSection(ABC):  # each method has a default
    """A part of the reports; each file of this package has one.

    :meth:`build` gives the content as facts and rows, which terminal and page show. A part that
    wants charts on the page, or more than rows, has a :meth:`draw` of its own.

    Attributes:
        title: heading on the page.
        short: what the page's list of contents calls it.
        order: place among the parts; smaller ones come first.
    """

    title: ClassVar[str]
    short: ClassVar[str]
    order: ClassVar[int]

    def build(self, result: PlanningResult) -> Section | None:
        """Facts and rows for one planning result; None for a part that only the page has."""
        del result
        return None

    def draw(self, evidence: Evidence) -> Markup | None:
        """The part as HTML; None or empty if it has nothing to show."""
        section = self.build(evidence.result)
        return None if section is None else plain_body(section)


def build_sections(
    result: PlanningResult, names: tuple[str, ...] | None = None
) -> tuple[Section, ...]:
    """The sections for the terminal: the named parts, or all, in their order."""
    built = (part.build(result) for _, part in _parts(names))
    return tuple(section for section in built if section is not None)


def build_blocks(evidence: Evidence) -> tuple[Block, ...]:
    """The blocks of the page, in their order."""
    return tuple(
        Block(name=name, title=part.title, body=body, short=part.short)
        for name, part in _parts(None)
        if (body := part.draw(evidence))
    )


def _parts(names: tuple[str, ...] | None) -> Iterator[tuple[str, AbstractReportSection]]:
    """The parts with their names, in their order."""
    package = importlib.import_module(_PACKAGE)
    chosen = discovery.names(package) if names is None else names
    found = [(name, discovery.load(package, name, AbstractReportSection)()) for name in chosen]
    yield from sorted(found, key=lambda pair: pair[1].order)
