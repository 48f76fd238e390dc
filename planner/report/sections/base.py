"""The base class of a part of the reports, which serves terminal and page."""

from __future__ import annotations

import importlib
import re
from abc import ABC
from typing import ClassVar

from markupsafe import Markup

from costmodels import discovery
from costmodels.pipeline import CostPipeline
from planner.models import pipeline_of
from planner.report.base import Section
from planner.report.page import Block, plain_body
from planner.result import Candidate, PlanningResult

_PACKAGE = "planner.report.sections"


class AbstractReportSection(ABC):  # each method has a default
    """A part of the reports; a file of this package has one or more.

    :meth:`build` gives the content as facts and rows, which terminal and page show. A part that
    wants charts of a plan has a :meth:`draw_plan`; one that wants more than rows on the page has a
    :meth:`draw` of its own.

    Attributes:
        order: place among the parts; smaller ones come first.
        title: heading on the page.
        short: what the page's list of contents calls it; by default the title.
        name: what it is asked for by, and its anchor on the page; ``busy_tables`` for a class
            ``BusyTables`` or ``BusyTablesSection``.
    """

    order: ClassVar[int]
    title: ClassVar[str]
    short: ClassVar[str]
    name: ClassVar[str]

    def __init_subclass__(cls, *, order: int, title: str, short: str = "") -> None:
        """Take the attributes from the arguments and the name of the class."""
        cls.order, cls.title, cls.short = order, title, short or title
        words = re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Section"))
        cls.name = "_".join(words).lower()

    def __init__(self, scale_s: float = 0.0) -> None:
        """Keep the least length of an axis of time, which pages of several plans share."""
        self.scale_s = scale_s

    def build(self, result: PlanningResult) -> Section | None:
        """Facts and rows for one planning result; None for a part that only the page has."""
        del result
        return None

    def draw_plan(self, plan: Candidate, pipeline: CostPipeline) -> Markup | None:
        """Charts of one plan, which pages of several plans show too; None if the part has none.

        Args:
            plan: the plan.
            pipeline: prices it.
        """
        del plan, pipeline
        return None

    def draw(self, result: PlanningResult) -> Markup | None:
        """The part as HTML; None or empty if it has nothing to show."""
        if drawn := self.draw_plan(result.best, pipeline_of(result.problem)):
            return drawn
        section = self.build(result)
        return None if section is None else plain_body(section)

    def block(self, body: Markup, of: str = "", number: str = "") -> Block:
        """The part on the page; ``of`` names the plan that it is about, and ``number`` tells."""
        title, short = (f"{words}: {of}" if of else words for words in (self.title, self.short))
        return Block(name=self.name + number, title=title, body=body, short=short)


def build_sections(
    result: PlanningResult, names: tuple[str, ...] | None = None
) -> tuple[Section, ...]:
    """The sections for the terminal: the named parts, or all, in their order."""
    built = (part.build(result) for part in parts() if names is None or part.name in names)
    return tuple(section for section in built if section is not None)


def build_blocks(result: PlanningResult) -> tuple[Block, ...]:
    """The blocks of the page, in their order."""
    drawn = ((part, part.draw(result)) for part in parts())
    return tuple(part.block(body) for part, body in drawn if body)


def parts(scale_s: float = 0.0) -> list[AbstractReportSection]:
    """All parts, in their order, with the least length of an axis of time."""
    package = importlib.import_module(_PACKAGE)
    files = discovery.names(package)
    for file in files:
        discovery.load(package, file, AbstractReportSection)
    modules = {f"{_PACKAGE}.{file}" for file in files}
    kinds = AbstractReportSection.__subclasses__()
    own = [kind(scale_s) for kind in kinds if kind.__module__ in modules]
    return sorted(own, key=lambda part: part.order)
