"""The linear program that shares out tables over patterns, for rooms within a box.

What all ranks carry anyway, ``u``, is left out of patterns. The *room* of a load is the most that
the other pieces of any rank add to it. A *pattern* is a set of pieces that a rank can hold, each
load within its room. Every plan whose rooms are within ``low <= room <= high`` is a solution of
this program over shares ``y`` of options, rooms ``R``, maxima of phases ``m`` and numbers of ranks
``x`` with each pattern:

- one option per table; ``m[k] >= u[c] + R[c]`` for each load c of phase k; the sum of all m is
  minimised;
- ``R[c]`` is at least the mean over ranks of what is not uniform, and between ``low`` and ``high``;
- the patterns hold all pieces: ``sum_P count[P, o] x[P] >= pieces[o] y[o]``;
- there are W ranks: ``sum_P x[P] <= W``.

Patterns are added where the prices of the pieces say that one is missing (Gilmore and Gomory,
Operations Research 9, 1961). The program with some patterns bounds that with all of them too: each
of at most W further patterns lowers it by no more than the worth of the best pattern exceeds the
price of a rank (Lasdon, Optimization Theory for Large Systems, 1970, section 3.7).

Rows about rooms and ranks may be broken at a price, so that the program always has a solution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from planner.search.bounds.patterns.pricing import Worth
from planner.search.bounds.patterns.task import SLACK, Pattern, PatternTask
from planner.search.common.growing_program import GrowingProgram, Optimum
from planner.search.common.milp import MilpProgram, Rows
from planner.space.effort import Meter

_DEAR: Final = 10.0
"""Price of what breaks a row, in units of the known plan's value."""
_MOST: Final = 100.0
"""Largest value of a phase and of what breaks a row, in the same unit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """A solution of the program with the patterns known so far.

    Attributes:
        value: what it minimises.
        bound: what it proves if no pattern is missing.
        room: ``[P]`` of the solution.
        free: ``[P]`` what rooms could be without any phase taking longer.
        worth: of pieces, at the prices of the solution.
        rank_price: worth from which on a pattern is missing.
    """

    value: float
    bound: float
    room: FloatArray
    free: FloatArray
    worth: Worth
    rank_price: float


class Master:
    """The program of one task, with a growing number of patterns.

    Args:
        task: options of tables.
        meter: is told of the work done.
    """

    def __init__(self, task: PatternTask, meter: Meter) -> None:
        """Begin with a pattern for each piece alone, and those of the known plan."""
        self._task = task
        count, loads = len(task.pieces), task.num_loads
        phases = int(task.phase.max()) + 1
        self._placed = np.flatnonzero(task.pieces)
        self._number = np.full(count, -1)
        self._number[self._placed] = np.arange(len(self._placed))
        self._room = slice(count, count + loads)
        self._maxima = slice(self._room.stop, self._room.stop + phases)
        self._broken = slice(self._maxima.stop, self._maxima.stop + loads)
        self._more = slice(self._broken.stop, self._broken.stop + len(self._placed))
        self._first = self._more.stop + 2  # after ranks with nothing, and ranks there are not
        free = self._free_rows()
        self._held = len(free.lower)
        self._ranks_row = self._held + len(self._placed)
        self._program = GrowingProgram(self._start(free), meter)
        self._ranges = [GrowingProgram(self._range(free, c), meter) for c in range(loads)]
        self._filled: FloatArray = np.zeros((0, loads + 1))
        self._known: set[tuple[tuple[int, float], ...]] = set()
        for pattern in (*({int(o): 1.0} for o in self._placed), *task.known):
            self.add(pattern)

    @property
    def num_patterns(self) -> int:
        """Number of patterns."""
        return len(self._known)

    def add(self, pattern: Pattern) -> bool:
        """Add a pattern; False if it is empty or known."""
        key = tuple(sorted(pattern.items()))
        if not pattern or key in self._known:
            return False
        self._known.add(key)
        options, counts = np.array(list(pattern)), np.array(list(pattern.values()))
        self._filled = np.vstack([self._filled, counts @ self._task.sizes[options]])
        rows = np.append(self._held + self._number[options], self._ranks_row)
        self._program.add(rows, np.append(counts, 1.0), float(self._task.world_size))
        return True

    def solve(self, low: FloatArray, high: FloatArray) -> Priced | None:
        """Solve with the known patterns, for rooms from ``low`` to ``high``, ``[P]`` each.

        Returns:
            None if the solver gives up, or if a table fits nowhere.
        """
        room, fits = self._fitting(high)
        if not self._has_room(fits):
            return None
        world, size = float(self._task.world_size), self._program.size
        lower, upper = np.zeros(size), np.full(size, world)
        self._limit(lower, upper, fits, low, high)
        upper[self._more] = world * float(self._task.pieces.max())
        upper[self._first :] = np.where((self._filled <= room).all(axis=1), world, 0.0)
        found = self._program.solve(lower, upper)
        if found is None:
            return None
        prices = self._slimmed(found, upper)
        piece = np.zeros(len(fits))
        piece[self._placed] = prices[self._held : self._ranks_row]
        x, uniform = found.x, self._task.uniform
        return Priced(
            value=found.value,
            bound=self._program.bound(lower, upper, prices),
            room=x[self._room],
            free=x[self._maxima][self._task.phase] - uniform.T @ x[: len(fits)],
            worth=Worth(piece=np.where(fits, piece, 0.0), room=room),
            rank_price=-float(prices[self._ranks_row]),
        )

    def narrowed(self, low: FloatArray, high: FloatArray, most: float) -> FloatArray | None:
        """The largest rooms of plans in a box whose objective is at most ``most``.

        Args:
            low: ``[P]`` least rooms of the box.
            high: ``[P]`` its largest rooms.
            most: of the objective.

        Returns:
            ``[P]`` at most ``high``; None if there are no such plans.
        """
        high = high.copy()
        _, fits = self._fitting(high)
        if not self._has_room(fits):
            return None
        for c, program in enumerate(self._ranges):
            lower, upper = np.zeros(program.size), np.full(program.size, _MOST)
            self._limit(lower, upper, fits, low, high)
            upper[-1] = most
            found = program.solve(lower, upper)
            if found is None:
                continue
            least = program.bound(lower, upper, found.prices)
            if -least * (1 + SLACK) < low[c] * (1 - SLACK):
                return None
            high[c] = min(high[c], max(-least * (1 + SLACK), low[c]))
        return high if self._has_room(self._fitting(high)[1]) else None

    # -- private ----------------------------------------------------------------------------------

    def _fitting(self, high: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Rooms and memory of a rank, widened for rounding; and the options whose pieces fit."""
        room = np.append(high, 1.0) * (1 + SLACK)
        return room, (self._task.sizes <= room).all(axis=1) | (self._task.pieces == 0)

    def _has_room(self, fits: BoolArray) -> bool:
        """Whether every table has an option that fits."""
        return bool(np.logical_or.reduceat(fits, self._task.first[:-1]).all())

    def _limit(
        self,
        lower: FloatArray,
        upper: FloatArray,
        fits: BoolArray,
        low: FloatArray,
        high: FloatArray,
    ) -> None:
        """Set the limits of shares, rooms, maxima and what breaks rows."""
        upper[: len(fits)] = fits
        lower[self._room], upper[self._room] = low, high * (1 + SLACK)
        upper[self._maxima] = upper[self._broken] = _MOST

    def _slimmed(self, found: Optimum, upper: FloatArray) -> FloatArray:
        """The prices of a solution, with pieces worth no more than the bound needs.

        An option that costs more than the best one of its table may cost as much less, by pieces
        that are worth less, and the bound stays. So fewer patterns seem to be missing.
        """
        prices, placed = found.prices.copy(), self._placed
        held = slice(self._held, self._ranks_row)
        prices[held] = np.maximum(prices[held], 0.0)
        costs = self._program.reduced(prices, len(self._task.pieces))
        shown = np.where(upper[: len(costs)] > 0, costs, np.inf)
        best = np.minimum.reduceat(shown, self._task.first[:-1])[self._task.table_of]
        spare = np.maximum(costs - best, 0.0)[placed] / self._task.pieces[placed]
        prices[held] = np.maximum(prices[held] - spare * (1 - SLACK), 0.0)
        return prices

    def _free_rows(self) -> Rows:
        """The rows without patterns: one option per table, maxima of phases, and means."""
        task, loads = self._task, np.arange(self._task.num_loads)
        zero, ones = np.zeros(len(loads)), np.ones(len(loads))
        parts = [Rows.one_of_each(task.table_of)]
        for sums, others, values in (
            (task.uniform, (self._room.start + loads, self._maxima.start + task.phase), (1, -1)),
            (task.mean, (self._room.start + loads, self._broken.start + loads), (-1, -1)),
        ):
            option, load = np.nonzero(sums)
            parts.append(
                Rows(
                    row=np.concatenate([load, loads, loads]),
                    column=np.concatenate([option, *others]),
                    values=np.concatenate([sums[option, load], *(v * ones for v in values)]),
                    lower=np.full(len(loads), -math.inf),
                    upper=zero,
                )
            )
        return Rows.stack(parts)

    def _start(self, free: Rows) -> MilpProgram:
        """The program without patterns."""
        task, placed = self._task, self._placed
        world, every = float(task.world_size), np.arange(len(self._placed))
        cost = np.zeros(self._first)
        cost[self._maxima] = 1.0
        cost[self._broken] = _DEAR
        cost[-1] = _DEAR
        held = Rows(
            row=np.concatenate([every, every]),
            column=np.concatenate([self._more.start + every, placed]),
            values=np.concatenate([-np.ones(len(placed)), -task.pieces[placed].astype(float)]),
            lower=np.zeros(len(placed)),
            upper=np.zeros(len(placed)),
        )
        ranks = Rows(
            row=np.zeros(2, dtype=np.int64),
            column=self._more.stop + np.arange(2),
            values=np.array([1.0, -1.0]),
            lower=np.array([world]),
            upper=np.array([world]),
        )
        return self._continuous(cost, Rows.stack([free, held, ranks]))

    def _range(self, free: Rows, load: int) -> MilpProgram:
        """The program for the largest room of a load; its last variable is the objective."""
        last = self._broken.stop
        cost = np.zeros(last + 1)
        cost[self._room.start + load] = -1.0
        cost[self._broken] = _DEAR
        maxima = np.arange(self._maxima.start, self._maxima.stop)
        below = Rows(
            row=np.zeros(len(maxima) + 1, dtype=np.int64),
            column=np.append(maxima, last),
            values=np.append(np.ones(len(maxima)), -1.0),
            lower=np.array([-math.inf]),
            upper=np.zeros(1),
        )
        return self._continuous(cost, Rows.stack([free, below]))

    def _continuous(self, cost: FloatArray, rows: Rows) -> MilpProgram:
        return MilpProgram(
            cost=cost,
            upper=np.full(len(cost), _MOST),
            rows=rows,
            integer=np.zeros(len(cost), dtype=bool),
            groups=self._task.table_of,
        )
