"""A second search of a point, which starts from plans that were found at neighbouring points.

A point whose gap is wide, or that has no plan, prices the plans of its neighbours on its own ranks.
If one of them is better than its own plan, the point is searched once more from there, with as much
work as the first time. Proofs are left out, because the first search has made them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

from planner.search.auto import Auto
from planner.search.base import (
    AbstractStrategy,
    ProgressCallback,
    Record,
    SearchOutcome,
    StopCallback,
)
from planner.search.common.leave_out import SearchPart
from planner.search.construct.handed import HandedPlan, offered
from planner.space.evaluation import Evaluator, SearchSpace
from planner.sweep.grid import Point
from planner.sweep.outcome import DIED, PointResult, PointStatus

_WORTH_GAP_RATIO: Final = 0.01
"""Points whose gap is at most this share get no second search."""
_MOST: Final = 6
"""A point is given the plans of this many neighbours at most, the nearest first."""
_KNOWN: Final = frozenset({SearchPart.GREEDY, SearchPart.PROOFS})
"""The parts of a search that the first search has done, which the second one leaves out."""


@final
class FromHanded(AbstractStrategy):
    """The default search from handed plans; it runs only if one of them is better than ``own``.

    Args:
        own: the plan that the point has; None if it has none.
        others: the plans of other points.
    """

    __slots__ = ("_others", "_own")

    def __init__(self, own: HandedPlan | None, others: Sequence[HandedPlan]) -> None:
        """Keep the plans."""
        self._own = () if own is None else (own,)
        self._others = tuple(others)

    def search(
        self,
        space: SearchSpace,
        evaluate: Evaluator,
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        should_stop: StopCallback | None = None,
    ) -> SearchOutcome:
        """Price the handed plans, and search from them if one of them is better than ``own``."""
        record = Record(evaluate, progress, should_stop)
        offered(self._own, space, record)
        own = record.value
        offered(self._others, space, record)
        if record.value >= own:
            return record.outcome(proves=False)
        handed = (*self._own, *self._others)
        return Auto(_KNOWN, handed).search(
            space, evaluate, seed=seed, progress=progress, should_stop=should_stop
        )


def is_worth_it(first: PointResult) -> bool:
    """Whether a point is searched again once its neighbours are done."""
    if first.status is PointStatus.FAILED:
        return first.reason != DIED
    if first.status is not PointStatus.DONE or first.iteration_time_s is None:
        return False
    return first.gap_ratio is None or first.gap_ratio > _WORTH_GAP_RATIO


def handed_to(point: Point, found: Sequence[PointResult]) -> tuple[HandedPlan, ...]:
    """Plans of the nearest points that differ from ``point`` in one value, the nearest first.

    The distance between numbers, such as ranks or samples, is the logarithm of their ratio: twice
    as many are as far as half as many. Another system or pipeline has distance 1, which is more.
    """
    near = [(distance, r.plan) for r in found if (distance := _distance(point, r.point)) < math.inf]
    near.sort(key=lambda pair: pair[0])
    return tuple(plan for _, plan in near if plan is not None)[:_MOST]


def _distance(one: Point, other: Point) -> float:
    """The distance of two points; infinite if they are the same, or differ in several values."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in Point.__slots__]
    unlike = [(mine, theirs) for mine, theirs in pairs if mine != theirs]
    if len(unlike) != 1:
        return math.inf
    mine, theirs = unlike[0]
    if isinstance(mine, int) and isinstance(theirs, int):
        return abs(math.log(mine / theirs))
    return 1.0


def handed_hash(before: str, handed: Sequence[HandedPlan]) -> str:
    """A hash of the plans that a point is given, and of ``before``, that of its last search."""
    text = json.dumps([before, *(plan.to_json() for plan in handed)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def better(first: PointResult, second: PointResult) -> PointResult:
    """The result with the faster plan, and with the bound that the first search has proven.

    If the plan is faster than that bound, the bound was wrong, and is dropped.
    """
    if second.iteration_time_s is None:
        return first
    if first.iteration_time_s is not None and first.iteration_time_s <= second.iteration_time_s:
        return first
    bound_s = first.bound_s
    is_wrong = bound_s is not None and bound_s > second.iteration_time_s * (1 + 1e-9)
    return replace(
        second, bound_s=None if is_wrong else bound_s, reason=second.reason or first.reason
    )
