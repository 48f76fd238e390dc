"""What all kinds of published measurements have in common: cases, predictions and their errors.

A case is one measured time, with the groups that it belongs to. A function of a module of this
folder returns the predictions that are judged together, as :class:`Part`, and one runner prints
them. Where constants are fitted to cases, each case is also predicted by constants that were fitted
without its model, its device or its family. ``configs/published/left_out.json`` has these
constants, and ``python -m benchmarks.fit_published KIND --left-out`` fits them anew.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, Final

from costmodels.estimates import Z90, Estimate, Source
from costmodels.sharding import Plan, ShardingType
from costmodels.topology import Topology
from costmodels.validation import ErrorSummary, summarize_errors
from costmodels.workload import Workload
from planner import io
from planner.io.documents import Document, configs_folder
from planner.io.importers.base import placed
from planner.io.workload.workload_file import workload_file_of

AS_SHIPPED: Final = "as shipped (fitted to all)"
UNSEEN: Final = "as shipped (fitted to none)"
"""The names of the predictions with the shipped constants."""
LEFT_OUT_FILE: Final = "left_out.json"
_NO_TABLES: Final = Plan(placements=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured time.

    Attributes:
        name: name of the case.
        topology: the system.
        measured_s: measured seconds.
        groups: what it is counted among: from the title of a column to its cell.
        reference: where the measurement is published.
        label: its name in tables; empty for ``name``.
    """

    name: str
    topology: Topology
    measured_s: float
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)
    reference: str = ""
    label: str = ""

    def key(self, titles: Iterable[str]) -> str:
        """The cells under some titles, joined by blanks."""
        return " ".join(self.groups[title] for title in titles)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase(Case):
    """One measured iteration of a workload under a plan."""

    workload: Workload
    plan: Plan = _NO_TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A case and what is predicted for it.

    Attributes:
        case: the case.
        predicted: the predictions by the names of fits and models, the one that ships first.
    """

    case: Any
    predicted: dict[str, Estimate]

    @property
    def shipped(self) -> Estimate:
        """The first prediction, which is the one with the shipped constants where there is one."""
        return next(iter(self.predicted.values()))

    @property
    def error_ratio(self) -> float:
        """Signed relative error of the shipped constants."""
        return float(self.shipped.time_s / self.case.measured_s - 1.0)

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return bool(self.shipped.low_s <= self.case.measured_s <= self.shipped.high_s)


@dataclass(frozen=True, slots=True)
class Part:
    """Predictions that are judged together.

    Attributes:
        name: its key in JSON.
        title: its title for people.
        found: the predictions, all of them by the same names.
        by: the titles of the groups that errors are told for.
        judged: the name whose worst error and intervals groups are told with; empty for the first.
        unit: in which times are printed, ``ms`` or ``us``.
    """

    name: str
    title: str
    found: Sequence[Prediction]
    by: tuple[str, ...] = ()
    judged: str = ""
    unit: str = "ms"

    @property
    def groups(self) -> dict[tuple[str, ...], list[Prediction]]:
        """The predictions by group; none if nothing says what they are grouped by."""
        if not self.by:
            return {}
        return grouped(self.found, lambda p: tuple(p.case.groups[title] for title in self.by))


def within(time_s: float, sigma: float = 0.0) -> Estimate:
    """Seconds with the interval ``time * exp(+-Z90 * sigma)``."""
    wide = math.exp(Z90 * sigma)
    low_s, high_s = time_s / wide, time_s * wide
    return Estimate(time_s=time_s, low_s=low_s, high_s=high_s, source=Source.DEFAULT)


def summarize(found: Sequence[Prediction]) -> dict[str, ErrorSummary]:
    """The errors by the names of predictions, with coverage for those that have intervals."""
    measured = [p.case.measured_s for p in found]
    errors = {}
    for name in found[0].predicted:
        times = [p.predicted[name] for p in found]
        ends = [(t.low_s, t.high_s) for t in times if t.low_s < t.high_s]
        low, high = zip(*ends, strict=True) if ends else ((), ())
        errors[name] = summarize_errors([t.time_s for t in times], measured, low=low, high=high)
    return errors


def left_out_groups(kind: str) -> dict[str, list[str]]:
    """For each way of leaving cases of a kind out, the titles that its stored constants go by."""
    found: dict[str, list[str]] = json_file("left_out_groups.json")[kind]
    return found


def with_left_out(
    kind: str, found: Iterable[Any], price: Callable[[Any, Any], Estimate]
) -> list[Prediction]:
    """Cases priced with the shipped constants, and with those that were fitted without them.

    Args:
        kind: name of the kind in the file of constants.
        found: the cases.
        price: prices a case with constants as the file has them, or with None as shipped.
    """
    fits, predictions = json_file(LEFT_OUT_FILE)[kind], []
    for case in found:
        given = {way: fits[way][case.key(by)] for way, by in left_out_groups(kind).items()}
        priced = {way: price(case, values) for way, values in {AS_SHIPPED: None, **given}.items()}
        predictions.append(Prediction(case=case, predicted=priced))
    return predictions


@cache
def system(name: str, gpus: int = 1, gpus_per_host: int | None = None) -> Topology:
    """A shipped system, or one of a file."""
    return io.load_system(name, gpus=gpus, gpus_per_host=gpus_per_host)


def workload_of(name: str, values: Mapping[str, Any]) -> Workload:
    """The workload of the values of a workload file."""
    return workload_file_of(Document(Path(name), dict(values), {})).workload


def published_workload(name: str, **overrides: object) -> Workload:
    """A workload of configs/published; two underscores in a key stand for a dot."""
    changes = tuple((key.replace("__", "."), str(value)) for key, value in overrides.items())
    path = configs_folder() / "published" / f"{name}.yaml"
    return io.load_workload_file(path, overrides=changes).workload


def whole_tables(workload: Workload) -> Plan:
    """The plan with every table whole on the only rank."""
    return Plan(placements=tuple(placed(t, ShardingType.TABLE_WISE, (0,)) for t in workload.tables))


def csv_rows(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of configs/published."""
    return list(csv.DictReader(StringIO(_text(name))))


def json_rows(name: str, *blocks: str) -> list[dict[str, Any]]:
    """The rows of these blocks in a file of configs/published, but those that failed.

    A file has one JSON object on each line. Without ``blocks`` all its rows are returned.
    """
    rows = [json.loads(line) for line in _text(name).splitlines()]
    return [r for r in rows if not blocks or (r["block"] in blocks and "error" not in r)]


@cache
def json_file(name: str) -> Any:
    """The content of a JSON file of configs/published."""
    return json.loads(_text(name))


def _text(name: str) -> str:
    return (configs_folder() / "published" / name).read_text(encoding="utf-8")


def grouped(items: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[Any]]:
    """The items by a key, in the order in which keys are met."""
    groups: dict[Hashable, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
