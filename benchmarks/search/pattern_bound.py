"""A bound for sums of largest loads, from which pieces can share a rank.

Means over ranks allow a plan in which every phase is balanced at once. Where a rank has only a few
pieces there is no such plan: a rank that is full in one phase has room left in the others. This
bound looks at what a rank can hold.

What all ranks carry anyway, ``u``, is left out. The *room* of a load is the most that the other
pieces of any rank add to it. Plans are divided into boxes of rooms, ``low <= room <= high``. A
*pattern* is a set of pieces that a rank can hold, each load within ``high``. Every plan in a box is
a solution of this linear program over shares ``y`` of options, rooms ``R``, maxima of phases ``m``
and numbers of ranks ``x`` with each pattern:

- one option per table; ``m[k] >= u[c] + R[c]`` for each load c of phase k;
- ``R[c]`` is at least the mean over ranks of what is not uniform, and at least ``low[c]``;
- the patterns hold all pieces: ``sum_P count[P, o] x[P] >= pieces[o] y[o]``;
- there are W ranks: ``sum_P x[P] <= W``.

Patterns are made one by one, where the prices of the pieces say that one is missing (Gilmore and
Gomory, Operations Research 9, 1961). The program with some patterns bounds that with all of them
too: each of at most W further patterns lowers it by no more than the worth of the best pattern
exceeds the price of a rank (Lasdon, Optimization Theory for Large Systems, 1970, section 3.7). The
worth of the best pattern is a mixed-integer program; what its solver proves counts.

The least bound over all boxes rises as the box that has it is divided. Ranks are taken for alike,
with the most memory that any has; pieces that fill all ranks of a host are taken for pieces of
single ranks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.bounds.bound_program import RankFreeProgram
from planner.search.common.linear import LinearModel
from planner.search.common.milp import MilpProgram, Rows, Solution
from planner.search.common.programs import effort_of, solve
from planner.space.effort import Meter

_MOST_ROUNDS: Final = 60
"""Patterns made at most for one box."""
_CLOSE: Final = 1e-4
"""A box is solved once its bound is this close to its program's value."""
_SLACK: Final = 1e-9
"""Share by which rooms and worths are widened for rounding."""
_DEAR: Final = 10.0
"""Price of a rank beyond those there are, as a share of the known plan's value."""
_LIFT: Final = 0.5
"""Part of the way to the known plan by which a division should lift the upper half."""
_EDGE: Final = 0.05
"""Divisions keep this share of the side away from its ends."""
_FILLED: Final = 12
"""Patterns kept of each way to fill ranks up."""
_PRICING_GAP: Final = 1e-3
_PRICING_NODES: Final = 200
_NOTHING: Final = 1e-9
_ENDLESS: Final = 1e6
_ROUNDING: Final = 1e-9
"""Share taken off the bound for the rounding of loads: sums of many products each."""


Pattern = dict[int, int]
"""Pieces of each option, by its number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Node:
    """Plans whose rooms lie between ``low`` and ``high`` ``[P]``; ``room`` is its program's."""

    bound: float
    low: FloatArray
    high: FloatArray
    room: FloatArray


