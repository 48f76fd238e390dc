"""The base class of a part of the reports, which serves terminal, Markdown, JSON and page."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from costmodels import discovery
from planner.report.base import Section
from planner.report.html._evidence import Evidence
from planner.report.html._plain import plain_block
from planner.report.html.base import Block
from planner.result import PlanningResult

_PACKAGE = "planner.report.sections"


class AbstractReportSection(ABC):
    """A part of the reports; each file of this package has one.

    :meth:`build` gives the content as facts and rows. That is enough: the terminal, the Markdown
    report, JSON and the page all show it. A part that wants charts on the page, or more than rows,
    has a :meth:`draw` of its own as well.

    Attributes:
        title: heading on the page.
        short: what the page's list of contents calls it.
        order: place among the parts; smaller ones come first.
    """

    title: ClassVar[str]
    short: ClassVar[str]
    order: ClassVar[int]

    @abstractmethod
    def build(self, result: PlanningResult) -> Section | None:
        """Facts and rows for one planning result; None for a part that only the page has."""

    def draw(self, evidence: Evidence) -> Block | None:
        """The part as HTML, with its numbers; None if it has nothing to show."""
        section = self.build(evidence.result)
        if section is None:
            return None
        name = type(self).__module__.rpartition(".")[2]
        return plain_block(name, replace(section, title=self.title))


def build_sections(
    result: PlanningResult, names: tuple[str, ...] | None = None
) -> tuple[Section, ...]:
    """The sections for terminal, Markdown and JSON: the named parts, or all, in their order."""
    built = (part.build(result) for part in _parts(names))
    return tuple(section for section in built if section is not None)


def build_blocks(evidence: Evidence) -> tuple[Block, ...]:
    """The blocks of the page, in their order."""
    drawn = ((part, part.draw(evidence)) for part in _parts(None))
    return tuple(
        replace(block, short=part.short)
        for part, block in drawn
        if block is not None and block.body
    )


def _parts(names: tuple[str, ...] | None) -> Iterator[AbstractReportSection]:
    """The parts in their order."""
    package = importlib.import_module(_PACKAGE)
    chosen = discovery.names(package) if names is None else names
    found = [discovery.load(package, name, AbstractReportSection)() for name in chosen]
    yield from sorted(found, key=lambda part: part.order)
