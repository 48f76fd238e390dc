"""The base class of a part of the reports, which serves terminal and page."""

from __future__ import annotations

import importlib
import inspect
from abc import ABC
from functools import cache
from typing import ClassVar

from markupsafe import Markup

from costmodels import discovery
from planner.report.base import Section
from planner.report.evidence import Evidence, View
from planner.report.page import Block, plain_body
from planner.result import PlanningResult

_PACKAGE = "planner.report.sections"


class AbstractReportSection(ABC):  # each method has a default
    """A part of the reports; a file of this package has one or more.

    :meth:`build` gives the content as facts and rows, which terminal and page show. A part that
    wants charts of a plan has a :meth:`draw_view`; one that wants more than rows on the page has a
    :meth:`draw` of its own.

    Attributes:
        name: what it is asked for by, and its anchor on the page; empty for the name of its file.
        title: heading on the page.
        short: what the page's list of contents calls it.
        order: place among the parts; smaller ones come first.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str]
    short: ClassVar[str]
    order: ClassVar[int]

    def build(self, result: PlanningResult) -> Section | None:
        """Facts and rows for one planning result; None for a part that only the page has."""
        del result
        return None

    def draw_view(self, view: View) -> Markup | None:
        """Charts of one plan, which pages of several plans show too; None if the part has none."""
        del view
        return None

    def draw(self, evidence: Evidence) -> Markup | None:
        """The part as HTML; None or empty if it has nothing to show."""
        if drawn := self.draw_view(evidence.view):
            return drawn
        section = self.build(evidence.result)
        return None if section is None else plain_body(section)


def build_sections(
    result: PlanningResult, names: tuple[str, ...] | None = None
) -> tuple[Section, ...]:
    """The sections for the terminal: the named parts, or all, in their order."""
    built = (part.build(result) for name, part in parts() if names is None or name in names)
    return tuple(section for section in built if section is not None)


def build_blocks(evidence: Evidence) -> tuple[Block, ...]:
    """The blocks of the page, in their order."""
    return tuple(
        Block(name=name, title=part.title, body=body, short=part.short)
        for name, part in parts()
        if (body := part.draw(evidence))
    )


@cache
def _parts_of(file: str) -> tuple[tuple[str, AbstractReportSection], ...]:
    package = importlib.import_module(_PACKAGE)
    discovery.load(package, file, AbstractReportSection)
    found = vars(importlib.import_module(f"{_PACKAGE}.{file}")).values()
    own = (
        kind
        for kind in found
        if inspect.isclass(kind)
        and issubclass(kind, AbstractReportSection)
        and kind is not AbstractReportSection
    )
    return tuple((kind.name or file, kind()) for kind in own)


def parts() -> list[tuple[str, AbstractReportSection]]:
    """The parts with their names, in their order."""
    files = discovery.names(importlib.import_module(_PACKAGE))
    found = (part for file in files for part in _parts_of(file))
    return sorted(found, key=lambda pair: pair[1].order)
