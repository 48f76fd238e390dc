"""What all kinds of published measurements have in common: cases, predictions and their errors.

A kind of measurements is one module of this folder. It has the readers of its rows, what predicts
them, and ``parts()``, which returns the predictions that are judged together.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from costmodels.estimates import Z90, Estimate, Source
from costmodels.sharding import ComputeKernel, Plan, Shard, ShardingType, TablePlacement
from costmodels.topology import Topology
from costmodels.validation import ErrorSummary, summarize_errors
from costmodels.workload import Workload
from planner import io
from planner.io.documents import Document
from planner.io.library import configs_folder
from planner.io.workload.workload_file import workload_file_of

AS_SHIPPED: Final = "as shipped (fitted to all)"
UNSEEN: Final = "as shipped (fitted to none)"
"""The names of the predictions with the shipped constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measured time.

    Attributes:
        name: name of the case.
        topology: the system.
        measured_s: measured seconds.
        reference: where the measurement is published.
    """

    name: str
    topology: Topology
    measured_s: float
    reference: str = ""

    @property
    def label(self) -> str:
        """The name in tables."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase(Case):
    """One measured iteration of a workload."""

    workload: Workload


CaseT = TypeVar("CaseT", bound=Case)
Item = TypeVar("Item")
Fit = TypeVar("Fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Generic[CaseT]):
    """A case and what is predicted for it.

    Attributes:
        case: the case.
        predicted: the predictions by the names of fits and models, the one that ships first.
    """

    case: CaseT
    predicted: dict[str, Estimate]

    @property
    def shipped(self) -> Estimate:
        """The first prediction, which is the one with the shipped constants where there is one."""
        return next(iter(self.predicted.values()))

    @property
    def error_ratio(self) -> float:
        """Signed relative error of the shipped constants."""
        return self.shipped.time_s / self.case.measured_s - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.shipped.low_s <= self.case.measured_s <= self.shipped.high_s


@dataclass(frozen=True, slots=True)
class Part:
    """Predictions that are judged together.

    Attributes:
        name: its key in JSON.
        title: its title for people.
        found: the predictions, all of them by the same names.
        by: what the cases are grouped by: the title of a column, and what makes its cell.
        judged: the name whose worst error and intervals groups are told with; empty for the first.
        unit: in which times are printed, ``ms`` or ``us``.
    """

    name: str
    title: str
    found: Sequence[Prediction[Any]]
    by: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    judged: str = ""
    unit: str = "ms"

    @property
    def groups(self) -> dict[tuple[str, ...], list[Prediction[Any]]]:
        """The predictions by group; none if nothing says what they are grouped by."""
        if not self.by:
            return {}
        return grouped(self.found, lambda p: tuple(make(p.case) for make in self.by.values()))


def within(time_s: float, sigma: float = 0.0) -> Estimate:
    """Seconds with the interval ``time * exp(+-Z90 * sigma)``."""
    wide = math.exp(Z90 * sigma)
    low_s, high_s = time_s / wide, time_s * wide
    return Estimate(time_s=time_s, low_s=low_s, high_s=high_s, source=Source.DEFAULT)


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


def left_out(
    cases: Sequence[CaseT],
    others: Sequence[CaseT],
    may_use: Mapping[str, Callable[[CaseT, CaseT], bool]],
    fit: Callable[[tuple[int, ...]], Fit],
) -> dict[str, list[Fit]]:
    """For each way of leaving cases out and each case, the fit to those that it may use.

    Args:
        cases: the cases that are predicted.
        others: what is fitted to.
        may_use: by the name of a way, whether the first case may be fitted to the second one.
        fit: fits to the cases of these indices in ``others``.
    """
    fitted = cache(fit)
    return {
        name: [fitted(tuple(i for i, o in enumerate(others) if is_kept(c, o))) for c in cases]
        for name, is_kept in may_use.items()
    }


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
    place = partial(Shard, rank=0, row_offset=0, col_offset=0)
    return Plan(
        placements=tuple(
            TablePlacement(
                table=t.name,
                sharding_type=ShardingType.TABLE_WISE,
                kernel=ComputeKernel.FUSED,
                shards=(place(num_rows=t.num_embeddings, num_cols=t.embedding_dim),),
            )
            for t in workload.tables
        )
    )


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