class PatternBound:
    """Boxes of rooms for one objective, divided as long as that is asked for.

    Args:
        model: tangents and options; its objective is at least the cut that always holds.
        device_room: the most bytes that a device has for tables.
        incumbent: value of the known plan, above what the objective is without any load.
        meter: told of the work done.
    """

    def __init__(
        self,
        model: LinearModel,
        *,
        device_room: float,
        incumbent: float,
        meter: Meter | None = None,
    ) -> None:
        """Begin with one box that holds every plan better than ``incumbent``."""
        space, loads = model.space, model.num_tangents
        self._space, self._meter = space, Meter() if meter is None else meter
        self._base, self._weights = model.cuts[0]
        self._unit = incumbent - self._base
        self._phase = model.phase_index
        self._slope = self._weights[self._phase]
        uniform = space.is_uniform
        least = model.extreme(np.minimum)[:, : loads + 1] / self._unit
        least[:, loads] *= self._unit / max(device_room, 1.0)
        self._pieces: IntArray = RankFreeProgram(model).shards
        self._placed = np.flatnonzero(self._pieces)
        self._sizes = least
        self._rooms = slice(len(uniform), len(uniform) + loads)
        self._more = self._rooms.stop + len(self._weights)
        self._idle = self._more + len(self._placed)
        means = np.where(uniform[:, None], 0.0, model.mean[:, :loads] / self._unit)
        self._fixed = [
            Rows.one_of_each(space.table_of),
            self._below(np.where(uniform[:, None], least[:, :loads], 0.0), base=True),
            self._below(means, base=False),
        ]
        self._patterns: list[Pattern] = []
        self._filled: list[FloatArray] = []
        self._known: set[tuple[tuple[int, int], ...]] = set()
        self._order = itertools.count()
        self._heap: list[tuple[float, int, _Node]] = []
        for option in self._placed:
            self._keep({int(option): 1})
        high = np.full(loads, _ENDLESS)
        high[self._slope > 0] = 1.0 / self._slope[self._slope > 0]
        self._push(self._node(np.zeros(loads), high, -math.inf))

    @property
    def boxes(self) -> int:
        """Boxes that are left."""
        return len(self._heap)

    @property
    def bound(self) -> float:
        """Least bound of the boxes that are left, or the known plan's value."""
        least = min(self._heap[0][0], 1.0) if self._heap else 1.0
        return self._base + least * self._unit * (1 - _ROUNDING)

    def advance(self, boxes: int, stopped: Callable[[], bool]) -> None:
        """Divide so many boxes."""
        for _ in range(boxes):
            if not self._heap or stopped():
                return
            self._divide(heapq.heappop(self._heap)[2])

    # -- boxes ------------------------------------------------------------------------------------

    def _push(self, node: _Node) -> None:
        if node.bound < 1.0:
            heapq.heappush(self._heap, (node.bound, next(self._order), node))

    def _divide(self, node: _Node) -> None:
        side, at = self._where(node)
        below, above = node.high.copy(), node.low.copy()
        below[side] = above[side] = at
        self._push(self._node(node.low, below, node.bound))
        self._push(self._node(above, node.high, node.bound))

    def _where(self, node: _Node) -> tuple[int, float]:
        """The side whose width is worth most, and where to cut it."""
        width = node.high - node.low
        start = np.clip(node.room, node.low, node.high)
        side = int(np.argmax(self._slope * width))
        lifted = start[side] + _LIFT * (1.0 - max(node.bound, 0.0)) / max(self._slope[side], 1e-12)
        low = node.low[side] + _EDGE * width[side]
        high = node.high[side] - _EDGE * width[side]
        return side, float(np.clip(lifted, low, high))

    def _node(self, low: FloatArray, high: FloatArray, least: float) -> _Node:
        """Solve the program of a box, with further patterns as long as they matter."""
        bound, room = least, low
        most_room = np.append(high, 1.0) * (1 + _SLACK)
        fits = (self._sizes <= most_room).all(axis=1) | (self._pieces == 0)
        for _ in range(_MOST_ROUNDS):
            columns = [i for i, f in enumerate(self._filled) if (f <= most_room).all()]
            solution, value = self._solve(low, high, fits, columns)
            if solution.infeasible:
                bound = math.inf
            if solution.x is None or solution.reduced_costs is None:
                break
            room = solution.x[self._rooms]
            worth = np.zeros(len(fits))
            worth[self._placed] = np.maximum(solution.reduced_costs[self._more : self._idle], 0.0)
            worth[~fits] = 0.0
            price = float(solution.reduced_costs[self._idle])
            if self._fill(worth, most_room, price):
                continue
            most, pattern = self._best(worth, most_room)
            lacking = max(most * (1 + _SLACK) - price, 0.0)
            bound = max(bound, solution.bound - lacking * self._space.world_size)
            if min(bound, value) >= 1.0 or bound >= value - _CLOSE or not self._keep(pattern):
                break
        return _Node(bound=bound, low=low, high=high, room=room)

    def _fill(self, worth: FloatArray, room: FloatArray, price: float) -> bool:
        """Keep patterns worth more than a rank, each filled up around another piece; False if none.

        Args:
            worth: ``[n]`` of a piece of each option.
            room: ``[P + 1]`` of a rank.
            price: of a rank.
        """
        used = np.flatnonzero(worth > _NOTHING * float(worth.max(initial=0.0)))
        share = self._sizes[used] / room
        found = False
        for weight in (share.max(axis=1), share.sum(axis=1)):
            order = np.argsort(-worth[used] / np.maximum(weight, 1e-12), kind="stable")
            counts = np.eye(len(used))
            left = 1.0 - share
            for i in order:
                size = np.maximum(share[i], 1e-12)
                more = np.floor((left / size + _SLACK).min(axis=1))
                more = np.clip(more, 0.0, self._pieces[used[i]] - counts[:, i])
                counts[:, i] += more
                left -= more[:, None] * share[i]
            gain = counts @ worth[used] - price
            best = np.argsort(-gain, kind="stable")[:_FILLED]
            for j in best[gain[best] > _CLOSE * max(price, _NOTHING)]:
                there = np.flatnonzero(counts[j])
                pattern = {int(used[i]): int(counts[j, i]) for i in there}
                found = self._keep(pattern) or found
        return found

    def _keep(self, pattern: Pattern) -> bool:
        """Remember a pattern; False if it is empty or known."""
        key = tuple(sorted(pattern.items()))
        if not pattern or key in self._known:
            return False
        self._known.add(key)
        self._patterns.append(pattern)
        options, counts = np.array(list(pattern)), np.array(list(pattern.values()))
        self._filled.append(counts @ self._sizes[options])
        return True

    # -- programs ---------------------------------------------------------------------------------

    def _solve(
        self, low: FloatArray, high: FloatArray, fits: BoolArray, columns: Sequence[int]
    ) -> tuple[Solution, float]:
        """The program of a box with some patterns, and its value.

        Variables: ``y``, ``R``, ``m``, pieces held beyond those there are, ranks without any piece,
        ranks that there are not, ``x``.
        """
        rooms, more, idle = self._rooms, self._more, self._idle
        world, first = float(self._space.world_size), idle + 2
        size = first + len(columns)
        cost, lower, upper = np.zeros(size), np.zeros(size), np.full(size, world)
        cost[rooms.stop : more] = self._weights
        cost[idle + 1] = _DEAR
        upper[: rooms.start] = fits
        lower[rooms], upper[rooms] = low, high
        upper[rooms.stop : more] = _ENDLESS
        upper[more:idle] = world * float(self._pieces.max(initial=1))
        program = MilpProgram(
            cost=cost,
            lower=lower,
            upper=upper,
            rows=Rows.stack([*self._fixed, self._held(columns), self._there(len(columns))]),
            integer=np.zeros(size, dtype=bool),
            groups=self._space.table_of,
        )
        solution = solve(program)
        self._meter.spend(effort_of(program, solution))
        value = math.inf if solution.x is None else float(cost @ solution.x)
        return solution, value

    def _below(self, sums: FloatArray, *, base: bool) -> Rows:
        """``sums[:, c] @ y + R[c] <= m[phase of c]``, or with means ``<= R[c]``."""
        loads = np.arange(sums.shape[1])
        option, load = np.nonzero(sums)
        row, column, values = (
            [load, loads],
            [option, self._rooms.start + loads],
            [sums[option, load]],
        )
        values.append(np.full(len(loads), 1.0 if base else -1.0))
        if base:
            row.append(loads)
            column.append(self._rooms.stop + self._phase)
            values.append(np.full(len(loads), -1.0))
        return Rows(
            row=np.concatenate(row),
            column=np.concatenate(column),
            values=np.concatenate(values),
            lower=np.full(len(loads), -math.inf),
            upper=np.zeros(len(loads)),
        )

    def _held(self, columns: Sequence[int]) -> Rows:
        """The patterns hold all pieces of each option, and those beyond."""
        placed, first = self._placed, self._idle + 2
        number = np.full(len(self._pieces), -1)
        number[placed] = np.arange(len(placed))
        every = np.arange(len(placed))
        held = [
            (number[option], first + j, count)
            for j, i in enumerate(columns)
            for option, count in self._patterns[i].items()
        ]
        row, column, counts = np.array(held, dtype=np.int64).reshape(-1, 3).T
        ones = np.ones(len(placed))
        return Rows(
            row=np.concatenate([row, every, every]),
            column=np.concatenate([column, self._more + every, placed]),
            values=np.concatenate([counts, -ones, -self._pieces[placed]]).astype(float),
            lower=np.zeros(len(placed)),
            upper=np.zeros(len(placed)),
        )

    def _there(self, count: int) -> Rows:
        """Every rank has one of the patterns or nothing."""
        world = np.array([float(self._space.world_size)])
        return Rows(
            row=np.zeros(count + 2, dtype=np.int64),
            column=self._idle + np.arange(count + 2),
            values=np.concatenate([[1.0, -1.0], np.ones(count)]),
            lower=world,
            upper=world,
        )

    def _best(self, worth: FloatArray, room: FloatArray) -> tuple[float, Pattern]:
        """The most that a pattern can be worth, and one that is worth about as much."""
        used = np.flatnonzero(worth > _NOTHING * float(worth.max(initial=0.0)))
        others = np.setdiff1d(np.arange(len(worth)), used)
        rest = float(worth[others] @ self._pieces[others])
        if not len(used):
            return rest, {}
        scale = float(worth[used].max())
        share = self._sizes[used] / room
        most = np.floor((1 + _SLACK) / np.maximum(share.max(axis=1), _NOTHING))
        program = MilpProgram(
            cost=-worth[used] / scale,
            upper=np.minimum(most, self._pieces[used]).astype(float),
            rows=Rows.dense(share.T, np.full(len(room), -math.inf), np.ones(len(room))),
            integer=np.ones(len(used), dtype=bool),
            max_nodes=_PRICING_NODES,
        )
        solution = solve(program, gap_ratio=_PRICING_GAP)
        self._meter.spend(effort_of(program, solution))
        if solution.infeasible or not math.isfinite(solution.bound):
            return math.inf, {}
        found = np.zeros(len(used)) if solution.x is None else np.round(solution.x)
        pattern = {int(used[i]): int(found[i]) for i in np.flatnonzero(found)}
        return -solution.bound * scale + rest, pattern
