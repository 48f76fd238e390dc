"""What kinds of published measurements have in common: rows, cases, predictions and errors."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final, Generic, TypeVar

from costmodels.estimates import Estimate, Source
from costmodels.topology import Topology
from costmodels.validation.metrics import ErrorSummary, summarize_errors
from costmodels.workload import Workload
from planner.io.library import configs_folder

AS_SHIPPED: Final = "as shipped (fitted to all)"
"""The name of the predictions with the shipped constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured iteration.

    Attributes:
        name: name of the case.
        workload: what ran.
        topology: the system.
        measured_s: measured seconds.
        reference: where the measurement is published.
    """

    name: str
    workload: Workload
    topology: Topology
    measured_s: float
    reference: str = ""


CaseT = TypeVar("CaseT", bound=Case)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Generic[CaseT]):
    """A case and what is predicted for it.

    Attributes:
        case: the case.
        predicted: the predictions, by :data:`AS_SHIPPED` and the names of other fits and models.
    """

    case: CaseT
    predicted: dict[str, Estimate]

    @property
    def shipped(self) -> Estimate:
        """The prediction with the shipped constants."""
        return self.predicted[AS_SHIPPED]

    @property
    def error_ratio(self) -> float:
        """Signed relative error of the shipped constants."""
        return self.shipped.time_s / self.case.measured_s - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.shipped.low_s <= self.case.measured_s <= self.shipped.high_s


def exact(time_s: float) -> Estimate:
    """Seconds of a model that gives no interval."""
    return Estimate(time_s=time_s, low_s=time_s, high_s=time_s, source=Source.DEFAULT)


def summarize(found: Sequence[Prediction[Any]]) -> dict[str, ErrorSummary]:
    """The errors by the names of predictions, with coverage for those that have intervals."""
    measured = [p.case.measured_s for p in found]
    errors = {}
    for name in found[0].predicted:
        times = [p.predicted[name] for p in found]
        ends = [(t.low_s, t.high_s) for t in times if t.low_s < t.high_s]
        low, high = zip(*ends, strict=True) if ends else ((), ())
        errors[name] = summarize_errors([t.time_s for t in times], measured, low=low, high=high)
    return errors


def csv_rows(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of configs/published."""
    return list(csv.DictReader(StringIO(_text(name))))


def json_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file of configs/published with one JSON object on each line."""
    return [json.loads(line) for line in _text(name).splitlines()]


def _text(name: str) -> str:
    return (configs_folder() / "published" / name).read_text(encoding="utf-8")


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """The items by a key, in the order in which keys are met."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
