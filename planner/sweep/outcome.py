"""The result of a point of a sweep, and the points that no other one dominates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from costmodels.workload import Pipeline
from planner.search.construct.handed import HandedPlan
from planner.support.kinds import check_fields
from planner.sweep.grid import Point

CUT: Final = "the time limit cut the search"
"""The reason of a point whose plan another run, or a faster machine, may improve."""

DIED: Final = "its process died, for want of memory perhaps"
"""The reason of a point whose process died."""

_APART: Final = ("point", "plan", "handed_hash")
"""Fields that are not figures of the point."""
_ABOVE_0: Final = ("hosts", "local_batch_size", "iteration_time_s", "low_s", "samples_per_s")


class PointStatus(StrEnum):
    """How a point ended."""

    DONE = "done"
    DOES_NOT_FIT = "does_not_fit"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """The figures of a point's plan; they are None if the point has no plan.

    ``reason`` says why there is no plan, or what one should know about the plan. Searches of other
    points use ``plan``. ``handed_hash`` identifies the plans of other points from which this point
    was searched.
    """

    point: Point
    status: PointStatus
    inputs_hash: str
    reason: str = ""
    hosts: int = 0
    local_batch_size: float = 0
    iteration_time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    bound_s: float | None = None
    samples_per_s: float | None = None
    headroom_bytes: float | None = None
    checkpoint_bytes: float | None = None
    exposed_ratio: float | None = None
    bottleneck: str = ""
    price_usd_per_hour: float | None = None
    availability_ratio: float | None = None
    checkpoint_interval_s: float | None = None
    usd_per_billion_samples: float | None = None
    plan: HandedPlan | None = None
    handed_hash: str = ""

    @property
    def trained_samples_per_s(self) -> float | None:
        """Samples per second of paid time, which includes what failures and checkpoints take."""
        if self.samples_per_s is None or self.availability_ratio is None:
            return self.samples_per_s
        return self.samples_per_s * self.availability_ratio

    @property
    def gap_ratio(self) -> float | None:
        """The most that the iteration can be above the best one, as a share of its bound.

        None without a plan or without a bound.
        """
        if self.bound_s is None or not self.iteration_time_s:
            return None
        return max(0.0, 1.0 - self.bound_s / self.iteration_time_s)

    def to_json(self) -> dict[str, Any]:
        """The figures as a dictionary that JSON can store."""
        values = {name: getattr(self, name) for name in self.__slots__ if name not in _APART}
        point = {name: getattr(self.point, name) for name in self.point.__slots__}
        pipeline = self.point.pipeline
        point["pipeline"] = None if pipeline is None else pipeline.value
        trained = {"trained_samples_per_s": self.trained_samples_per_s}
        return {**point, **values, **trained, "status": self.status.value}

    def to_line(self) -> dict[str, Any]:
        """The figures, the plan and ``handed_hash``: all that a later run needs."""
        plan = None if self.plan is None else self.plan.to_json()
        return {**self.to_json(), "handed_hash": self.handed_hash, "plan": plan}

    @classmethod
    def from_line(cls, values: dict[str, Any]) -> PointResult:
        """The inverse of :meth:`to_line`.

        Raises:
            LookupError, ValueError, TypeError: the values are not those of a point.
        """
        own = {name: values[name] for name in cls.__slots__ if name not in (*_APART, "status")}
        pipeline, plan = values["pipeline"], values["plan"]
        point = Point(
            system=values["system"],
            gpus=values["gpus"],
            batch_size=values["batch_size"],
            global_batch_size=values["global_batch_size"],
            pipeline=None if pipeline is None else Pipeline(pipeline),
        )
        result = cls(
            point=point,
            status=PointStatus(values["status"]),
            plan=None if plan is None else HandedPlan.from_json(plan),
            handed_hash=values["handed_hash"],
            **own,
        )
        check_fields(point)
        check_fields(result, signed=("headroom_bytes",))
        if result.status is PointStatus.DONE and not all(map(result._is_above_0, _ABOVE_0)):
            message = "a point with a plan has times and rates above 0"
            raise ValueError(message)
        if result.usd_per_billion_samples is not None and not result.trained_samples_per_s:
            message = "a point has a cost but trains no samples"
            raise ValueError(message)
        return result

    def _is_above_0(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value > 0


def impossible(point: Point, reason: str) -> PointResult:
    """The result of an impossible point, such as one whose ranks cannot share the batch evenly."""
    return PointResult(point=point, status=PointStatus.FAILED, inputs_hash="", reason=reason)


def in_order(points: Sequence[Point], results: Sequence[PointResult]) -> tuple[PointResult, ...]:
    """Results in the order of the points; points that were not reached are missing."""
    found = {result.point: result for result in results}
    return tuple(found[point] for point in points if point in found)


def pareto(results: Sequence[PointResult]) -> tuple[PointResult, ...]:
    """Points that no other point beats in throughput and cost together, the fastest first.

    Both count the time that failures and checkpoints take. Of points with the same throughput and
    cost, the one with more free memory wins. Free memory is not a goal of its own, because every
    point keeps its reserve free. Points without a price count as the most expensive.
    """
    done = [r for r in results if r.status is PointStatus.DONE]
    front = [r for r in done if not any(_beats(other, r) for other in done)]
    return tuple(sorted(front, key=lambda r: -(r.trained_samples_per_s or 0.0)))


def _beats(one: PointResult, other: PointResult) -> bool:
    mine, yours = _merits(one), _merits(other)
    if mine == yours:
        return (one.headroom_bytes or 0.0) > (other.headroom_bytes or 0.0)
    return all(a >= b for a, b in zip(mine, yours, strict=True))


def _merits(result: PointResult) -> tuple[float, float]:
    cost = result.usd_per_billion_samples
    return (
        result.trained_samples_per_s or 0.0,
        -cost if cost is not None else float("-inf"),
    )
