"""A bound for sums of largest loads, from which pieces can share a rank.

Means over ranks allow a plan in which every phase is balanced at once. Where a rank has only a few
pieces there is no such plan: a rank that is full in one phase has room left in the others. This
bound looks at what a rank can hold (:mod:`~planner.search.bounds.patterns.master`).

Plans are divided into boxes of rooms. A *target* is a value below that of the known plan. It is
proven once every box is known to have no plan below it. A box whose program has a solution below
the target is divided without more ado: patterns that are still missing would only lower the value.
Where the value is above the target, missing patterns are added until what is proven is above it
too. The targets rise step by step; boxes that were proven for one are taken up again for the next.

Ranks are taken for alike, with the most memory and the fastest device that any has; pieces that
fill all ranks of a host are taken for pieces of single ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from planner.search.bounds.patterns.master import Master, Priced
from planner.search.bounds.patterns.pricing import Pricing
from planner.search.bounds.patterns.task import PatternTask
from planner.space.effort import Meter

_MOST_ROUNDS: Final = 60
"""Programs solved at most for one box, with more patterns each time."""
_MOST_PATTERNS: Final = 8_000
"""Patterns from which on none is added: programs with more of them take too long."""
_CLOSE: Final = 1e-5
"""How much of the known plan's value the ranks of a box may lack in worth without a further
pattern."""
_SPARE: Final = 0.9
"""Part of what a box is above the target that may be lost by patterns that are still missing."""
_GAP: Final = 1e-3
"""Least relative gap of the program for the best pattern."""
_DOWN: Final = 0.5
"""Where a box is divided: this part of the way from the room in use to the largest one."""
_EDGE: Final = 0.05
"""Divisions keep this share of the side away from its ends."""
_NARROW: Final = 3e-4
"""Width of a side, as a share of the known plan's value, up to which it is not divided. In narrower
boxes patterns may exceed rooms by so little that nothing more is to be proven."""
_STEPS: Final = 20
"""Targets between the bound to begin with and the known plan."""
_NOTHING: Final = 1e-12
_ROUNDING: Final = 1e-9
"""Share taken off the bound for the rounding of loads, which are sums of many products."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Box:
    """Plans whose rooms lie between ``low`` and ``high`` ``[P]``, none of them below ``bound``."""

    low: FloatArray
    high: FloatArray
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What is proven so far.

    Attributes:
        bound: no plan is below this and below the known plan.
        spent_s: nominal seconds that it took.
    """

    bound: float
    spent_s: float


class PatternBound:
    """Boxes of rooms for one task, divided as long as that is asked for.

    Args:
        task: options of tables and the known plan.
        bound: what is known already, in the unit of the objective.
        meter: is told of the work done.
    """

    def __init__(self, task: PatternTask, bound: float, meter: Meter) -> None:
        """Begin with one box that holds every plan better than the known one."""
        self._task = task
        self._master, self._pricing = Master(task, meter), Pricing(task, meter)
        self._proven = max((bound - task.base_s) / task.unit_s, 0.0)
        self._step = (1.0 - self._proven) / _STEPS
        loads = task.num_loads
        self._boxes = [_Box(low=np.zeros(loads), high=np.ones(loads), bound=self._proven)]

    @property
    def bound(self) -> float:
        """No plan is below this and below the known plan, in the unit of the objective."""
        return self._task.base_s + self._proven * self._task.unit_s * (1 - _ROUNDING)

    @property
    def num_boxes(self) -> int:
        """Boxes that all plans better than the known one are divided into."""
        return len(self._boxes)

    def advance(self, stopped: Callable[[], bool]) -> bool:
        """Prove the next target.

        Args:
            stopped: is asked before each box; True ends the proof.

        Returns:
            False if it was ended, if a box can't be divided further, or if nothing is left to do.
        """
        if self._proven >= 1.0 or self._step <= 0:
            return False
        target = min(self._proven + self._step, 1.0)
        below = [box for box in self._boxes if box.bound < target]
        done = [box for box in self._boxes if box.bound >= target]
        while below:
            if stopped():
                break
            box = below.pop()
            bound, halves = self._prove(box, target, stopped)
            if bound >= target:
                done.append(_Box(low=box.low, high=box.high, bound=target))
            elif halves is None:
                below.append(box)
                break
            else:
                below += halves
        self._boxes = done + below
        self._proven = max(self._proven, min(box.bound for box in self._boxes))
        return not below

    def _prove(
        self, box: _Box, target: float, stopped: Callable[[], bool]
    ) -> tuple[float, list[_Box] | None]:
        """A bound of a box, at most the target or a little above it, and its halves.

        Returns:
            The halves are None if the bound reaches the target, or if the box can't be divided.
        """
        high = self._master.narrowed(box.low, box.high, target)
        if high is None:
            return target, None
        bound, solution = box.bound, None
        for _ in range(_MOST_ROUNDS):
            solution = self._master.solve(box.low, high)
            if solution is None or solution.value < target or stopped():
                break
            proven, is_new = self._missing(solution, target)
            bound = max(bound, proven)
            if bound >= target:
                return bound, None
            if self._is_full or not is_new:
                break
        return bound, None if solution is None else self._halves(box, high, solution, bound)

    @property
    def _is_full(self) -> bool:
        return self._master.num_patterns >= _MOST_PATTERNS

    def _missing(self, solution: Priced, target: float) -> tuple[float, bool]:
        """What a solution proves, and whether patterns that are missing in it were added.

        As long as a beam search finds such patterns, nothing is proven.
        """
        world = self._task.world_size
        price, above = solution.rank_price, max(solution.value - target, 0.0) / world
        enough = price + max(_SPARE * above, _CLOSE / world)
        found = [self._master.add(p) for p in self._pricing.good(solution.worth, enough)]
        if any(found):
            return 0.0, True
        gap = max(_GAP, _SPARE * above / (2.0 * max(price, _NOTHING)))
        most, pattern = self._pricing.most(solution.worth, enough, gap)
        lacking = max(most - price, 0.0)
        return solution.bound - lacking * world, self._master.add(pattern)

    def _halves(
        self, box: _Box, high: FloatArray, solution: Priced, bound: float
    ) -> list[_Box] | None:
        """Both halves of a box, the one with larger rooms first; None if it is too small.

        It is divided where patterns may exceed most what rooms have to be: by the means, or by what
        they may be without any phase taking longer. If they may not exceed that anywhere, it is
        divided where they exceed the means most.
        """
        used = np.clip(solution.room, box.low, high)
        start = np.maximum(used, np.minimum(solution.free, high))
        if (high - start).max() <= _NARROW:
            start = used
        side = int(np.argmax(high - start))
        width = high[side] - box.low[side]
        if high[side] - start[side] <= _NARROW or width <= _NARROW:
            return None
        at = start[side] + _DOWN * (high[side] - start[side])
        at = np.clip(at, box.low[side] + _EDGE * width, high[side] - _EDGE * width)
        below, above = box.high.copy(), box.low.copy()
        below[side] = above[side] = at
        return [
            _Box(low=above, high=box.high, bound=bound),
            _Box(low=box.low, high=below, bound=bound),
        ]
